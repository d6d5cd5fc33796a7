"""The flow graph with its findings, reduced to views: heaviest or wasteful operators, modules.

A finding belongs to the node where it was first seen and to every node of the same operator at the same line. Where a
view leaves operators out, data that passes through them becomes an edge between those that are shown.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torchyard.values.model import FlowGraph, FlowNode, Place, ValueFinding, ValueProfile

LINKS: Final[dict[str, str]] = {
    "first": "the same bits as",
    "overwritten_by": "overwritten by",
    "added_by": "only used as an addend by",
}
"""Evidence keys that refer to another operator -> relation shown in reports."""

_Cause = tuple[str, str, int, bool]


@dataclass(frozen=True, kw_only=True)
class NodeWaste:
    """Waste of one node according to the findings."""

    share: float
    """Wasted share of the bytes it writes, 0 to 1."""
    findings: tuple[int, ...]
    """Indices in the list of findings."""


@dataclass(frozen=True, kw_only=True)
class WasteLink:
    """A finding's node and a related node."""

    node: int
    other: int
    relation: str


def waste_of_nodes(profile: ValueProfile, findings: Sequence[ValueFinding]) -> dict[int, NodeWaste]:
    """Return the waste by node id, for nodes with findings only."""
    nodes = _nodes_by_cause(profile)
    nodes_by_id = {node.id: node for node in profile.flow.nodes}
    shares: dict[int, float] = defaultdict(float)
    members: dict[int, list[int]] = defaultdict(list)
    for number, finding in enumerate(findings):
        # The same operator inside another operator is a different cause.
        same = {
            node.id: node
            for node in nodes.get(_cause(finding.operator, finding.place), ())
            if node.path == finding.path
        }
        if finding.node in nodes_by_id:
            same[finding.node] = nodes_by_id[finding.node]
        written = sum(node.written_bytes for node in same.values())
        share = min(1.0, finding.bytes_wasted / written) if written > 0 else 1.0
        for node in same:
            # Findings of one node overlap; together they waste at least as much as the largest.
            shares[node] = max(shares[node], share)
            members[node].append(number)
    return {
        node: NodeWaste(share=shares[node], findings=tuple(indices))
        for node, indices in members.items()
    }


def waste_links(profile: ValueProfile, findings: Sequence[ValueFinding]) -> list[WasteLink]:
    """Return links from duplicates to the first result and from dead fills to their overwriter."""
    nodes = _nodes_by_cause(profile)
    node_ids = {node.id for node in profile.flow.nodes}
    links: dict[tuple[int, int], WasteLink] = {}
    for finding in findings:
        for key, relation in LINKS.items():
            other = _place_in(finding.evidence.get(key))
            if other is None or finding.node not in node_ids:
                continue
            candidates = [node for node in nodes.get(other, ()) if node.id != finding.node]
            # If several nodes match, prefer the one of the same module.
            same = [node for node in candidates if node.place.module == finding.place.module]
            for node in (same or candidates)[:1]:
                link = WasteLink(node=finding.node, other=node.id, relation=relation)
                links.setdefault((finding.node, node.id), link)
    return list(links.values())


def _nodes_by_cause(profile: ValueProfile) -> dict[_Cause, list[FlowNode]]:
    nodes: dict[_Cause, list[FlowNode]] = defaultdict(list)
    for node in profile.flow.nodes:
        nodes[_cause(node.operator, node.place)].append(node)
    return nodes


def _cause(operator: str, place: Place) -> _Cause:
    return operator, place.file, place.line, place.backward


def _place_in(value: Any) -> _Cause | None:
    """Return the operator that the evidence refers to, or None if it is malformed."""
    if not isinstance(value, dict):
        return None
    operator, file, line = value.get("operator"), value.get("file"), value.get("line")
    if isinstance(operator, str) and isinstance(file, str) and isinstance(line, int):
        return operator, file, line, value.get("backward") is True
    return None


DEFAULT_SIZE: Final = 300
_SIZES: Final = (60, DEFAULT_SIZE, 1000, 3000)
MOST_NODES: Final = 10_000
_MOST_EDGES: Final = 30_000
_MOST_PASSED: Final = 64
"""Maximum number of hidden operators to traverse from one reader."""
_MOST_INDIRECT: Final = 3
"""Maximum number of writers of one reader found through hidden operators, nearest first."""
_MOST_GROUPS: Final = 80
_MOST_LINES: Final = 20
"""Maximum number of source lines with waste in the view of lines."""
_NEIGHBOURS: Final = 2
"""Lines that write to, and that read from, each of them."""


@dataclass(frozen=True, kw_only=True)
class ViewEdge:
    """Data between two nodes of a view, by their positions in it."""

    writer: int
    reader: int
    bytes: int
    passed: bool = False
    """The data passes through hidden operators."""


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """The operators of a module, or of a source line in a module, forward or backward."""

    module: str
    backward: bool
    nodes: tuple[int, ...]
    """Positions in the graph's list of nodes."""
    kind: str = ""
    """Class of the module, where known."""
    file: str = ""
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class FlowView:
    """A selection of nodes and edges that is drawn."""

    kind: str
    """heaviest, lines, waste or modules."""
    members: tuple[int, ...]
    """Positions in the graph's list of nodes, or in the list of source lines or modules."""
    edges: tuple[ViewEdge, ...]
    edges_left_out: int = 0
    share: float = 1.0
    """Share of all written bytes."""


def views_of(flow: FlowGraph, waste: Mapping[int, NodeWaste]) -> list[FlowView]:
    """Return the views: heaviest operators by size, then wasteful lines and operators, then modules."""
    nodes = flow.nodes
    if not nodes:
        return []
    numbers = {node.id: number for number, node in enumerate(nodes)}
    incoming = _incoming(flow, numbers)
    weights = [max(0, node.written_bytes) for node in nodes]
    wasteful = sorted(
        (numbers[node] for node in waste if node in numbers),
        key=lambda number: (-weights[number] * waste[nodes[number].id].share, number),
    )
    heaviest = sorted(range(len(nodes)), key=lambda number: (-weights[number], number))
    total = sum(weights) or 1
    whole = min(len(nodes), MOST_NODES)
    views = []
    for size in [size for size in _SIZES if size < whole] + [whole]:
        # Operators with findings are always included, up to a third of the view.
        chosen = dict.fromkeys(wasteful[: size // 3] + heaviest)
        members = sorted(list(chosen)[:size])
        share = sum(weights[number] for number in members) / total
        views.append(_view("heaviest", members, incoming, share))
    if wasteful:
        lines = line_groups(flow)
        wasted = [
            sum(weights[n] * waste[nodes[n].id].share for n in line.nodes if nodes[n].id in waste)
            for line in lines
        ]
        views.append(_lines_view(lines, wasted, incoming))
        members = sorted(_with_neighbours(wasteful[:DEFAULT_SIZE], incoming))
        share = sum(weights[number] for number in members) / total
        views.append(_view("waste", members, incoming, share))
    groups = module_groups(flow)
    if len(groups) > 1:
        views.append(_modules_view(groups, incoming))
    return views


def line_groups(flow: FlowGraph) -> list[NodeGroup]:
    """Group operators by source line and class of the module: the layers of a model are one group."""
    groups: dict[tuple[str, int, str, bool], list[int]] = defaultdict(list)
    for number, node in enumerate(flow.nodes):
        place = node.place
        kind = flow.classes.get(place.module, place.module)
        groups[place.file, place.line, kind, place.backward].append(number)
    return [
        NodeGroup(
            file=file,
            line=line,
            module=_modules_text([flow.nodes[number].place.module for number in members]),
            kind=kind,
            backward=backward,
            nodes=tuple(members),
        )
        for (file, line, kind, backward), members in groups.items()
    ]


def _modules_text(modules: Sequence[str]) -> str:
    """Return the first of the modules, and how many others there are."""
    first, *others = dict.fromkeys(modules)
    return f"{first} and {len(others)} more" if others else first


def module_groups(flow: FlowGraph) -> list[NodeGroup]:
    """Group operators by module; module paths are shortened to limit the number of groups."""
    nodes = flow.nodes
    deepest = max((node.place.module.count(".") + 1 for node in nodes), default=1)
    groups: dict[tuple[str, bool], list[int]] = {}
    for depth in range(min(deepest, 12), 0, -1):
        groups = defaultdict(list)
        for number, node in enumerate(nodes):
            module = ".".join(node.place.module.split(".")[:depth])
            groups[module, node.place.backward].append(number)
        if len(groups) <= _MOST_GROUPS:
            break
    return [
        NodeGroup(
            module=module,
            kind=flow.classes.get(module, ""),
            backward=backward,
            nodes=tuple(members),
        )
        for (module, backward), members in list(groups.items())[:MOST_NODES]
    ]


_Incoming = list[list[tuple[int, int]]]


def _incoming(flow: FlowGraph, numbers: Mapping[int, int]) -> _Incoming:
    """Return (writer, bytes) per reader, without edges from external memory."""
    incoming: _Incoming = [[] for _ in flow.nodes]
    for edge in flow.edges:
        writer, reader = numbers.get(edge.writer), numbers.get(edge.reader)
        if writer is not None and reader is not None and writer != reader:
            incoming[reader].append((writer, max(0, edge.bytes)))
    return incoming


def _view(kind: str, members: Sequence[int], incoming: _Incoming, share: float) -> FlowView:
    positions = {number: position for position, number in enumerate(members)}
    edges = [
        ViewEdge(writer=positions[writer], reader=positions[reader], bytes=size, passed=passed)
        for reader in members
        for writer, (size, passed) in _writers(reader, positions, incoming).items()
    ]
    largest_edges = sorted(edges, key=lambda edge: -edge.bytes)[:_MOST_EDGES]
    return FlowView(
        kind=kind,
        members=tuple(members),
        edges=tuple(largest_edges),
        edges_left_out=len(edges) - len(largest_edges),
        share=share,
    )


def _writers(
    reader: int, shown: Collection[int], incoming: _Incoming
) -> dict[int, tuple[int, bool]]:
    """Return the visible writers of a reader: bytes, and whether through hidden operators."""
    writers: dict[int, tuple[int, bool]] = {}
    passed: set[int] = set()
    indirect = 0
    waiting = deque((writer, size, False) for writer, size in incoming[reader])
    while waiting:
        writer, size, through = waiting.popleft()
        if writer in shown:
            if writer == reader or (through and indirect >= _MOST_INDIRECT):
                continue
            indirect += through and writer not in writers
            before, was_through = writers.get(writer, (0, True))
            writers[writer] = (max(before, size), through and was_through)
        elif writer not in passed and len(passed) < _MOST_PASSED:
            passed.add(writer)
            # Only earlier operators: edges from the previous step would connect everything.
            waiting += [
                (earlier, min(size, more), True)
                for earlier, more in incoming[writer]
                if earlier < writer
            ]
    return writers


def _with_neighbours(chosen: Sequence[int], incoming: _Incoming) -> Iterator[int]:
    """Yield the chosen nodes and their direct neighbours, up to twice the default size."""
    selected = set(chosen)
    around: dict[int, None] = {}
    for reader, writers in enumerate(incoming):
        for writer, _ in writers:
            if reader in selected and writer not in selected:
                around[writer] = None
            elif writer in selected and reader not in selected:
                around[reader] = None
    yield from selected
    yield from list(around)[: 2 * DEFAULT_SIZE - len(selected)]


def _lines_view(
    lines: Sequence[NodeGroup], wasted: Sequence[float], incoming: _Incoming
) -> FlowView:
    """Return the lines that waste the most, with their largest neighbours."""
    sizes = _flows_between(lines, incoming)
    wasteful = [number for number, size in enumerate(wasted) if size > 0]
    chosen = sorted(wasteful, key=lambda number: (-wasted[number], number))[:_MOST_LINES]
    shown = dict.fromkeys(chosen)
    for number in chosen:
        for side in (0, 1):
            around = [(size, pair) for pair, size in sizes.items() if pair[1 - side] == number]
            largest = sorted(around, key=lambda item: (-item[0], item[1]))[:_NEIGHBOURS]
            shown.update(dict.fromkeys(pair[side] for _, pair in largest))
    members = sorted(shown)
    positions = {number: position for position, number in enumerate(members)}
    edges = tuple(
        ViewEdge(writer=positions[writer], reader=positions[reader], bytes=size)
        for (writer, reader), size in sorted(sizes.items())
        if writer in positions and reader in positions
    )
    share = sum(wasted[number] for number in chosen) / (sum(wasted) or 1.0)
    return FlowView(kind="lines", members=tuple(members), edges=edges, share=share)


def _flows_between(groups: Sequence[NodeGroup], incoming: _Incoming) -> dict[tuple[int, int], int]:
    """Return the bytes from one group to another."""
    group_of = {number: index for index, group in enumerate(groups) for number in group.nodes}
    sizes: dict[tuple[int, int], int] = defaultdict(int)
    for reader, writers in enumerate(incoming):
        for writer, size in writers:
            pair = group_of.get(writer, -1), group_of.get(reader, -1)
            if pair[0] != pair[1] and -1 not in pair:
                sizes[pair] += size
    return sizes


def _modules_view(groups: Sequence[NodeGroup], incoming: _Incoming) -> FlowView:
    sizes = _flows_between(groups, incoming)
    edges = tuple(
        ViewEdge(writer=writer, reader=reader, bytes=size)
        for (writer, reader), size in sorted(sizes.items())
    )
    return FlowView(kind="modules", members=tuple(range(len(groups))), edges=edges[:_MOST_EDGES])
