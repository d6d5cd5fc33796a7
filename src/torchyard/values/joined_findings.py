"""Join the findings of all processes of a program by pattern, operator and source line.

Joining never makes a finding more certain: the weakest certainty counts, and a finding that another process
contradicts is at most likely. A process contradicts it by running the operator at that line, on tensors that were
examined, without the finding. Times are those of the main process.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torchyard.values.model import (
    Certainty,
    FindingInProcess,
    FlowEdge,
    FlowGraph,
    FlowNode,
    Place,
    ProfiledProcess,
    Proof,
    ValueFinding,
    ValueProfile,
    Worth,
)
from torchyard.values.process_parts import Parts

NOT_TIMED: Final = "a process other than the main process or rank 0 is not timed"
ENDED: Final = "the process was killed before its findings were tested"
_STRENGTH: Final = tuple(Certainty)
_OF_LONGEST: Final = ("steps_left_out", "steps_surveyed")
"""Counters of steps: those of the process with the most steps."""
_PREFIX: Final = "child processes: "

_Cause = tuple[str, str, tuple[str, ...], str, int, bool]
_Node = tuple[str, Place, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class _Member:
    """A process with its profile; node numbers are those of the joined graph."""

    number: int
    process: ProfiledProcess
    profile: ValueProfile
    nodes: dict[int, int]


def joined_profile(main: ValueProfile, parts: Parts) -> ValueProfile:
    """Return the profile of all processes; the same as that of the main process if there is no other."""
    if not parts.children:
        return main
    profiles = [main, *(part.profile for part in parts.children)]
    processes = (parts.main, *(part.process for part in parts.children))
    flow, nodes = _joined_flow([profile.flow for profile in profiles])
    members = [
        _Member(number=number, process=process, profile=profile, nodes=nodes[number])
        for number, (process, profile) in enumerate(zip(processes, profiles, strict=True))
    ]
    longest = max(profiles, key=lambda profile: profile.steps)
    counts: Counter[str] = Counter()
    for profile in profiles:
        counts.update(profile.counts)
    counts.update({name: longest.counts.get(name, 0) - counts[name] for name in _OF_LONGEST})
    return replace(
        main,
        steps=longest.steps,
        counts={name: count for name, count in counts.items() if count},
        findings=_joined_findings(members),
        findings_left_out=sum(profile.findings_left_out for profile in profiles),
        flow=flow,
        notes=(*main.notes, *_notes(members[1:], main.notes)),
        compiled=any(profile.compiled for profile in profiles),
        processes=processes,
    )


def _joined_findings(members: Sequence[_Member]) -> tuple[ValueFinding, ...]:
    occurrences: dict[_Cause, list[tuple[_Member, ValueFinding]]] = defaultdict(list)
    for member in members:
        killed = member.process.state == "killed"
        for observed in member.profile.findings:
            finding = replace(observed, proof=Proof(why=ENDED)) if killed else observed
            occurrences[_cause(finding)].append((member, finding))
    examined = [_examined(member.profile.flow) for member in members]
    return tuple(
        _joined(findings_of_place, _contradicting(findings_of_place, examined))
        for findings_of_place in occurrences.values()
    )


def _cause(finding: ValueFinding) -> _Cause:
    place = finding.place
    return (
        finding.pattern,
        finding.operator,
        finding.path,
        place.file,
        place.line,
        place.backward,
    )


def _examined(flow: FlowGraph) -> set[tuple[str, tuple[str, ...], str, int, bool]]:
    """Return the operators and lines whose results were examined in a process."""
    return {
        (node.operator, node.path, node.place.file, node.place.line, node.place.backward)
        for node in flow.nodes
        if node.written_bytes > 0
    }


def _contradicting(
    found: Sequence[tuple[_Member, ValueFinding]],
    examined: Sequence[set[tuple[str, tuple[str, ...], str, int, bool]]],
) -> tuple[int, ...]:
    having = {member.number for member, _ in found}
    site = _cause(found[0][1])[1:]
    return tuple(
        number for number, sites in enumerate(examined) if number not in having and site in sites
    )


def _joined(
    found: Sequence[tuple[_Member, ValueFinding]], contradicting: tuple[int, ...]
) -> ValueFinding:
    member, first = found[0]
    findings = [finding for _, finding in found]
    modules: Counter[str] = Counter()
    for finding in findings:
        modules.update(finding.modules)
    return replace(
        first,
        modules=dict(modules),
        count=sum(finding.count for finding in findings),
        steps=tuple(sorted({step for finding in findings for step in finding.steps})),
        bytes_wasted=sum(finding.bytes_wasted for finding in findings),
        bytes_written=sum(finding.bytes_written for finding in findings),
        proof=_weakest([finding.proof for finding in findings], contradicting),
        worth=first.worth if member.number == 0 else Worth(unavailable=NOT_TIMED),
        node=member.nodes.get(first.node, -1),
        processes=tuple(
            FindingInProcess(
                process=one.number,
                count=finding.count,
                steps=len(finding.steps),
                bytes_wasted=finding.bytes_wasted,
                bytes_written=finding.bytes_written,
                certainty=finding.proof.certainty,
                why=finding.proof.why,
            )
            for one, finding in found
        ),
        contradicted_by=contradicting,
    )


def _weakest(proofs: Sequence[Proof], contradicting: tuple[int, ...]) -> Proof:
    """Return the proof with the weakest certainty; at most likely if a process contradicts it."""
    proof = max(proofs, key=lambda one: _STRENGTH.index(one.certainty))
    if not contradicting or proof.certainty not in (Certainty.PROVEN, Certainty.TESTED):
        return proof
    count = len(contradicting)
    runs = "1 other process runs" if count == 1 else f"{count} other processes run"
    why = f"{runs} the same operator at this line without it"
    return replace(proof, certainty=Certainty.LIKELY, why=why)


def _joined_flow(flows: Sequence[FlowGraph]) -> tuple[FlowGraph, list[dict[int, int]]]:
    """Return one graph with the same operators at the same lines as one node, and the new numbers of the nodes."""
    keys: dict[_Node, int] = {}
    calls: Counter[int] = Counter()
    written: Counter[int] = Counter()
    edges: dict[tuple[int, int], tuple[int, int]] = {}
    classes: dict[str, str] = {}
    numbers: list[dict[int, int]] = []
    for flow in flows:
        new: dict[int, int] = {}
        for node in flow.nodes:
            number = new[node.id] = keys.setdefault(
                (node.operator, node.place, node.path), len(keys)
            )
            calls[number] += node.calls
            written[number] += node.written_bytes
        for edge in flow.edges:
            pair = new.get(edge.writer, -1), new.get(edge.reader, -1)
            count, size = edges.get(pair, (0, 0))
            edges[pair] = count + edge.count, size + edge.bytes
        classes.update(flow.classes)
        numbers.append(new)
    nodes = tuple(
        FlowNode(
            id=number,
            operator=operator,
            place=place,
            path=path,
            calls=calls[number],
            written_bytes=written[number],
        )
        for (operator, place, path), number in keys.items()
    )
    joined = tuple(
        FlowEdge(writer=writer, reader=reader, count=count, bytes=size)
        for (writer, reader), (count, size) in edges.items()
    )
    return FlowGraph(nodes=nodes, edges=joined, classes=classes), numbers


def _notes(members: Sequence[_Member], shown: Collection[str]) -> list[str]:
    """Return the notes of child processes that are not shown yet, equal ones once."""
    texts = dict.fromkeys(note for member in members for note in member.profile.notes)
    return [f"{_PREFIX}{text}" for text in texts if text not in shown]
