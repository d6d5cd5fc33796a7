"""Findings on the flow graph: which nodes waste how much of what they write, and what repeats what.

A finding is one cause; a line that twenty layers call is one cause and twenty nodes. So a finding
belongs to the node it was first seen at and to every node of the same operator at the same line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from torchyard.core.values import FlowNode, Place, ValueFinding, ValueProfile

__all__ = ["LINKS", "NodeWaste", "WasteLink", "waste_links", "waste_of_nodes"]

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
