"""The flow graph on the HTML page: a layered picture, if possible, and a list of operators.

The layout comes from fast-sugiyama (`torchyard[graph]`), which gets only the edges of `layout_edges`: with all edges,
358 nodes of a transformer took 26 s, with those less than 0.1 s. The data for the script (`templates/flow.js`) is
compact: texts are in one table, records are lists, whose fields the script names in the same order.
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
    NodeGroup,
    NodeWaste,
    line_groups,
    module_groups,
    views_of,
    waste_links,
    waste_of_nodes,
)

MISSING: Final = (
    "The graph needs fast-sugiyama: run `pip install 'torchyard[graph]'`, then create the page again "
    "with `torchyard values show --format html`. The list of operators below works without it."
)
LIMIT_S: Final = 60.0
_CHILD: Final = Path(__file__).with_name("flow_layout_child.py")
_SHORT: Final = 3
_ROW_SHAPE: Final = 3.0
"""Target aspect ratio of the rows of unconnected components."""

Edge = tuple[int, int]
Spot = tuple[float, float]


class LayoutFailed(Exception):
    """The layout failed; the page shows the reason instead of the graph."""


def layout_edges(count: int, edges: Iterable[Edge]) -> list[Edge]:
    """Return the edges that determine the layout, without cycles and without most of those that cross layers.

    Nodes are numbered in the order of their first call, so an edge to a smaller number carries data of the previous step.
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
    """Return column and layer of nodes 0 to `count` - 1; raise LayoutFailed."""
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
        raise LayoutFailed(f"the layout timed out after {limit_s:.0f} s") from None
    except OSError as error:
        raise LayoutFailed(f"the layout process could not be started: {error}") from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise LayoutFailed(f"the layout failed: {lines[-1] if lines else done.returncode}")
    try:
        parts: list[_Part] = [
            [(int(node), float(x), float(y)) for node, x, y in part]
            for part in json.loads(done.stdout)
        ]
    except (ValueError, TypeError) as error:
        raise LayoutFailed(f"the layout returned no positions: {error}") from error
    # Largest component first; the order of the library varies from run to run.
    return sorted(parts, key=lambda part: (-len(part), part[0]))


def _shelves(parts: Sequence[_Part]) -> list[Spot]:
    """Return the top left corner of each component, arranged in rows."""
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


BOX: Final = (264, 48)
"""Width and height of an operator box."""
_GAP: Final = (22, 40)
_MOST_FINDINGS: Final = 20
"""Maximum number of findings per node."""
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
    "lines",
    "kind",
)
"""`group` and `lines` are the items of the module and of the source line, `kind` is the class."""
GROUP_FIELDS: Final = (
    "module",
    "backward",
    "members",
    "bytes",
    "waste",
    "findings",
    "kind",
    "file",
    "line",
    "source",
)

PlacedView = tuple[FlowView, Sequence[tuple[float, float]]]


@dataclass(frozen=True, kw_only=True)
class FlowPicture:
    """Data for the script, and the positions of nodes in it."""

    data: dict[str, Any]
    items: dict[int, int]
    """Node id -> index in the data."""


class _Texts:
    """Table of unique texts."""

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
    """Return the views and their nodes; `findings` are those shown on the page."""
    nodes, texts = profile.flow.nodes, _Texts()
    grouped = ("modules", "lines")
    shown = sorted({n for view, _ in views if view.kind not in grouped for n in view.members})
    items = {number: item for item, number in enumerate(shown)}
    modules, lines_of = module_groups(profile.flow), line_groups(profile.flow)
    shown_lines = sorted({n for view, _ in views if view.kind == "lines" for n in view.members})
    groups = [*modules, *(lines_of[number] for number in shown_lines)]
    group_items = {
        "modules": {number: len(shown) + number for number in range(len(modules))},
        "lines": {
            number: len(shown) + len(modules) + index for index, number in enumerate(shown_lines)
        },
    }
    module_of, line_of = (
        {node: group_items[kind].get(n, -1) for n, group in enumerate(all_) for node in group.nodes}
        for kind, all_ in (("modules", modules), ("lines", lines_of))
    )
    classes = profile.flow.classes
    outside = _from_outside(profile)
    records = [
        _node(
            nodes[number],
            waste.get(nodes[number].id, _NO_WASTE),
            texts,
            most=len(findings),
            source=lines.get((nodes[number].place.file, nodes[number].place.line), ""),
            outside=outside.get(nodes[number].id, 0),
            groups=(module_of[number], line_of[number]),
            kind=classes.get(nodes[number].place.module, ""),
        )
        for number in shown
    ]
    by_id = {nodes[number].id: item for number, item in items.items()}
    data: dict[str, Any] = {
        "box": BOX,
        "nodes": records,
        "groups": [
            _group(
                group,
                nodes,
                waste,
                texts,
                most=len(findings),
                source=lines.get((group.file, group.line), ""),
            )
            for group in groups
        ],
        "views": [
            _view(view, spots, group_items.get(view.kind, items), len(nodes))
            for view, spots in views
        ],
        "links": [
            [by_id[link.node], by_id[link.other], texts(link.relation)]
            for link in waste_links(profile, findings)
            if link.node in by_id and link.other in by_id
        ],
        "findings": [
            f"{clipped(one.pattern, 60)}, {one.proof.certainty.value}" for one in findings
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
    groups: tuple[int, int],
    kind: str,
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
        *groups,
        texts(clipped(kind, 80)),
    ]


def _group(
    group: NodeGroup,
    nodes: Sequence[FlowNode],
    waste: Mapping[int, NodeWaste],
    texts: _Texts,
    *,
    most: int,
    source: str,
) -> list[Any]:
    members = [nodes[number] for number in group.nodes]
    written = sum(node.written_bytes for node in members)
    wasted = sum(node.written_bytes * waste.get(node.id, _NO_WASTE).share for node in members)
    findings = {one for node in members for one in waste.get(node.id, _NO_WASTE).findings}
    return [
        texts(clipped(group.module, 80) or "outside modules"),
        int(group.backward),
        len(members),
        written,
        _percent(wasted / written) if written > 0 else 0,
        _linked(sorted(findings), most),
        texts(clipped(group.kind, 80)),
        texts(short_file(group.file)),
        group.line,
        texts(clipped(source)),
    ]


def _view(
    view: FlowView, spots: Sequence[tuple[float, float]], items: Mapping[int, int], total: int
) -> dict[str, Any]:
    step = BOX[0] + _GAP[0], BOX[1] + _GAP[1]
    return {
        "kind": view.kind,
        "about": _about(view, total),
        "members": [items[number] for number in view.members],
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
        return f"{len(view.members):,} modules, forward and backward separately"
    if view.kind == "lines":
        share = f", {format_percent(view.share)} of wasted bytes" if view.share < 1.0 else ""
        return f"source lines with findings and the lines around them{share}"
    text = f"{len(view.members):,} of {total:,} operators, {format_percent(view.share)} of written bytes"
    if view.kind == "waste":
        text = f"operators with findings and their neighbours: {text}"
    if view.edges_left_out:
        text += f"; the {view.edges_left_out:,} smallest edges are omitted"
    return text


def _from_outside(profile: ValueProfile) -> dict[int, int]:
    """Return the bytes that each node read from external memory."""
    node_ids = {node.id for node in profile.flow.nodes}
    sizes: dict[int, int] = defaultdict(int)
    for edge in profile.flow.edges:
        if edge.writer not in node_ids:
            sizes[edge.reader] += edge.bytes
    return sizes


def _linked(findings: Sequence[int], most: int) -> list[int]:
    """Return the findings that are shown on the page."""
    return [number for number in findings if number < most][:_MOST_FINDINGS]


def _percent(share: float) -> int:
    """Return a percentage, rounded; 0 only if the share is 0."""
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
    """Numbered from 1, as on the page."""


@dataclass(frozen=True, kw_only=True)
class FlowPage:
    """The graph section of the page."""

    summary: str
    rows: tuple[OperatorRow, ...]
    picture: FlowPicture | None
    problems: tuple[str, ...] = ()
    """Why the picture or a view is missing."""


def flow_page(
    profile: ValueProfile,
    findings: Sequence[ValueFinding],
    lines: Mapping[tuple[str, int], str],
) -> FlowPage:
    """Return the graph section; `findings` are those shown on the page, in its order."""
    nodes = profile.flow.nodes
    waste = waste_of_nodes(profile, findings)
    rows = tuple(_rows(nodes, waste))
    summary = f"{len(nodes):,} operators by source location, {len(profile.flow.edges):,} data flows"
    if not nodes:
        return FlowPage(summary="The flow graph was not recorded.", rows=(), picture=None)
    if find_spec("fast_sugiyama") is None:
        return FlowPage(summary=summary, rows=rows, picture=None, problems=(MISSING,))
    views, problems = _placed(views_of(profile.flow, waste))
    picture = flow_data(profile, findings, waste, views, lines) if views else None
    if picture is not None:
        kinds = [view.kind for view, _ in views]
        start = _start([view for view, _ in views])
        picture.data["start"] = start
        picture.data["opening"] = kinds.index("lines") if "lines" in kinds else start
    return FlowPage(summary=summary, rows=rows, picture=picture, problems=problems)


def _placed(views: Sequence[FlowView]) -> tuple[list[PlacedView], tuple[str, ...]]:
    """Lay out the views; return those that succeeded and the reasons of those that failed."""
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
    """Return the largest view of the heaviest operators within the default size."""
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
        node_waste = waste.get(node.id, _NO_WASTE)
        rows.append(
            OperatorRow(
                operator=operator_text(node.operator, node.path),
                place=place_text(node.place),
                calls=f"{node.calls:,}",
                size=format_bytes(node.written_bytes),
                wasted=format_percent(node_waste.share) if node_waste.findings else ABSENT,
                findings=tuple(number + 1 for number in node_waste.findings[:5]),
            )
        )
    return rows
