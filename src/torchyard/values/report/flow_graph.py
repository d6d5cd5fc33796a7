"""The flow graph with its findings, reduced to views: heaviest or wasteful operators, modules.

A finding is one cause; a line that twenty layers call is one cause and twenty nodes. So a finding
belongs to the node where it was first seen and to every node of the same operator at the same
line. Where a view leaves operators out, data that passes through them becomes an edge between
those that are shown, so that a view stays connected. Knows nothing of drawing.
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
    "added_by": "only added to by",
}
"""Keys of evidence that name another operator, and what they mean."""

_Cause = tuple[str, str, int, bool]


@dataclass(frozen=True, kw_only=True)
class NodeWaste:
    """What findings say of one node."""

    share: float
    """Of the bytes it writes, 0 to 1."""
    findings: tuple[int, ...]
    """Places in the list of findings."""


@dataclass(frozen=True, kw_only=True)
class WasteLink:
    """A finding's node and another one that it has to do with."""

    node: int
    other: int
    relation: str


def waste_of_nodes(profile: ValueProfile, findings: Sequence[ValueFinding]) -> dict[int, NodeWaste]:
    """By id of the node; nodes without a finding are not there."""
    nodes = _nodes_by_cause(profile)
    known = {node.id: node for node in profile.flow.nodes}
    shares: dict[int, float] = defaultdict(float)
    members: dict[int, list[int]] = defaultdict(list)
    for number, finding in enumerate(findings):
        # Inside other operators the same operator may run for another reason.
        same = {
            node.id: node
            for node in nodes.get(_cause(finding.operator, finding.place), ())
            if node.path == finding.path
        }
        if finding.node in known:
            same[finding.node] = known[finding.node]
        written = sum(node.written_bytes for node in same.values())
        share = min(1.0, finding.bytes_wasted / written) if written > 0 else 1.0
        for node in same:
            # Findings of one node overlap; together they waste at least what the worst of them does.
            shares[node] = max(shares[node], share)
            members[node].append(number)
    return {
        node: NodeWaste(share=shares[node], findings=tuple(found))
        for node, found in members.items()
    }


def waste_links(profile: ValueProfile, findings: Sequence[ValueFinding]) -> list[WasteLink]:
    """Duplicates and their first copies, dead fills and what overwrites them."""
    nodes = _nodes_by_cause(profile)
    known = {node.id for node in profile.flow.nodes}
    links: dict[tuple[int, int], WasteLink] = {}
    for finding in findings:
        for key, relation in LINKS.items():
            other = _place_in(finding.evidence.get(key))
            if other is None or finding.node not in known:
                continue
            found = [node for node in nodes.get(other, ()) if node.id != finding.node]
            # Of several modules at that line the one of the same module is meant, else the first.
            same = [node for node in found if node.place.module == finding.place.module]
            for node in (same or found)[:1]:
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
    """Another operator that evidence names; evidence is whatever a worker wrote."""
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
"""Operators left out that are passed on the way back from one that is shown."""
_MOST_AROUND: Final = 3
"""Writers of one reader that are found that way, the nearest first."""
_MOST_GROUPS: Final = 80


@dataclass(frozen=True, kw_only=True)
class ViewEdge:
    """Data between two nodes of a view, by their positions in it."""

    writer: int
    reader: int
    bytes: int
    passed: bool = False
    """Through operators that are not shown."""


@dataclass(frozen=True, kw_only=True)
class ModuleGroup:
    """The operators of a module, forward or backward."""

    module: str
    backward: bool
    nodes: tuple[int, ...]
    """Positions in the graph's list of nodes."""


@dataclass(frozen=True, kw_only=True)
class FlowView:
    """What is drawn together."""

    kind: str
    """heaviest, waste or modules."""
    members: tuple[int, ...]
    """Positions in the graph's list of nodes, or in the list of module groups."""
    edges: tuple[ViewEdge, ...]
    edges_left_out: int = 0
    share: float = 1.0
    """Of all written bytes."""


def views_of(flow: FlowGraph, waste: Mapping[int, NodeWaste]) -> list[FlowView]:
    """From the smallest to the largest, then those of another kind; empty for an empty graph."""
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
        # What findings are about is shown however little it writes, up to a third of the view.
        chosen = dict.fromkeys(wasteful[: size // 3] + heaviest)
        members = sorted(list(chosen)[:size])
        share = sum(weights[number] for number in members) / total
        views.append(_view("heaviest", members, incoming, share))
    if wasteful:
        members = sorted(_with_neighbours(wasteful[:DEFAULT_SIZE], incoming))
        share = sum(weights[number] for number in members) / total
        views.append(_view("waste", members, incoming, share))
    groups = module_groups(nodes)
    if len(groups) > 1:
        views.append(_modules_view(groups, incoming))
    return views


def module_groups(nodes: Sequence[FlowNode]) -> list[ModuleGroup]:
    """Operators by module, with paths cut so that there are few enough groups to look at."""
    deepest = max((node.place.module.count(".") + 1 for node in nodes), default=1)
    found: dict[tuple[str, bool], list[int]] = {}
    for depth in range(min(deepest, 12), 0, -1):
        found = defaultdict(list)
        for number, node in enumerate(nodes):
            module = ".".join(node.place.module.split(".")[:depth])
            found[module, node.place.backward].append(number)
        if len(found) <= _MOST_GROUPS:
            break
    return [
        ModuleGroup(module=module, backward=backward, nodes=tuple(members))
        for (module, backward), members in list(found.items())[:MOST_NODES]
    ]


_Incoming = list[list[tuple[int, int]]]


def _incoming(flow: FlowGraph, numbers: Mapping[int, int]) -> _Incoming:
    """Writers and bytes of each reader; edges from outside or from nowhere are not drawn."""
    found: _Incoming = [[] for _ in flow.nodes]
    for edge in flow.edges:
        writer, reader = numbers.get(edge.writer), numbers.get(edge.reader)
        if writer is not None and reader is not None and writer != reader:
            found[reader].append((writer, max(0, edge.bytes)))
    return found


def _view(kind: str, members: Sequence[int], incoming: _Incoming, share: float) -> FlowView:
    positions = {number: position for position, number in enumerate(members)}
    edges = [
        ViewEdge(writer=positions[writer], reader=positions[reader], bytes=size, passed=passed)
        for reader in members
        for writer, (size, passed) in _writers(reader, positions, incoming).items()
    ]
    kept = sorted(edges, key=lambda edge: -edge.bytes)[:_MOST_EDGES]
    return FlowView(
        kind=kind,
        members=tuple(members),
        edges=tuple(kept),
        edges_left_out=len(edges) - len(kept),
        share=share,
    )


def _writers(
    reader: int, shown: Collection[int], incoming: _Incoming
) -> dict[int, tuple[int, bool]]:
    """Shown nodes that the reader's data comes from, with bytes and whether through hidden ones."""
    found: dict[int, tuple[int, bool]] = {}
    passed: set[int] = set()
    around = 0
    waiting = deque((writer, size, False) for writer, size in incoming[reader])
    while waiting:
        writer, size, through = waiting.popleft()
        if writer in shown:
            if writer == reader or (through and around >= _MOST_AROUND):
                continue
            around += through and writer not in found
            before, was_through = found.get(writer, (0, True))
            found[writer] = (max(before, size), through and was_through)
        elif writer not in passed and len(passed) < _MOST_PASSED:
            passed.add(writer)
            # Only back in time: the step before would connect everything with everything.
            waiting += [
                (earlier, min(size, more), True)
                for earlier, more in incoming[writer]
                if earlier < writer
            ]
    return found


def _with_neighbours(chosen: Sequence[int], incoming: _Incoming) -> Iterator[int]:
    """The chosen nodes, and those they read from or are read by, up to twice the default size."""
    wanted = set(chosen)
    around: dict[int, None] = {}
    for reader, writers in enumerate(incoming):
        for writer, _ in writers:
            if reader in wanted and writer not in wanted:
                around[writer] = None
            elif writer in wanted and reader not in wanted:
                around[reader] = None
    yield from wanted
    yield from list(around)[: 2 * DEFAULT_SIZE - len(wanted)]


def _modules_view(groups: Sequence[ModuleGroup], incoming: _Incoming) -> FlowView:
    group_of = {number: index for index, group in enumerate(groups) for number in group.nodes}
    sizes: dict[tuple[int, int], int] = defaultdict(int)
    for reader, writers in enumerate(incoming):
        for writer, size in writers:
            pair = group_of.get(writer, -1), group_of.get(reader, -1)
            if pair[0] != pair[1] and -1 not in pair:
                sizes[pair] += size
    edges = tuple(
        ViewEdge(writer=writer, reader=reader, bytes=size)
        for (writer, reader), size in sorted(sizes.items())
    )
    return FlowView(kind="modules", members=tuple(range(len(groups))), edges=edges[:_MOST_EDGES])
