"""Pairs of runs that differ in exactly one field: never called equal, and the field is named.

Every field of a variant, an environment, a workload and the settings is changed in turn; fields are
taken from the dataclasses, so that a new one is tested without being named here.
"""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.results.simulated_runs import FACTS, MACHINE, MATMUL, STUDY, Plan, write_session
from torchyard.core.comparison import Verdict
from torchyard.core.study import Environment, MeasureSettings, Study, Target, Variant, Workload
from torchyard.errors import UsageError
from torchyard.results.baselines import read_baseline_file, write_baseline_file
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import CrossRow
from torchyard.results.compare.sides import Rules, Side
from torchyard.results.compare.two_runs import baseline_facts, candidate_facts
from torchyard.results.gate.decision import Gate, run_gate
from torchyard.results.run_reader import Run

RULES = Rules(session_sd=0.001)
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def main(tmp_path_factory: pytest.TempPathFactory) -> Run:
    plan = Plan(study=replace(STUDY, candidates=STUDY.candidates[:1], workloads=(MATMUL,)))
    return write_session(tmp_path_factory.mktemp("identity") / "main", plan)


def changed(run: Run, **changes: Any) -> Run:
    """Another run of the same numbers; `info` is merged."""
    info = {**run.info, **changes.pop("info", {})}
    return replace(run, id=f"run-{next(NUMBERS)}", info=info, **changes)


def with_baseline(run: Run, **changes: Any) -> Run:
    study = replace(run.study, baseline=replace(run.study.baseline, **changes))
    return changed(run, study=study)


def with_environment(run: Run, **changes: Any) -> Run:
    return with_baseline(run, environment=replace(run.study.baseline.environment, **changes))


def with_settings(run: Run, **changes: Any) -> Run:
    return changed(run, study=replace(run.study, settings=replace(run.study.settings, **changes)))


def with_facts(run: Run, **changes: Any) -> Run:
    return changed(run, info={"targets": {"here+default": {**FACTS, **changes}}})


def with_workload(run: Run, **changes: Any) -> Run:
    """Under the label that it had: labels are for people, and two workloads may share one."""

    class SameLabel(Workload):
        @property
        def label(self) -> str:
            return MATMUL.label

    work = SameLabel(**{**vars(MATMUL), **changes})
    return changed(run, comparisons=tuple(replace(row, workload=work) for row in run.comparisons))


def with_metrics(run: Run, **changes: Any) -> Run:
    return changed(
        run,
        comparisons=tuple(
            replace(row, baseline_metrics=replace(row.baseline_metrics, **changes))
            for row in run.comparisons
        ),
    )


def compared(one: Run, other: Run) -> CrossRow:
    """The only row, both ways round: what forbids a verdict does so in either direction."""
    rows = [
        compare_sides(Side(text="A", runs=(a,)), Side(text="B", runs=(b,)), RULES).rows[0]
        for a, b in ((one, other), (other, one))
    ]
    assert rows[0].support == rows[1].support
    return rows[0]


def test_the_same_run_again_is_common(main: Run) -> None:
    row = compared(main, changed(main))
    assert (row.support, row.alike, row.reasons) == ("common baseline", True, ())
    assert row.verdict is not None


VARIANT = {
    "backend": "aot_eager",
    "precision": "bfloat16",
    "options": (("channels-last", True),),
    "file": "/somewhere/b.py:Net",
    "target": Target(name="here", python="/opt/yard/bin/python", variables=(("A", "1"),)),
    "environment": Environment(name="default", threads=2),
}
ENVIRONMENT = {
    "variables": (("KMP_BLOCKTIME", "0"),),
    "preload": ("/usr/lib/libtcmalloc.so.4",),
    "threads": 2,
    "cores": "0-3",
    "memory": "bind:0",
    "instances": 2,
}
SETTINGS = {
    "block_s": 0.2,
    "threads": 3,
    "seed": 1,
    "reseat": "off",
    "paired_layout": False,
    "start": "fresh",
    "flush_l2": True,
    "check_accuracy": False,
    "memory_limit_bytes": 2**30,
}
WORKLOAD = {
    "suite": "models",
    "name": "other",
    "mode": "training",
    "device": "cuda",
    "batch_size": 8,
    "optimizer_step": True,
    "eval_mode": True,
    "parameters": (("size", 256),),
    "ranks": 2,
    "nodes": 2,
}
FACT = {
    "torch": "2.9.1",
    "torch_git": "fedcba",
    "torch_config": "PyTorch built with: GCC 13",
    "torch_files": "0123",
    "python": "3.11.1",
    "threads": 2,
    "interop_threads": 7,
    "openmp": ["libiomp5.so"],
    "allocators": ["libtcmalloc.so.4"],
    "randomisation_off": True,
    "variables": {"KMP_BLOCKTIME": "abc"},
}
CASES = [
    *((with_baseline, name, value, "baseline differs in") for name, value in VARIANT.items()),
    *(
        (with_environment, name, value, "baseline differs in")
        for name, value in ENVIRONMENT.items()
    ),
    *(
        (with_settings, name, value, "conditions differ in setting")
        for name, value in SETTINGS.items()
    ),
    *((with_workload, name, value, "workload differs in") for name, value in WORKLOAD.items()),
    *((with_facts, name, value, "baseline differs in") for name, value in FACT.items()),
    (with_metrics, "batch_size", 8, "workload differs in batch size in use"),
    (with_metrics, "loss", "sum", "workload differs in loss in use"),
    (with_metrics, "flops", 2e9, "workload differs in operations"),
    (with_metrics, "moved_bytes", 1e9, "workload differs in bytes moved"),
]


def test_every_field_has_a_case() -> None:
    names = {"name", "python"}
    assert {f.name for f in dataclasses.fields(Variant)} - names == set(VARIANT)
    assert {f.name for f in dataclasses.fields(Environment)} - names == set(ENVIRONMENT)
    assert {f.name for f in dataclasses.fields(Workload)} == set(WORKLOAD)
    limits = {"start_limit_s", "step_limit_s", "block_limit_s"}
    assert {f.name for f in dataclasses.fields(MeasureSettings)} - limits == set(SETTINGS)


@pytest.mark.parametrize(("change", "name", "value", "words"), CASES)
def test_one_difference_is_never_common(
    main: Run, change: Any, name: str, value: Any, words: str
) -> None:
    row = compared(main, change(main, **{name: value}))
    assert (row.support, row.verdict, row.alike) == ("not supported", None, False)
    assert row.reasons[0].startswith(f"not comparable: {words}"), row.reasons


def test_what_differs_is_reported_with_both_values(main: Run) -> None:
    one, other = with_environment(main, cores="0-3"), with_environment(main, cores="0-7")
    assert compared(one, other).reasons == (
        "not comparable: baseline differs in cores (0-3 vs 0-7)",
    )


@pytest.mark.parametrize(
    "machine",
    [
        {"cpu": "Other 7000"},
        {"cores": "4"},
        {"architecture": "aarch64"},
        {"governor": "powersave"},
        {"kernel": "6.2.0"},
        {"tune": {"written": {"governor": "scaling_governor: powersave -> performance"}}},
    ],
)
def test_another_machine_or_setting_of_it_is_never_common(
    main: Run, machine: dict[str, Any]
) -> None:
    assert compared(main, changed(main, info={"machine": {**MACHINE, **machine}})).support == (
        "not supported"
    )


def test_quieted_machines_are_equal_only_with_equal_settings(main: Run) -> None:
    def tuned(text: str) -> Run:
        tune = {"written": {"clocks": text}}
        return changed(main, info={"machine": {**MACHINE, "tune": tune}})

    low, high = tuned("clock: 300 -> 1200"), tuned("clock: 300 -> 1800")
    assert compared(low, high).support == "not supported"
    assert compared(low, tuned("clock: 500 -> 1200")).support == "common baseline"


@pytest.mark.parametrize("method", [1, 3, None])
def test_another_method_is_never_common(main: Run, method: int | None) -> None:
    info = {key: value for key, value in main.info.items() if key != "method"}
    other = replace(main, id="other", info=info if method is None else {**info, "method": method})
    row = compared(main, other)
    assert row.reasons[0].startswith("not comparable: conditions differ in method version")


def test_unknown_values_are_not_equal(main: Run) -> None:
    for run in (
        with_facts(main, torch=None),
        changed(main, info={"targets": {}}),
        changed(main, info={"machine": {}}),
        changed(main, comparisons=tuple(replace(r, baseline="gone") for r in main.comparisons)),
    ):
        assert compared(run, changed(run)).support == "not supported"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Texts that would read alike when joined by blanks, commas or equals signs.
        ({"variables": (("A", "1 B=2"),)}, {"variables": (("A", "1"), ("B", "2"))}),
        ({"preload": ("/a.so, /b.so",)}, {"preload": ("/a.so", "/b.so")}),
        ({"cores": ""}, {"cores": "none"}),
        ({"threads": None}, {"threads": 1}),
    ],
)
def test_values_with_equal_text_are_distinguished(
    main: Run, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert compared(with_environment(main, **one), with_environment(main, **other)).support == (
        "not supported"
    )


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (1, "1"), (1, 1.0), ("true", True), ("none", "")]
)
def test_options_and_parameters_keep_their_types(main: Run, one: Any, other: Any) -> None:
    pairs = [with_baseline(main, options=(("inductor.x", value),)) for value in (one, other)]
    assert compared(*pairs).support == "not supported"
    works = [with_workload(main, parameters=(("x", value),)) for value in (one, other)]
    assert compared(*works).support == "not supported"


def test_a_variable_of_the_target_is_not_one_of_the_environment(main: Run) -> None:
    target = main.study.baseline.target

    def of(first: str, second: str) -> Run:
        return with_baseline(
            main,
            target=replace(target, variables=(("A", first),)),
            environment=Environment(name="default", variables=(("A", second),)),
        )

    assert compared(of("1", "2"), of("2", "1")).support == "not supported"


def test_another_card_behind_the_same_index_is_not_common(main: Run) -> None:
    def on(*devices: str) -> Run:
        run = with_workload(main, device="cuda:1")
        facts = {**FACTS, "devices": ["cpu", *devices]}
        return replace(run, info={**run.info, "targets": {"here+default": facts}})

    cards = ("cuda:0 NVIDIA H200", "cuda:1 NVIDIA T4")
    swapped = ("cuda:0 NVIDIA T4", "cuda:1 NVIDIA H200")
    assert compared(on(*cards), on(*cards)).support == "common baseline"
    assert (
        "device model (NVIDIA T4 vs NVIDIA H200)" in compared(on(*cards), on(*swapped)).reasons[0]
    )
    assert compared(on(), on()).support == "not supported", "nobody knows which card it was"


def test_names_and_paths_are_not_part_of_the_identity(main: Run) -> None:
    base = main.study.baseline
    moved = replace(base, target=replace(base.target, python="/elsewhere/bin/python"))
    study: Study = replace(main.study, baseline=moved)
    assert compared(main, changed(main, study=study)).support == "common baseline"


def test_a_gate_fails_on_it_and_says_why(main: Run) -> None:
    other = with_environment(main, instances=2)
    sides = (Side(text="A", runs=(main,)), Side(text="B", runs=(other,)))
    outcome = run_gate(compare_sides(*sides, RULES), Gate(max_slowdown=0.5))
    (row,) = outcome.rows
    assert (row.standing, row.action) == ("unsupported", "fail")
    assert row.why[0] == "not comparable: baseline differs in instances (1 vs 2)"


def test_a_baseline_that_travels_in_a_file_keeps_its_identity(main: Run, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    write_baseline_file(path, "main", [main])
    (read,) = read_baseline_file(path)
    assert compared(replace(read, id="other"), main).support == "common baseline"
    assert compared(read, with_environment(main, memory="interleave:0-1")).support == (
        "not supported"
    )


def test_a_session_that_differs_is_left_out_of_a_baseline(main: Run) -> None:
    other = with_environment(main, cores="0-1")
    both = Side(text="baseline:x", runs=(other, main))
    now = Side(text="now", runs=(changed(main),))
    row = compare_sides(both, now, RULES).rows[0]
    assert (row.support, row.one.sessions) == ("common baseline", 1)
    assert row.reasons == ("not comparable: baseline differs in cores (0-1 vs none)",)


def test_candidates_that_differ_are_compared_and_every_difference_is_a_fact(main: Run) -> None:
    candidate = main.study.candidates[0]
    pinned = replace(candidate, environment=Environment(name="default", cores="0", instances=2))
    other = changed(main, study=replace(main.study, candidates=(pinned,)))
    comparison = compare_sides(Side(text="A", runs=(main,)), Side(text="B", runs=(other,)), RULES)
    assert comparison.rows[0].verdict is not Verdict.UNTRUSTED
    assert {"candidate cores", "candidate instances"} <= {fact.name for fact in comparison.facts}
    assert baseline_facts(main, "eager").keys() == {
        name.replace("candidate ", "baseline ", 1)
        for name in candidate_facts(main, "fast")
        if name != "candidate"
    }


def test_the_same_run_and_variant_is_refused(main: Run) -> None:
    with pytest.raises(UsageError):
        compare_sides(Side(text="A", runs=(main,)), Side(text="A", runs=(main,)), RULES)
