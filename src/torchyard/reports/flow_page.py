"""The flow graph on a page: a picture where it can be placed, and always a list of its operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from torchyard.core.units import format_bytes, format_percent
from torchyard.core.values import FlowNode, ValueFinding, ValueProfile
from torchyard.reports.flow_data import FlowPicture, PlacedView, flow_data
from torchyard.reports.flow_layout import MISSING, LayoutFailed, layout_available, place_nodes
from torchyard.reports.flow_views import DEFAULT_SIZE, FlowView, views_of
from torchyard.reports.flow_waste import NodeWaste, waste_of_nodes
from torchyard.reports.values_wording import clipped, operator_text, place_text
from torchyard.reports.wording import ABSENT

__all__ = ["FlowPage", "OperatorRow", "flow_page"]

LISTED: Final = 40
_NO_WASTE: Final = NodeWaste(share=0.0, findings=())


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
