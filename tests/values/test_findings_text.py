"""Value profiles as text, Markdown and JSON. UPDATE_GOLDEN=1 rewrites the golden files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.values.hostile_values import HOSTILE, hostile_profile
from tests.values.sample_profile import MIB, TRAIN, place, sample_findings, sample_profile, saving
from torchyard.values.model import (
    Certainty,
    FlowGraph,
    Proof,
    ProofTest,
    ValueFinding,
    ValueProfile,
    Worth,
)
from torchyard.values.report.descriptions import (
    MARKS,
    chain_text,
    clipped,
    code_spans,
    fix_speedup_text,
    notes_of_profile,
    ordered,
    place_text,
    result_text,
    scope_rows,
    short_file,
    state_sentence,
    steps_text,
    suggestion_text,
    summary_sentence,
    time_text,
)
from torchyard.values.report.findings_page import values_html
from torchyard.values.report.findings_text import (
    SCHEMA,
    SCHEMA_VERSION,
    values_json,
    values_markdown,
    values_text,
)

GOLDEN = Path(__file__).parents[1] / "golden"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")
FORMATS = {"txt": values_text, "md": values_markdown, "json": values_json}
BARE = ValueProfile(format=1, state="finished", torch="2.13.0")


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_bytes(text.encode())
    assert text.encode() == path.read_bytes(), f"{name} differs; UPDATE_GOLDEN=1 accepts it"


def finding(**changes: Any) -> ValueFinding:
    fields: dict[str, Any] = {"pattern": "duplicate", "operator": "aten::mm", "place": place(1)}
    return ValueFinding(**{**fields, **changes})


@pytest.mark.parametrize("ending", FORMATS)
def test_golden(ending: str) -> None:
    check(f"values.{ending}", FORMATS[ending](sample_profile()))


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("text", HOSTILE)
def test_texts_from_outside_are_escaped(ending: str, text: str) -> None:
    texts = FORMATS[ending](hostile_profile(text))
    texts.encode()
    assert not CONTROLS.search(texts)
    # A huge name is cut wherever it is shown; data formats keep it whole.
    assert len(texts) < (2e5 if ending != "json" else 2e7)
    if ending == "json":
        assert json.loads(texts)["program"][0] == text
    else:
        assert max(map(len, texts.splitlines())) < 6000


@pytest.mark.parametrize("text", HOSTILE)
def test_markdown_keeps_its_table_and_makes_no_html(text: str) -> None:
    texts = values_markdown(hostile_profile(text))
    rows = [line for line in texts.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(sample_findings())
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == 9
    outside_of_code = re.sub(r"`[^`\n]*`", "", texts.replace("\\`", ""))
    assert set(re.findall(r"<(/?\w+)", outside_of_code)) == {
        "details",
        "summary",
        "/summary",
        "/details",
    }
    assert "@everyone" not in outside_of_code


def test_the_most_expensive_comes_first_then_the_largest() -> None:
    profile = replace(
        BARE,
        findings=(
            finding(detail="small", bytes_wasted=1),
            finding(detail="large", bytes_wasted=9),
            finding(detail="cheap", bytes_wasted=2, worth=Worth(per_step_ns=5.0)),
            finding(detail="dear", bytes_wasted=1, worth=Worth(per_step_ns=7.0)),
            finding(detail="unknown", bytes_wasted=10, worth=Worth(per_step_ns=float("nan"))),
            finding(
                detail="sure", bytes_wasted=9, proof=Proof(certainty=Certainty.PROVEN, why="so")
            ),
        ),
    )
    texts = [found.detail for found in ordered(profile)]
    assert texts == ["dear", "cheap", "unknown", "sure", "large", "small"]


def test_summary_line() -> None:
    assert " ".join(values_text(sample_profile()).split()).startswith(
        "6 findings (2 proven, 3 likely, 1 input-dependent). Fixing 3 of them: estimated saving "
        "0.71-27.1% of a step (CPU time), no upper bound. 3 not measured."
    )
    one = replace(BARE, findings=(finding(bytes_wasted=MIB),))
    assert summary_sentence(one) == (
        "1 finding (1 likely). It wastes 1.00 MiB of writes per step; the time was not measured."
    )
    known = saving(5e6, 8e6, bound=9e6)
    timed = replace(one, saving=known, findings=(finding(worth=Worth(saving=known)),))
    assert summary_sentence(timed).endswith(
        "Fixing it: estimated saving 11.9-19.0% of a step (CPU time), upper bound 21.4%."
    )
    assert "of the program (CPU time), upper bound" in summary_sentence(replace(timed, steps=1))
    both = replace(timed, findings=timed.findings * 2)
    assert "Fixing all of them: estimated saving" in summary_sentence(both)


def test_no_bound_is_claimed_that_was_not_measured() -> None:
    for render in (*FORMATS.values(), values_html):
        assert not re.search("(saves?|gain|step) at most", render(sample_profile()))
    known = saving(1e6, 2e6, unpriced=("aten::mm",))
    assert chain_text(Worth(saving=known)).endswith(
        "no upper bound; 1 operator call per step; not covered: aten::mm"
    )
    noisy = Worth(unavailable="noisy machine: repeats differ by a factor of 3")
    assert chain_text(noisy) == "time not measured: noisy machine: repeats differ by a factor of 3"
    assert time_text(noisy) == "–"


def test_no_findings_and_no_operators_are_distinguished() -> None:
    assert values_text(BARE).startswith("No findings, because no operator was observed.\n")
    looked = replace(BARE, counts={"operators": 1200})
    assert summary_sentence(looked) == "No wasted work was found in 1,200 operators."
    for render in FORMATS.values():
        assert render(BARE)


@pytest.mark.parametrize(
    ("state", "code", "texts"),
    [
        ("finished", 0, ""),
        ("finished", 3, "Its exit code is 3."),
        ("interrupted", None, "The program was interrupted."),
        (
            "crashed",
            1,
            "The program failed. The report shows the findings until then. Its exit code is 1.",
        ),
        ("running", None, "still running"),
    ],
)
def test_a_program_that_did_not_finish_is_reported(
    state: Any, code: int | None, texts: str
) -> None:
    sentence = state_sentence(replace(BARE, state=state, exit_code=code))
    assert texts in sentence
    assert bool(texts) == bool(sentence)
    if sentence:
        joined = " ".join(values_text(replace(BARE, state=state, exit_code=code)).split())
        assert sentence in joined


def test_hidden_findings_are_counted() -> None:
    many = replace(BARE, findings=tuple(finding(bytes_wasted=n) for n in range(500)))
    assert "460 smaller findings are not shown" in values_text(many)
    assert "400 smaller findings" in values_markdown(many)
    assert len(json.loads(values_json(many))["findings"]) == 500
    assert "smaller findings" not in values_text(sample_profile())


def test_lines_fit_the_terminal() -> None:
    for width in (60, 100, 140):
        lines = values_text(sample_profile(), width=width).splitlines()
        table = [line for line in lines if not line.startswith(" ") or line[:4].strip()]
        assert max(len(line) for line in lines if line not in table) <= width


def test_the_scope_lists_what_was_not_examined() -> None:
    rows = scope_rows(sample_profile())
    texts = " / ".join(f"{name}: {text}" for name, text in rows)
    for words in (
        "steps: 4 profiled, 5 skipped, in 12.2 s",
        "deep: including operators called inside",
        "every 2nd step, first step skipped",
        "2.00 MiB (0.17%) in tensors below 4.00 KiB",
        "overwritten while the memory for copies (256 MiB) was full",
        "4 tensors without strided memory",
        "2.13.0+cpu on cpu, 2 threads",
    ):
        assert words in texts, words


def test_options_and_counts_that_are_odd_or_missing() -> None:
    odd = replace(
        BARE,
        counts={"written_bytes": 0, "small_bytes": 5, "newly_counted": 7},
        options={
            "every": "three",
            "first_steps": 3,
            "last_step": 9,
            "most_bytes": MIB,
            "least_bytes": None,
            "prove": False,
            "approximate": True,
        },
        threads=1,
        flow=FlowGraph(),
    )
    texts = dict(scope_rows(odd))
    assert texts["sampling"] == (
        "first 3 steps skipped, nothing after step 9, tensors above 1.00 MiB sampled"
    )
    assert texts["not examined"] == "newly counted: 7"
    assert "findings are at most likely" in texts["proofs"]
    assert "hints" in texts["approximate"]
    assert texts["flow graph"] == "not recorded"
    assert texts["torch"].endswith("1 thread")
    assert dict(scope_rows(BARE))["sampling"] == "none: every step, whole tensors"


def test_notes_are_bounded() -> None:
    noted = notes_of_profile(replace(BARE, notes=tuple(f"note {n}" for n in range(80))))
    assert len(noted) == 51
    assert noted[-1] == "and 30 more notes"


@pytest.mark.parametrize(
    ("file", "short"),
    [
        ("train.py", "train.py"),
        ("/a/b/train.py", "/a/b/train.py"),
        ("/home/x/y/z/train.py", "…/y/z/train.py"),
        ("/usr/lib/python3/site-packages/timm/models/resnet.py", "timm/models/resnet.py"),
        ("", ""),
    ],
)
def test_file_names_are_shortened(file: str, short: str) -> None:
    assert short_file(file) == short


def test_locations() -> None:
    assert place_text(place(3, file="a.py")) == "a.py:3"
    assert place_text(place(3, "m", file="a.py", backward=True)) == "a.py:3 (m, backward)"
    assert place_text(place(0, file="")) == "unknown location"


def test_steps_are_runs() -> None:
    assert steps_text((1, 2, 3, 7, 9, 10)) == "1-3, 7, 9-10"
    assert steps_text(()) == ""
    assert steps_text(tuple(range(0, 1000, 2))).endswith(" and more")


def test_long_texts_are_cut_and_short_ones_whole() -> None:
    assert clipped("short") == "short"
    assert clipped("x" * 200, 10) == "x" * 9 + "…"
    assert clipped(" \n" * 10_000 + "late", 10).endswith("…")
    assert len(clipped("é" * 161)) == 160


def test_code_in_sentences() -> None:
    assert code_spans("use `a` or `b`") == [
        (False, "use "),
        (True, "a"),
        (False, " or "),
        (True, "b"),
    ]
    assert code_spans("an odd ` one") == [(False, "an odd ` one")]
    assert "Use `unbind` in place" in values_markdown(
        replace(
            BARE,
            findings=(finding(suggestion="Use `unbind` in place of it."),),
        )
    )


def test_suggestions_come_from_the_profile_else_from_the_pattern() -> None:
    assert suggestion_text(finding(suggestion="Do this.")) == "Do this."
    assert "Compute this once" in suggestion_text(finding())
    assert suggestion_text(finding(pattern="of a newer worker")) == ""
    odd = finding(pattern="heavy type", evidence={"fits": ["not", "a", "text"], "first": 3})
    assert suggestion_text(odd)


def test_times_that_are_not_numbers_are_absent() -> None:
    assert time_text(Worth(per_step_ns=float("inf"))) == "–"
    assert time_text(Worth(saving=saving(float("nan"), 1.0))) == "–"
    assert time_text(Worth(saving=saving(2e6, 3e6))) == "2.00-3.00 ms (4.8-7.1%)"
    assert time_text(Worth(saving=saving(2e3, 3e6))) == "2.00 µs to 3.00 ms (0.00-7.1%)"
    assert time_text(Worth(saving=saving(2e6, 2e6))) == "2.00 ms (4.8%)"


def test_a_profile_of_an_older_version_has_one_number() -> None:
    assert time_text(Worth(per_step_ns=2e6)) == "about 2.00 ms"
    assert time_text(Worth(per_step_ns=2e6, share_of_step=0.5)) == "about 2.00 ms (50.0%)"


def test_every_certainty_has_its_own_symbol() -> None:
    assert set(MARKS) == set(Certainty)
    assert len(set(MARKS.values())) == len(Certainty)


def test_results_of_proof_tests() -> None:
    assert result_text(ProofTest(test="poison", passed=True)) == "no result changed"
    assert result_text(ProofTest(test="skip", passed=False)) == "a result changed"
    assert result_text(ProofTest(test="of tomorrow", passed=False)) == "failed"


def test_json_is_versioned_and_whole() -> None:
    document = json.loads(values_json(sample_profile()))
    assert document["schema"] == SCHEMA
    assert document["schema_version"] == SCHEMA_VERSION == 1
    assert document["summary"]["certainty"] == {
        "proven": 2,
        "tested": 0,
        "likely": 3,
        "input-dependent": 1,
    }
    assert document["summary"]["upper_bound_share"] is None
    assert document["summary"]["saving"]["high_share"] == pytest.approx(0.271, abs=1e-3)
    first = document["findings"][0]
    assert first["place"] == {
        "file": TRAIN,
        "line": 21,
        "function": "main",
        "module": "",
        "backward": False,
    }
    assert first["bytes_wasted_per_step"] == 72 * MIB
    assert first["suggestion"].startswith("Release gradients")
    assert "recipe" not in first
    assert document["looked_at"]["flow_nodes"] == len(sample_profile().flow.nodes)


def test_json_has_no_non_finite_numbers() -> None:
    odd = replace(
        BARE,
        step_ns=float("nan"),
        findings=(finding(evidence={"range": [float("inf"), {"x": float("nan")}]}),),
    )
    document = json.loads(values_json(odd), parse_constant=pytest.fail)
    assert document["findings"][0]["evidence"] == {"range": [None, {"x": None}]}


def test_the_scope_reports_omitted_findings_and_trials() -> None:
    counts = {
        "operators": 10,
        "other_threads": 2,
        "other_thread_operators": 1234,
        "loader_processes": 4,
        "child_processes": 1,
        "steps_surveyed": 3,
        "trials": 1,
        "not_tried": 2,
    }
    rows = scope_rows(replace(BARE, steps=6, counts=counts, findings_left_out=1500))
    omitted = [text for name, text in rows if name in {"not examined", "not reported"}]
    assert omitted == [
        "2 operators with findings that were not tested; see the notes",
        "1,500 occurrences beyond the limit of stored findings: the list is incomplete",
    ]
    assert dict(rows)["steps"].startswith("5 profiled: 2 in full, 3 checked for changes only")
    assert dict(rows)["trials"].startswith("1 operator re-executed")


def test_a_program_without_steps_counts_as_one_step() -> None:
    rows = dict(scope_rows(replace(BARE, steps=1)))
    assert rows["steps"].startswith("no step boundaries observed: the whole program counts as one")


def test_speedups_name_what_they_refer_to() -> None:
    assert fix_speedup_text(Worth()) == ""
    assert fix_speedup_text(Worth(gain=1.2)) == "with the fix, the operator is 1.2x as fast"
    whole = Worth(gain=1.2, method="best of 9; gain: steps of the whole program, in turns")
    assert fix_speedup_text(whole) == "with the fix, a whole step is 1.2x as fast"
