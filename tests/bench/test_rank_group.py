"""Requests with several ranks: how they are written, what is refused, and how answers are merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchyard.bench.preparation import PreparationState, note_communication
from torchyard.bench.ranks import allocated_nodes, merge_ranks
from torchyard.bench.request import Request, SpecText, WorkloadChoice, merge
from torchyard.bench.study_assembly import assemble
from torchyard.bench.study_file import read_study_file
from torchyard.core.study import Environment, Study
from torchyard.errors import UsageError

GPT = WorkloadChoice(where="--only", suite="models", name="gpt", modes=("training",))
TWO = Request(workloads=(GPT,), ranks=2)


def spec(text: str, folder: Path = Path()) -> SpecText:
    return SpecText(text=text, where="--candidate", folder=folder)


def made(request: Request, baseline: str = "ddp", *candidates: str) -> Study:
    candidates = candidates or ("inductor+ddp",)
    texts = {"baseline": spec(baseline), "candidates": tuple(map(spec, candidates))}
    return assemble(replace(request, **texts), here="/here/python")  # type: ignore[arg-type]


def test_ranks_belong_to_the_workload_so_that_both_sides_have_the_same_number() -> None:
    study = made(TWO, "ddp", "ddp.gradient_as_bucket_view=true", "ddp+ddp.static_graph=true")
    assert [workload.label for workload in study.workloads] == ["models/gpt training ranks=2"]
    assert [variant.options for variant in study.candidates] == [
        (("ddp.gradient_as_bucket_view", True),),
        (("ddp.static_graph", True),),
    ]


def test_ranks_may_be_a_grid_of_a_workload() -> None:
    grid = replace(GPT, parameters=(("ranks", "2|4"), ("layers", 2)))
    study = made(Request(workloads=(grid,)))
    assert [one.ranks for one in study.workloads] == [2, 4]
    assert all(one.parameters == (("layers", 2),) for one in study.workloads)


def test_a_study_file_has_ranks_and_the_option_overrides_them(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'baseline = "ddp"\ncandidates = ["fsdp2"]\n[[workloads]]\nname = "models/gpt"\n'
        'mode = "training"\nranks = 3\n'
    )
    request = read_study_file(file)
    assert assemble(request, here="/x").workloads[0].ranks == 3
    assert assemble(merge(request, Request(ranks=2)), here="/x").workloads[0].ranks == 2


@pytest.mark.parametrize(
    ("baseline", "candidate", "what"),
    [
        ("ddp", "eager", "'eager' does not combine the gradients of 2 ranks"),
        ("eager", "ddp", "does not combine the gradients"),
        ("ddp", "ddp+fsdp2", "has ddp and fsdp2"),
        ("ddp", "ddp+same-batch", "has same-batch, and others do not"),
        ("ddp", "ddp.gradient_as_bucket_views=true", "no option 'ddp.gradient_as_bucket_views'"),
        ("ddp", "ddp.bucket_cap_mb=true", "'true' is not a valid value"),
        ("ddp", "ddp.bucket_cap_mb=0", "'0' is not a valid value"),
        ("ddp", "ddp.bucket_cap_mb=nan", "'nan' is not a valid value"),
        ("ddp", "ddp.static_graph=3", "'3' is not a valid value"),
        ("ddp", "ddp.static_graph", "has no value"),
    ],
)
def test_invalid_variants_are_refused(baseline: str, candidate: str, what: str) -> None:
    with pytest.raises(UsageError) as raised:
        made(TWO, baseline, candidate)
    assert what in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("request_", "what"),
    [
        (Request(workloads=(GPT,)), "needs several ranks"),
        (replace(TWO, nodes=3), "2 ranks cannot be spread evenly over 3 nodes"),
        (Request(workloads=(GPT,), nodes=2), "1 ranks cannot be spread evenly over 2 nodes"),
        (replace(TWO, modes=("inference",)), "supports training only"),
        (replace(TWO, modes=("decode",)), "the mode decode cannot be combined"),
        (replace(TWO, workloads=(replace(GPT, parameters=(("ranks", 3),)),)), "--ranks 2"),
        (Request(workloads=(replace(GPT, parameters=(("ranks", 0),)),)), "ranks"),
        (Request(workloads=(replace(GPT, parameters=(("ranks", "two"),)),)), "ranks"),
    ],
)
def test_invalid_requests_are_refused(request_: Request, what: str) -> None:
    with pytest.raises(UsageError) as raised:
        made(request_)
    assert what in str(raised.value)


def test_instances_cannot_be_combined_with_ranks() -> None:
    environments = {"pair": Environment(name="pair", instances=2)}
    with pytest.raises(UsageError, match="several instances cannot be combined"):
        made(replace(TWO, environments=environments), "ddp", "ddp+pair")


def test_inference_needs_no_wrapper() -> None:
    study = made(replace(TWO, modes=("inference",)), "eager", "inductor")
    assert study.workloads[0].ranks == 2


def test_the_samples_are_those_of_the_slowest_rank_and_counters_are_summed() -> None:
    readings = {"cpu_ns": 5, "run_queue_wait_ns": 1, "probe_before_ns": 10, "steal_ns": None}
    first = {
        "samples_ns": [10.0, 50.0],
        "inner": 1,
        "started_ns": 5,
        "wall_ns": 60,
        "readings": readings,
    }
    slower = {
        **first,
        "samples_ns": [40.0, 30.0],
        "started_ns": 4,
        "wall_ns": 80,
        "readings": {**readings, "probe_before_ns": 30, "steal_ns": 7},
    }
    merged = merge_ranks("block", [first, {"block": slower}])
    assert merged["samples_ns"] == [40.0, 30.0]  # never a mixture of two ranks
    assert (merged["started_ns"], merged["wall_ns"]) == (4, 80)
    assert merged["readings"] == {
        "cpu_ns": 10,
        "run_queue_wait_ns": 2,
        "probe_before_ns": 30,
        "steal_ns": None,
    }


def test_clocks_and_cores_of_nodes_are_not_mixed() -> None:
    def block(started_ns: int, busy_ns: int) -> dict[str, Any]:
        readings = {"cpu_ns": 0, "run_queue_wait_ns": 1, "busy_ns": {"0": busy_ns}}
        return {"samples_ns": [1.0], "started_ns": started_ns, "wall_ns": 5, "readings": readings}

    answers: list[dict[str, Any]] = [block(900, 10), {"block": block(800, 20)}]
    answers += [{"block": block(3, 70)}, {"block": block(4, 90)}]
    merged = merge_ranks("block", answers, ranks_per_node=2)
    assert merged["started_ns"] == 800
    assert merged["readings"]["busy_ns"] == {"0": 20, "1/0": 90}


def test_nodes_need_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    with pytest.raises(UsageError, match="2 nodes need a Slurm allocation"):
        allocated_nodes(2)


def test_nodes_belong_to_the_workload(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    file.write_text(
        'baseline = "ddp"\ncandidates = ["fsdp2"]\n[[workloads]]\nname = "models/gpt"\n'
        'mode = "training"\nranks = 4\nnodes = 2\n'
    )
    request = read_study_file(file)
    (workload,) = assemble(request, here="/x").workloads
    assert workload.label == "models/gpt training ranks=4 nodes=2"
    assert assemble(merge(request, Request(nodes=4)), here="/x").workloads[0].nodes == 4
    grid = replace(GPT, parameters=(("ranks", 4), ("nodes", "1|2")))
    assert [one.nodes for one in made(Request(workloads=(grid,))).workloads] == [1, 2]


def test_a_rank_without_a_block_is_an_error() -> None:
    with pytest.raises(TypeError):
        merge_ranks("block", [{"samples_ns": [1.0]}, {"block": None}])


@pytest.mark.parametrize(
    ("busy", "waited"),
    [
        ({"0": 950, "1": 960}, False),  # the ranks themselves
        ({"0": 980, "1": 980}, False),  # within the rounding to ticks
        ({"0": 1000, "1": 1200}, True),
        ({"0": 950, "1": 960, "2": 0, "3": 0}, False),  # idle cores are not rounded
        ({"0": 950, "1": 960, "2": 400}, True),
        (None, True),
    ],
)
def test_waiting_counts_if_other_programs_computed(
    busy: dict[str, int] | None, waited: bool
) -> None:
    def block(**more: object) -> dict[str, object]:
        own = {"cpu_ns": 950_000_000, "run_queue_wait_ns": 10**9}
        cpus = None if busy is None else {cpu: ms * 1_000_000 for cpu, ms in busy.items()}
        times = {"samples_ns": [1.0], "started_ns": 0, "wall_ns": 10**9}
        return {**times, "readings": {**own, "busy_ns": cpus}, **more}

    merged = merge_ranks("block", [block(), {"block": block()}])
    assert merged["readings"]["run_queue_wait_ns"] == (2 * 10**9 if waited else 0)
    assert merged["readings"]["cpu_ns"] == 1_900_000_000


@pytest.mark.parametrize(
    ("hidden_ms", "start"),
    [
        ([20.0] * 12, "spends 10.0 ms [10.0 ms, 10.0 ms] of 30.0 ms on exposed communication"),
        ([20.0, 40.0] * 6, "has undecided exposed communication: 0.00 ns [-10.0 ms, 10.0 ms]"),
        ([20.0], "has undecided exposed communication: 10.0 ms of 30.0 ms"),
    ],
)
def test_exposed_communication_is_undecided_if_it_may_be_zero(
    hidden_ms: list[float], start: str
) -> None:
    prepared = PreparationState()
    variant = made(TWO).candidates[0]
    note_communication(variant, {"pairs": [(30e6, ms * 1e6) for ms in hidden_ms]}, prepared)
    ((_, text),) = prepared.notes
    assert text.startswith(start)
    assert "not checked for noise" in text
