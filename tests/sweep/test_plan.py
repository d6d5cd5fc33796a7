"""From a request to cells: selection, names, and shards."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.bench.request import Request, SpecText, WorkloadChoice
from torchyard.core.records import decode, encode
from torchyard.core.study import Budget, Mode, Workload
from torchyard.errors import NothingToDo, UsageError
from torchyard.sweep.model import Cell, ExecutorChoice, SweepPlan
from torchyard.sweep.plan import all_cells, plan_sweep, unmatched_patterns
from torchyard.sweep.sweep_file import Patterns, SweepRequest
from torchyard.worker.catalog import SUITES

SAFE = re.compile(r"[0-9]{4,}-[A-Za-z0-9._-]+")
BOTH: tuple[Mode, ...] = ("inference", "training")


def spec(text: str) -> SpecText:
    return SpecText(text=text, where="--backends", folder=Path())


def asked(
    *suites: str, backends: tuple[str, ...] = (), modes: tuple[Mode, ...] = ()
) -> SweepRequest:
    return SweepRequest(
        study=Request(
            workloads=tuple(WorkloadChoice(where="--suites", suite=suite) for suite in suites),
            candidates=tuple(spec(text) for text in backends),
            modes=modes,
        )
    )


def cells_of(request: SweepRequest) -> tuple[Cell, ...]:
    return all_cells(request, here="/usr/bin/python3")


def plan_of(request: SweepRequest) -> SweepPlan:
    return plan_sweep(request, here="/usr/bin/python3")


def test_each_workload_in_each_mode_and_precision_is_a_cell() -> None:
    request = replace(
        asked("models", backends=("inductor", "aot_eager"), modes=BOTH),
        precisions=("float32", "amp"),
    )
    cells = cells_of(request)
    workloads = sum(mode in BOTH for entry in SUITES["models"] for mode in entry.modes)
    assert len(cells) == 2 * workloads
    assert all(len(cell.study.workloads) == 1 for cell in cells)
    for cell in cells:
        assert {one.precision for one in cell.study.variants} == {cell.precision}
        assert [one.backend for one in cell.study.variants] == ["eager", "inductor", "aot_eager"]
    assert len({(cell.study.workloads, cell.precision) for cell in cells}) == len(cells)


def test_names_say_the_precision_where_it_is_not_float32() -> None:
    request = replace(asked("models", backends=("inductor",)), precisions=("float32", "amp"))
    names = {cell.precision: [v.name for v in cell.study.variants] for cell in cells_of(request)}
    # Histories are kept apart by these names, so amp must never look like float32.
    assert names == {"float32": ["eager", "inductor"], "amp": ["eager+amp", "inductor+amp"]}


def test_the_default_is_eager_against_inductor_in_float32() -> None:
    (first, *_) = cells_of(asked("models"))
    assert [variant.name for variant in first.study.variants] == ["eager", "inductor"]
    assert first.precision == "float32"
    assert first.study.workloads[0].mode == "inference"
    assert first.study.budget == Budget()
    assert first.study.name == "sweep"


def test_the_precision_of_a_study_is_that_of_its_sweep() -> None:
    request = asked("models")
    request = replace(request, study=replace(request.study, precision="bfloat16"))
    assert {cell.precision for cell in cells_of(request)} == {"bfloat16"}


def test_the_baseline_of_the_request_is_that_of_every_cell() -> None:
    request = asked("models", backends=("inductor",))
    request = replace(request, study=replace(request.study, baseline=spec("aot_eager")))
    assert {cell.study.baseline.backend for cell in cells_of(request)} == {"aot_eager"}


def test_a_fixed_precision_is_refused_when_there_are_several() -> None:
    request = asked("models", backends=("inductor+amp",))
    assert cells_of(request)[0].study.candidates[0].precision == "amp"
    with pytest.raises(UsageError, match="fixes a precision, but the sweep has several") as caught:
        cells_of(replace(request, precisions=("float32", "bfloat16")))
    assert "float32 and bfloat16" in caught.value.why


def test_ids_sort_as_the_plan_and_are_file_names() -> None:
    request = replace(asked("kernels", "models", modes=BOTH), precisions=("float32", "amp"))
    ids = [cell.id for cell in cells_of(request)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert all(SAFE.fullmatch(one) for one in ids)
    assert ids[0].startswith("0001-")
    assert "0001-kernels-adam-step-inference-float32" in ids


@pytest.mark.parametrize(
    "name",
    [
        "mine.py",
        "../../../etc/passwd.py",
        "a b;rm -rf $HOME.py:thing",
        "-rf.py",
        "ü\n☃.py",
        "." * 300 + ".py",
        "x" * 300 + ".py:y",
        "...",
        "/",
    ],
)
def test_no_name_can_leave_the_folder(name: str) -> None:
    request = SweepRequest(
        study=Request(
            workloads=(
                WorkloadChoice(where="here", suite="file", name=name),
                WorkloadChoice(where="here", suite="file", name=name + "2"),
            )
        )
    )
    first, second = cells_of(request)
    for cell in (first, second):
        assert SAFE.fullmatch(cell.id), cell.id
        assert len(cell.id) < 120
        assert ".." not in cell.id.split("-")
    assert first.id != second.id


def test_paths_and_parameters_are_distinguished_by_a_digest() -> None:
    choices = [
        WorkloadChoice(where="here", suite="file", name="/one/mine.py"),
        WorkloadChoice(where="here", suite="file", name="/two/mine.py"),
        WorkloadChoice(where="here", suite="kernels", name="matmul"),
        WorkloadChoice(where="here", suite="kernels", name="matmul", parameters=(("size", 8),)),
    ]
    cells = cells_of(SweepRequest(study=Request(workloads=tuple(choices))))
    endings = [cell.id.partition("-")[2] for cell in cells]
    assert len(set(endings)) == 4
    assert "kernels-matmul-inference-float32" in endings
    assert all("one" not in ending and "two" not in ending for ending in endings)


def test_parts_fit_together_whatever_the_order_of_the_request() -> None:
    one = replace(asked("kernels", "models", modes=BOTH), precisions=("float32", "amp"))
    other = replace(
        asked("models", "kernels", modes=("training", "inference")), precisions=("amp", "float32")
    )
    assert cells_of(one) == cells_of(other)
    parts = [plan_of(replace(one, shard=(part, 4))).cells for part in range(1, 5)]
    ids = [cell.id for part in parts for cell in part]
    assert sorted(ids) == [cell.id for cell in cells_of(one)]
    assert parts == [plan_of(replace(other, shard=(part, 4))).cells for part in range(1, 5)]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 12])
def test_every_part_has_its_share_of_each_mode_and_precision(parts: int) -> None:
    request = replace(asked("kernels", "models", modes=BOTH), precisions=("float32", "amp"))
    whole = Counter(_kind(cell) for cell in cells_of(request))
    for part in range(1, parts + 1):
        mine = Counter(_kind(cell) for cell in plan_of(replace(request, shard=(part, parts))).cells)
        for kind, count in whole.items():
            # A stride starts at another place in each group: at most one more or less than fair.
            assert abs(mine[kind] - count / parts) < 1.0 + 1e-9


def _kind(cell: Cell) -> tuple[str, str]:
    return cell.study.workloads[0].mode, cell.precision


def test_a_part_of_nothing_is_nothing_to_do() -> None:
    request = replace(asked("models"), patterns=Patterns(only=("models/gpt",)), shard=(2, 4))
    with pytest.raises(NothingToDo, match="shard 2 of 4 is empty") as caught:
        plan_of(request)
    assert caught.value.why == "the sweep has only 1 cell"


def test_patterns_choose_workloads() -> None:
    request = replace(
        asked("models", "kernels"),
        patterns=Patterns(only=("models/*",), exclude=("*/lstm", "*/nothing")),
    )
    names = {cell.study.workloads[0].name for cell in cells_of(request)}
    assert names == {entry.name for entry in SUITES["models"]} - {"lstm"}
    assert unmatched_patterns(request, here="python3") == ["*/nothing"]
    assert unmatched_patterns(asked("models"), here="python3") == []


def test_patterns_that_leave_nothing_name_the_nearest() -> None:
    request = replace(asked("models"), patterns=Patterns(only=("models/gtp",)))
    with pytest.raises(NothingToDo, match="no workload selected") as caught:
        cells_of(request)
    assert "models/gpt" in caught.value.hint
    with pytest.raises(NothingToDo) as caught:
        cells_of(replace(request, patterns=Patterns(exclude=("*",))))
    assert "--exclude" in caught.value.hint


def test_no_suite_is_nothing_to_do() -> None:
    with pytest.raises(NothingToDo, match="no suite or workload given") as caught:
        cells_of(SweepRequest())
    assert "--suites" in caught.value.hint


def test_null_compares_the_baseline_with_itself_as_often_as_asked() -> None:
    request = replace(asked("models", backends=("inductor", "aot_eager")), null=True)
    plan = plan_of(request)
    assert plan.null
    for cell in plan.cells:
        study = cell.study
        assert [one.name for one in study.candidates] == ["eager-again", "eager-again-2"]
        for candidate in study.candidates:
            assert replace(candidate, name=study.baseline.name) == study.baseline
    assert plan_of(replace(request, null=False)).cells[0].study.candidates[0].backend == "inductor"


def test_a_plan_keeps_what_was_asked_and_survives_its_file() -> None:
    request = replace(
        asked("models"),
        shard=(1, 2),
        cell_s=90.0,
        tries=5,
        executor="slurm",
        executor_options={"partition": "gpu", "at-most": "4"},
    )
    plan = plan_sweep(
        request, here="python3", command=["torchyard", "sweep"], revision="abc", notes=["why"]
    )
    assert (plan.limits.cell_s, plan.limits.tries, plan.shard) == (90.0, 5, (1, 2))
    assert plan.executor == ExecutorChoice(
        name="slurm", options=(("at-most", "4"), ("partition", "gpu"))
    )
    assert (plan.command, plan.revision, plan.notes) == (("torchyard", "sweep"), "abc", ("why",))
    assert decode(SweepPlan, encode(plan), where="") == plan


def test_options_of_slurm_are_checked_before_anything_runs() -> None:
    request = replace(asked("models"), executor="slurm", executor_options={"partition": "a;b"})
    with pytest.raises(UsageError, match="partition"):
        plan_of(request)
    # On this machine they have no meaning and are not kept.
    assert plan_of(replace(request, executor="local")).executor == ExecutorChoice()


def test_workloads_of_a_study_are_cells_too() -> None:
    request = SweepRequest(
        study=Request(
            name="mine",
            workloads=(
                WorkloadChoice(
                    where="x", suite="kernels", name="matmul", modes=("training",), batch_size=2
                ),
            ),
        )
    )
    (cell,) = cells_of(request)
    assert cell.study.workloads == (
        Workload(suite="kernels", name="matmul", mode="training", batch_size=2),
    )
    assert cell.study.name == "mine"


def test_modes_of_the_sweep_are_for_what_names_none() -> None:
    request = replace(
        SweepRequest(
            study=Request(
                workloads=(
                    WorkloadChoice(where="x", suite="models", name="gpt"),
                    WorkloadChoice(where="x", suite="models", name="lstm", modes=("inference",)),
                )
            )
        ),
        modes=("training",),
    )

    def modes(asked_for: SweepRequest) -> dict[str, str]:
        workloads = [cell.study.workloads[0] for cell in cells_of(asked_for)]
        return {one.name: one.mode for one in workloads}

    assert modes(request) == {"gpt": "training", "lstm": "inference"}
    # What the command line says is for all of them.
    everything = replace(request, study=replace(request.study, modes=("training",)))
    assert modes(everything) == {"gpt": "training", "lstm": "training"}


def test_the_largest_batch_is_searched_for_by_one_cell_at_a_time() -> None:
    request = replace(asked("models"), largest_batches=True)
    assert plan_of(request).largest_batches
    assert plan_of(replace(request, executor_options={"at-most": "1"})).largest_batches
    with pytest.raises(UsageError, match="2 concurrent cells"):
        plan_of(replace(request, executor_options={"at-most": "2"}))
    assert plan_of(
        replace(request, executor="slurm", executor_options={"at-most": "2"})
    ).largest_batches
