"""A flow graph as plain data for the script that draws it (`templates/flow.js`).

Compact: texts are in one table, records are lists. The script names their fields in the same order;
a test compares the two. Every text from outside is cut and stripped of what acts instead of being
read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torchyard.core.units import format_percent
from torchyard.core.values import FlowNode, ValueFinding, ValueProfile
from torchyard.reports.flow_views import FlowView, ModuleGroup, module_groups
from torchyard.reports.flow_waste import NodeWaste, waste_links
from torchyard.reports.values_wording import clipped, operator_text, short_file

__all__ = ["BOX", "GROUP_FIELDS", "NODE_FIELDS", "FlowPicture", "PlacedView", "flow_data"]

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
