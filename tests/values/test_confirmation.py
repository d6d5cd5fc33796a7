"""Findings after a run without profiling: confirmed, or withdrawn with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged
from torchyard.values.model import Certainty, Place, Proof, ProofTest, ValueFinding, ValueProfile
from torchyard.values.profiled_run import chains_to_confirm, confirm, step_ns, unconfirmed
from torchyard.values.target_run import CountedChain, NativeRun, read_native_run
from torchyard.worker.values.proofs.certainty import (
    NATIVE_OPERATOR,
    NATIVE_PROGRAM,
    POISON,
    SAME_AGAIN,
    SEMANTICS,
)

PATH = ("aten::mse_loss_backward", "aten::zeros_like")
PLACE = Place(file="train.py", line=7, backward=True)


def proof_of(*failed: str) -> Proof:
    tests = [
        ProofTest(test=POISON, passed=True, inputs=inputs, poison=poison)
        for inputs in ("own", "random")
        for poison in ("NaN", "huge")
    ]
    tests += [
        ProofTest(test=name, passed=name not in failed, detail=f"{name} failed")
        for name in (SAME_AGAIN, NATIVE_OPERATOR)
    ]
    return Proof(tests=tuple(tests))


def finding(proof: Proof, operator: str = "aten::zero_") -> ValueFinding:
    return ValueFinding(
        pattern="dead initialisation", operator=operator, place=PLACE, path=PATH, proof=proof
    )


def profile(*findings: ValueFinding) -> ValueProfile:
    return ValueProfile(format=1, state="finished", torch="2.13", findings=findings)


def native(*chains: tuple[str, ...], **more: object) -> NativeRun:
    run = NativeRun(
        format=1,
        state="finished",
        steps=5,
        recorded_steps=1,
        step_ns=1e6,
        chains=tuple(CountedChain(chain=chain, count=2) for chain in chains),
    )
    return replace(run, **more)  # type: ignore[arg-type]


def test_trials_count_for_work_that_exists_without_profiling() -> None:
    chain = ("MseLossBackward0", *PATH, "aten::zero_")
    found = confirm(profile(finding(proof_of())), native(chain)).findings[0]
    assert found.proof.certainty is Certainty.TESTED
    assert found.proof.tests[-1].test == NATIVE_PROGRAM
    assert "2 times" in found.proof.tests[-1].detail


def test_work_that_exists_only_while_profiled_is_dropped() -> None:
    others = [("aten::zero_",), (*PATH, "aten::fill_"), (PATH[0], "aten::zero_")]
    found = confirm(profile(finding(proof_of())), native(*others)).findings[0]
    assert found.proof.certainty is Certainty.LIKELY
    assert "without the profiler the program does not run aten::mse_loss" in found.proof.why


def test_a_native_run_does_not_override_a_failed_test() -> None:
    chain = (*PATH, "aten::zero_")
    found = confirm(profile(finding(proof_of(NATIVE_OPERATOR))), native(chain)).findings[0]
    assert (found.proof.certainty, found.proof.why) == (
        Certainty.LIKELY,
        "native operator failed",
    )


def test_findings_that_were_not_tested_stay_likely() -> None:
    plain = ValueFinding(pattern="duplicate", operator="aten::mm", place=PLACE)
    found = confirm(profile(plain), native(("aten::mm",))).findings[0]
    assert found.proof.certainty is Certainty.LIKELY
    gone = confirm(profile(plain), native()).findings[0]
    assert "does not run aten::mm" in gone.proof.why


def test_the_reason_why_nothing_was_tested_is_kept() -> None:
    plain = finding(Proof(why="not tested: it draws random numbers"))
    found = confirm(profile(plain), native((*PATH, "aten::zero_"))).findings[0]
    assert found.proof.certainty is Certainty.LIKELY
    assert found.proof.why == "not tested: it draws random numbers"


def test_a_proof_needs_the_run_without_profiling() -> None:
    semantics = ProofTest(test=SEMANTICS, passed=True, detail="3 of 3 calls: it is known")
    given = finding(replace(proof_of(), tests=(*proof_of().tests, semantics)))
    there = confirm(profile(given), native((*PATH, "aten::zero_"))).findings[0]
    assert there.proof.certainty is Certainty.PROVEN
    assert "it is known" in there.proof.why
    gone = confirm(profile(given), native()).findings[0]
    assert gone.proof.certainty is Certainty.LIKELY


def test_confirming_twice_keeps_one_test_of_it() -> None:
    chain = (*PATH, "aten::zero_")
    once = confirm(profile(finding(proof_of())), native())
    twice = confirm(once, native(chain)).findings[0]
    assert [t.test for t in twice.proof.tests].count(NATIVE_PROGRAM) == 1
    assert twice.proof.certainty is Certainty.TESTED


def test_no_native_run_no_proof() -> None:
    found = unconfirmed(profile(finding(proof_of())), "the program did not finish")
    assert found.findings[0].proof.certainty is Certainty.LIKELY
    assert found.findings[0].proof.why == "the program did not finish"
    assert "the program did not finish" in found.notes


def test_each_chain_is_searched_once() -> None:
    twice = profile(finding(proof_of()), finding(proof_of()), finding(proof_of(), "aten::add_"))
    assert chains_to_confirm(twice) == [[*PATH, "aten::add_"], [*PATH, "aten::zero_"]]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (native(), 1e6),
        (native(step_ns=None), None),
        (native(step_ns=None, steps=0, program_ns=5e9), 5e9),
        (native(step_ns=None, steps=0, program_ns=5e9, recorded_whole=True), None),
    ],
)
def test_the_time_of_a_step_is_never_that_of_a_recorded_one(
    run: NativeRun, expected: float | None
) -> None:
    assert step_ns(run)[0] == expected


def test_occurrences_needs_the_whole_chain_at_the_end() -> None:
    run = native(("a", "b", "c"), ("b", "c"), ("c",), ("b", "c", "d"))
    assert run.occurrences(("b", "c")) == 4
    assert run.occurrences(("c",)) == 6
    assert run.occurrences(("a", "c")) == 0


def test_a_native_file_that_is_broken_or_newer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "native.json"
    for text in ("", "[1]", "{}", '{"format": 99, "state": "finished"}'):
        path.write_text(text)
        with pytest.raises(ResultsDamaged):
            read_native_run(path)
    with pytest.raises(ResultsDamaged):
        read_native_run(tmp_path / "missing.json")
    path.write_text(json.dumps({"format": 1, "state": "finished", "step_ns": None, "new": 1}))
    assert read_native_run(path).step_ns is None


def test_recipes_survive_the_profile_file() -> None:
    one = replace(finding(proof_of()), recipe={"wasted": [{"operator": "aten::zero_"}]})
    back = decode(ValueProfile, encode(profile(one)), where="profile")
    assert back.findings[0].recipe == one.recipe


def test_a_step_has_a_time_on_each_clock() -> None:
    busy = replace(native(), steps=4, step_ns=500e6, step_cpu_ns=30e6)
    assert step_ns(busy) == (500e6, 30e6)
    whole = replace(native(), steps=0, step_ns=None, program_ns=9e9, program_cpu_ns=2e9)
    assert step_ns(whole) == (9e9, 2e9)
    assert step_ns(replace(whole, recorded_whole=True)) == (None, None)
