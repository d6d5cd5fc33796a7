"""Findings of several processes as one: sums, processes, and a certainty that joining never raises."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.core.records import decode, encode
from torchyard.values.joined_findings import joined_profile
from torchyard.values.model import (
    Certainty,
    FlowEdge,
    FlowGraph,
    FlowNode,
    Place,
    ProfiledProcess,
    Proof,
    ValueFinding,
    ValueProfile,
    Worth,
    read_profile,
    write_profile,
)
from torchyard.values.patching.candidates import patch_of
from torchyard.values.patching.model import NotProposed
from torchyard.values.patching.source_file import SourceFile
from torchyard.values.process_parts import Part, Parts, read_parts
from torchyard.values.report.findings_page import values_html
from torchyard.values.report.findings_text import values_json, values_markdown, values_text

PLACE = Place(file="train.py", line=7)
OTHER = Place(file="train.py", line=8)


def finding(certainty: Certainty = Certainty.PROVEN, *, count: int = 4) -> ValueFinding:
    return ValueFinding(
        pattern="dead initialisation",
        operator="aten::zeros",
        place=PLACE,
        count=count,
        steps=(1, 2),
        bytes_wasted=count * 1024,
        bytes_written=count * 1024,
        proof=Proof(certainty=certainty, why=f"why {certainty.value}"),
        worth=Worth(operator_ns=5.0),
        node=0,
    )


def profile(*findings: ValueFinding, examined: bool = True, steps: int = 3) -> ValueProfile:
    nodes = (
        FlowNode(
            id=0,
            operator="aten::zeros",
            place=PLACE,
            calls=4,
            written_bytes=4096 if examined else 0,
        ),
        FlowNode(id=1, operator="aten::add", place=OTHER, calls=1, written_bytes=8),
    )
    return ValueProfile(
        format=1,
        state="finished",
        torch="2.13",
        program=("train.py",),
        steps=steps,
        counts={"operators": 10, "written_bytes": 4096, "steps_surveyed": 1},
        findings=findings,
        flow=FlowGraph(nodes=nodes, edges=(FlowEdge(writer=0, reader=1, count=1, bytes=8),)),
        notes=("a note",),
    )


def rank(number: int, state: str = "finished") -> ProfiledProcess:
    return decode(ProfiledProcess, {"kind": "rank", "state": state, "rank": number}, where="test")


def joined(*profiles: ValueProfile, state: str = "finished") -> ValueProfile:
    children = tuple(
        Part(process=rank(number, state), profile=one)
        for number, one in enumerate(profiles[1:], start=1)
    )
    return joined_profile(profiles[0], Parts(main=rank(0), children=children))


def test_a_program_of_one_process_is_unchanged() -> None:
    one = profile(finding())
    assert joined_profile(one, Parts(main=rank(0))) is one


def test_counts_and_bytes_are_sums_with_the_part_of_each_process() -> None:
    both = joined(profile(finding(count=4)), profile(finding(count=6)))
    (found,) = both.findings
    assert (found.count, found.bytes_wasted) == (10, 10 * 1024)
    assert [(one.process, one.count) for one in found.processes] == [(0, 4), (1, 6)]
    assert both.counts == {"operators": 20, "written_bytes": 8192, "steps_surveyed": 1}
    assert both.steps == 3
    assert both.notes == ("a note",)


def test_operators_at_the_same_line_are_one_node() -> None:
    both = joined(profile(finding()), profile(finding()))
    assert [(node.operator, node.calls) for node in both.flow.nodes] == [
        ("aten::zeros", 8),
        ("aten::add", 2),
    ]
    assert [(edge.count, edge.bytes) for edge in both.flow.edges] == [(2, 16)]


@pytest.mark.parametrize("pair", list(itertools.product(Certainty, Certainty)))
def test_the_weakest_certainty_counts(pair: tuple[Certainty, Certainty]) -> None:
    order = list(Certainty)
    (found,) = joined(*(profile(finding(one)) for one in pair)).findings
    weakest = max(pair, key=order.index)
    assert found.proof.certainty is weakest
    assert found.proof.why == f"why {weakest.value}"
    assert [one.certainty for one in found.processes] == list(pair)


@pytest.mark.parametrize("certainty", list(Certainty))
def test_a_process_that_contradicts_a_finding_prevents_a_proof(certainty: Certainty) -> None:
    both = joined(profile(finding(certainty)), profile())
    (found,) = both.findings
    assert found.contradicted_by == (1,)
    strong = certainty in (Certainty.PROVEN, Certainty.TESTED)
    assert found.proof.certainty is (Certainty.LIKELY if strong else certainty)
    assert "only in rank 0 of 2" in values_text(both)
    assert "not in rank 1, which ran the same operator at this line" in " ".join(
        values_text(both).split()
    )


def test_a_process_that_did_not_examine_the_line_contradicts_nothing() -> None:
    (found,) = joined(profile(finding()), profile(examined=False)).findings
    assert found.contradicted_by == ()
    assert found.proof.certainty is Certainty.PROVEN


def test_findings_of_a_killed_process_are_at_most_likely() -> None:
    (found,) = joined(profile(finding()), profile(finding()), state="killed").findings
    assert found.proof.certainty is Certainty.LIKELY
    assert "killed" in found.proof.why


def test_only_the_main_process_has_prices() -> None:
    both = joined(profile(finding()), profile(replace(finding(), place=OTHER)))
    assert both.findings[0].worth.operator_ns == 5.0
    assert both.findings[1].worth.operator_ns is None
    assert "is not timed" in both.findings[1].worth.unavailable


def test_another_line_pattern_or_operator_is_another_finding() -> None:
    others = (
        finding(),
        replace(finding(), place=replace(PLACE, line=9)),
        replace(finding(), place=replace(PLACE, backward=True)),
        replace(finding(), operator="aten::ones"),
        replace(finding(), pattern="duplicate"),
        replace(finding(), path=("aten::outer",)),
    )
    assert len(joined(profile(finding()), profile(*others)).findings) == len(others)


def test_all_formats_show_the_processes(tmp_path: Path) -> None:
    both = joined(*(profile(finding(Certainty.TESTED, count=count)) for count in (4, 6)))
    amounts = "in ranks 0 and 1 of 2 (rank 0: 4 calls, 4.00 KiB; rank 1: 6 calls, 6.00 KiB)"
    assert amounts in values_text(both)
    assert "2 ranks; totals are sums over them" in values_text(both)
    assert "rank 1: 6 calls" in values_markdown(both)
    assert amounts in values_html(both)
    assert '"kind": "rank"' in values_json(both)
    assert read_profile(write_profile(tmp_path, both)) == both


def test_profiles_without_processes_stay_readable() -> None:
    old = encode(profile(finding()))
    del old["processes"]
    for one in old["findings"]:
        del one["processes"], one["contradicted_by"]
    assert decode(ValueProfile, old, where="old") == profile(finding())


def test_processes_that_left_nothing_are_listed(tmp_path: Path) -> None:
    started = '{"kind": "loader", "name": "worker", "parent": "main", "pid": 999999999}'
    (tmp_path / "a.started.json").write_text(started)
    (tmp_path / "b.started.json").write_text(started)
    (tmp_path / "b.process.json").write_text(
        '{"kind": "loader", "pid": 999999999, "state": "running", "worker": 1, "torch": true}'
    )
    (tmp_path / "c.started.json").write_text("not JSON")
    parts = read_parts(tmp_path, profile())
    assert [(part.process.kind, part.process.state) for part in parts.children] == [
        ("loader", "missing"),
        ("loader", "killed"),
        ("child", "missing"),
    ]
    text = " ".join(values_text(joined_profile(profile(), parts)).split())
    assert "2 of 2 DataLoader workers: 1 started, but left no result, 1 killed" in text
    assert "1 of 1 child process: 1 started" in text


def test_no_patch_is_proposed_for_child_processes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n")
    (found,) = joined(profile(finding()), profile(finding())).findings
    with pytest.raises(NotProposed, match="several ranks"):
        patch_of(found, SourceFile.read(script), main=script, root=tmp_path)
