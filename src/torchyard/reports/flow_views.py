"""Views of a flow graph: the heaviest operators, those that waste, or whole modules.

A view has nodes and edges to draw. Where operators are left out, data that passes through them is
an edge between those that are shown, so that a view stays connected. Knows nothing of places on a
page or of how a view is drawn.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torchyard.core.values import FlowGraph, FlowNode
from torchyard.reports.flow_waste import NodeWaste

__all__ = [
    "DEFAULT_SIZE",
    "MOST_NODES",
    "FlowView",
    "ModuleGroup",
    "ViewEdge",
    "module_groups",
    "views_of",
]

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
