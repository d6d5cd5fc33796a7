"""The flow graph on the HTML page: a layered picture, if possible, and a list of operators.

The layout comes from fast-sugiyama (`torchyard[graph]`), which never gets all edges: a layered
layout adds a node for each layer that an edge crosses, and in a training step activations go from
the first layers to the last. With all edges, 358 nodes of a transformer took 26 s of processor
time; with those of `layout_edges`, less than 0.1 s, and graphs of 10,000 nodes and 20,000 edges
between 0.1 and 3.5 s, depending on their form. The data for the script (`templates/flow.js`) is
compact: texts are in one table, records are lists. The script names their fields in the same
order; a test compares the two. Every text from outside is truncated and stripped of control
characters.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from torchyard.core.units import format_bytes, format_percent
from torchyard.presentation.wording import ABSENT
from torchyard.values.model import FlowNode, ValueFinding, ValueProfile
from torchyard.values.report.descriptions import clipped, operator_text, place_text, short_file
from torchyard.values.report.flow_graph import (
    DEFAULT_SIZE,
    FlowView,
    ModuleGroup,
    NodeWaste,
    module_groups,
    views_of,
    waste_links,
    waste_of_nodes,
)

MISSING: Final = (
    "The picture needs fast-sugiyama: `pip install 'torchyard[graph]'`, then make the page again "
    "with `torchyard values show --format html`. The list of operators below works without it."
)
LIMIT_S: Final = 60.0
_CHILD: Final = Path(__file__).with_name("flow_layout_child.py")
_SHORT: Final = 3
_ROW_SHAPE: Final = 3.0
"""Rows of unconnected parts grow to about three times as wide as all are high."""

Edge = tuple[int, int]
Spot = tuple[float, float]


class LayoutFailed(Exception):
    """Why there is no layout; the page says it and goes on without the picture."""


def layout_available() -> bool:
    """Whether the layout library is installed beside us."""
    return find_spec("fast_sugiyama") is not None


def layout_edges(count: int, edges: Iterable[Edge]) -> list[Edge]:
    """The edges that give a graph its form, without cycles.

    Nodes are numbered in the order of their first call, so an edge to a smaller number is data of
    the step before. From each node's latest writer its depth follows; besides those edges only the
    ones that cross few layers are kept.
    """
    forward = sorted({(writer, reader) for writer, reader in edges if writer < reader})
    latest: dict[int, int] = {}
    for writer, reader in forward:
        latest[reader] = max(latest.get(reader, -1), writer)
    depth = [0] * count
    for node in range(count):
        if node in latest:
            depth[node] = depth[latest[node]] + 1
    return [
        (writer, reader)
        for writer, reader in forward
        if latest[reader] == writer or 0 < depth[reader] - depth[writer] <= _SHORT
    ]


def place_nodes(count: int, edges: Sequence[Edge], *, limit_s: float = LIMIT_S) -> list[Spot]:
    """Column and layer of nodes 0 to `count` - 1; raises LayoutFailed."""
    parts = _laid_out(layout_edges(count, edges), limit_s)
    connected = {node for part in parts for node, _, _ in part}
    parts += [[(node, 0.0, 0.0)] for node in range(count) if node not in connected]
    spots: list[Spot] = [(0.0, 0.0)] * count
    for part, (left, top) in zip(parts, _shelves(parts), strict=True):
        for node, x, y in part:
            spots[node] = (x + left, y + top)
    return spots


_Part = list[tuple[int, float, float]]


def _laid_out(edges: list[Edge], limit_s: float) -> list[_Part]:
    if not edges:
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_CHILD)],
            input=json.dumps(edges).encode(),
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LayoutFailed(f"the layout took longer than {limit_s:.0f} s") from None
    except OSError as error:
        raise LayoutFailed(f"the layout could not be started: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise LayoutFailed(f"the layout failed: {said[-1] if said else done.returncode}")
    try:
        parts: list[_Part] = [
            [(int(node), float(x), float(y)) for node, x, y in part]
            for part in json.loads(done.stdout)
        ]
    except (ValueError, TypeError) as error:
        raise LayoutFailed(f"the layout gave no places: {error}") from error
    # The largest part first; the library's own order changes from run to run.
    return sorted(parts, key=lambda part: (-len(part), part[0]))


def _shelves(parts: Sequence[_Part]) -> list[Spot]:
    """Top left corner of each part, in rows of about the width of the widest."""
    sizes = [(max(x for _, x, _ in part) + 1, max(y for *_, y in part) + 1) for part in parts]
    area = sum(width * height for width, height in sizes)
    row_width = max([math.sqrt(area * _ROW_SHAPE), *(width for width, _ in sizes)], default=0)
    corners: list[Spot] = []
    left = top = row_height = 0.0
    for width, height in sizes:
        if left and left + width > row_width:
            left, top, row_height = 0.0, top + row_height + 1, 0.0
        corners.append((left, top))
        left += width
        row_height = max(row_height, height)
    return corners


BOX: Final = (172, 46)
"""Width and height of an operator, in the picture's units."""
_GAP: Final = (22, 40)
_MOST_FINDINGS: Final = 20
"""Of one node, in the picture."""
_NO_WASTE: Final = NodeWaste(share=0.0, findings=())
NODE_FIELDS: Final = (
    "operator",
    "path",
    "file",
    "line",
    "module",
    "backward",
    "calls",
    "bytes",
    "waste",
    "findings",
    "source",
    "outside",
    "group",
)
GROUP_FIELDS: Final = ("module", "backward", "members", "bytes", "waste", "findings")

PlacedView = tuple[FlowView, Sequence[tuple[float, float]]]


@dataclass(frozen=True, kw_only=True)
class FlowPicture:
    """What the script gets, and where in it the nodes are."""

    data: dict[str, Any]
    items: dict[int, int]
    """Ids of nodes and their positions in the data."""


class _Texts:
    """A table of texts, each once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.all)
            self.all.append(text)
        return self._numbers[text]


def flow_data(
    profile: ValueProfile,
    findings: Sequence[ValueFinding],
    waste: Mapping[int, NodeWaste],
    views: Sequence[PlacedView],
    lines: Mapping[tuple[str, int], str],
) -> FlowPicture:
    """The views with every node that is in one of them; findings are those with a place on the page."""
    nodes, texts = profile.flow.nodes, _Texts()
    shown = sorted({n for view, _ in views if view.kind != "modules" for n in view.members})
    items = {number: item for item, number in enumerate(shown)}
    groups = module_groups(nodes)
    group_of = {number: index for index, group in enumerate(groups) for number in group.nodes}
    outside = _from_outside(profile)
    records = [
        _node(
            nodes[number],
            waste.get(nodes[number].id, _NO_WASTE),
            texts,
            most=len(findings),
            source=lines.get((nodes[number].place.file, nodes[number].place.line), ""),
            outside=outside.get(nodes[number].id, 0),
            group=len(shown) + group_of[number],
        )
        for number in shown
    ]
    by_id = {nodes[number].id: item for number, item in items.items()}
    data: dict[str, Any] = {
        "box": BOX,
        "nodes": records,
        "groups": [_group(group, nodes, waste, texts, most=len(findings)) for group in groups],
        "views": [_view(view, spots, items, len(nodes)) for view, spots in views],
        "links": [
            [by_id[link.node], by_id[link.other], texts(link.relation)]
            for link in waste_links(profile, findings)
            if link.node in by_id and link.other in by_id
        ],
        "findings": [
            f"{clipped(found.pattern, 60)}, {found.proof.certainty.value}" for found in findings
        ],
    }
    return FlowPicture(data={**data, "texts": texts.all}, items=by_id)


def _node(
    node: FlowNode,
    waste: NodeWaste,
    texts: _Texts,
    *,
    most: int,
    source: str,
    outside: int,
    group: int,
) -> list[Any]:
    place = node.place
    return [
        texts(operator_text(node.operator)),
        texts(operator_text(node.operator, node.path) if node.path else ""),
        texts(short_file(place.file)),
        place.line,
        texts(clipped(place.module, 80)),
        int(place.backward),
        node.calls,
        node.written_bytes,
        _percent(waste.share),
        _linked(waste.findings, most),
        texts(clipped(source)),
        outside,
        group,
    ]


def _group(
    group: ModuleGroup,
    nodes: Sequence[FlowNode],
    waste: Mapping[int, NodeWaste],
    texts: _Texts,
    *,
    most: int,
) -> list[Any]:
    members = [nodes[number] for number in group.nodes]
    written = sum(node.written_bytes for node in members)
    wasted = sum(node.written_bytes * waste.get(node.id, _NO_WASTE).share for node in members)
    found = {one for node in members for one in waste.get(node.id, _NO_WASTE).findings}
    return [
        texts(clipped(group.module, 80) or "outside of modules"),
        int(group.backward),
        len(members),
        written,
        _percent(wasted / written) if written > 0 else 0,
        _linked(sorted(found), most),
    ]


def _view(
    view: FlowView, spots: Sequence[tuple[float, float]], items: Mapping[int, int], total: int
) -> dict[str, Any]:
    modules = view.kind == "modules"
    step = BOX[0] + _GAP[0], BOX[1] + _GAP[1]
    return {
        "kind": view.kind,
        "about": _about(view, total),
        "members": [len(items) + n if modules else items[n] for n in view.members],
        "x": [round(x * step[0]) for x, _ in spots],
        "y": [round(y * step[1]) for _, y in spots],
        "edges": [
            number
            for edge in view.edges
            for number in (edge.writer, edge.reader, edge.bytes, int(edge.passed))
        ],
    }


def _about(view: FlowView, total: int) -> str:
    if view.kind == "modules":
        return f"{len(view.members):,} modules, forward and backward apart"
    text = (
        f"{len(view.members):,} of {total:,} operators, {format_percent(view.share)} of all bytes"
    )
    if view.kind == "waste":
        text = f"operators with findings and their neighbours: {text}"
    if view.edges_left_out:
        text += f"; the {view.edges_left_out:,} lightest edges are left out"
    return text


def _from_outside(profile: ValueProfile) -> dict[int, int]:
    """Bytes that each node read of memory nothing was seen to write."""
    known = {node.id for node in profile.flow.nodes}
    found: dict[int, int] = defaultdict(int)
    for edge in profile.flow.edges:
        if edge.writer not in known:
            found[edge.reader] += edge.bytes
    return found


def _linked(findings: Sequence[int], most: int) -> list[int]:
    """Those that have a place on the page."""
    return [number for number in findings if number < most][:_MOST_FINDINGS]


def _percent(share: float) -> int:
    """Whole percents; what is not nothing is not 0."""
    return max(1, round(100 * share)) if share > 0 else 0


LISTED: Final = 40


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """One of the heaviest operators."""

    operator: str
    place: str
    calls: str
    size: str
    wasted: str
    findings: tuple[int, ...]
    """Counted from 1, as on the page."""


@dataclass(frozen=True, kw_only=True)
class FlowPage:
    """What the page shows of the graph."""

    summary: str
    rows: tuple[OperatorRow, ...]
    picture: FlowPicture | None
    problems: tuple[str, ...] = ()
    """Why there is no picture, or why a part of it is missing."""


def flow_page(
    profile: ValueProfile,
    findings: Sequence[ValueFinding],
    lines: Mapping[tuple[str, int], str],
) -> FlowPage:
    """The graph; `findings` are those that have a place on the page, in its order."""
    nodes = profile.flow.nodes
    waste = waste_of_nodes(profile, findings)
    rows = tuple(_rows(nodes, waste))
    summary = f"{len(nodes):,} operators at places, {len(profile.flow.edges):,} flows between them"
    if not nodes:
        return FlowPage(summary="The flow graph was not recorded.", rows=(), picture=None)
    if not layout_available():
        return FlowPage(summary=summary, rows=rows, picture=None, problems=(MISSING,))
    views, problems = _placed(views_of(profile.flow, waste))
    picture = flow_data(profile, findings, waste, views, lines) if views else None
    if picture is not None:
        picture.data["start"] = _start([view for view, _ in views])
    return FlowPage(summary=summary, rows=rows, picture=picture, problems=problems)


def _placed(views: Sequence[FlowView]) -> tuple[list[PlacedView], tuple[str, ...]]:
    """Views with places; one that cannot be placed is left out, and why is said."""
    placed: list[PlacedView] = []
    problems = []
    for view in views:
        edges = [(edge.writer, edge.reader) for edge in view.edges]
        try:
            placed.append((view, place_nodes(len(view.members), edges)))
        except LayoutFailed as error:
            reason = clipped(str(error), 300)
            problems.append(f"A view of {len(view.members):,} operators is missing: {reason}.")
    return placed, tuple(problems)


def _start(views: Sequence[FlowView]) -> int:
    """The largest view of the heaviest operators that a person can take in."""
    fit = [
        number
        for number, view in enumerate(views)
        if view.kind == "heaviest" and len(view.members) <= DEFAULT_SIZE
    ]
    return fit[-1] if fit else 0


def _rows(nodes: Sequence[FlowNode], waste: Mapping[int, NodeWaste]) -> list[OperatorRow]:
    heaviest = sorted(nodes, key=lambda node: (-node.written_bytes, node.id))[:LISTED]
    rows = []
    for node in heaviest:
        found = waste.get(node.id, _NO_WASTE)
        rows.append(
            OperatorRow(
                operator=operator_text(node.operator, node.path),
                place=place_text(node.place),
                calls=f"{node.calls:,}",
                size=format_bytes(node.written_bytes),
                wasted=format_percent(found.share) if found.findings else ABSENT,
                findings=tuple(number + 1 for number in found.findings[:5]),
            )
        )
    return rows
