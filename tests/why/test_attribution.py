"""The contributions: they sum to the difference, find what was planted, and name nobody without cause."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from tests.why.synthetic import rounds, row, source, with_profiler
from torchyard.core.study import Workload
from torchyard.why.alignment import UNATTRIBUTED, align
from torchyard.why.attribution import attribute, usable_rounds
from torchyard.why.model import Attribution, MeasuredRound, OperatorRow

WORKLOAD = Workload(suite="models", name="net")
MODULES = ("norm", "up", "act", "down", "head")
TIMES = {
    source(module, "op", line=line): 100.0 + 20.0 * line for line, module in enumerate(MODULES)
}
PLANTED = source("act", "op", line=2)


def attributed(measured: list[MeasuredRound]) -> Attribution:
    return attribute(WORKLOAD, "eager", "inductor", measured)


def test_parts_sum_to_the_difference() -> None:
    result = attributed(rounds(TIMES, {**TIMES, PLANTED: 180.0}, host_us=(50.0, 20.0)))
    for side in ("baseline_ns", "candidate_ns", "difference_ns"):
        total = math.fsum(getattr(part, side) for part in result.parts)
        assert total == pytest.approx(getattr(result, side), rel=1e-9)


def test_the_planted_operator_is_named_first() -> None:
    result = attributed(rounds(TIMES, {**TIMES, PLANTED: 180.0}))
    first = result.parts[0]
    assert first.named
    assert [one.module for one in first.sources] == ["act"]
    assert first.low_ns < 40e3 < first.high_ns
    assert [part for part in result.parts[1:] if part.named] == []


def test_added_host_time_is_named() -> None:
    result = attributed(rounds(TIMES, TIMES, host_us=(50.0, 150.0)))
    assert result.parts[0].kind == "host"
    assert result.parts[0].named
    assert result.parts[0].low_ns < 100e3 < result.parts[0].high_ns


def test_an_operator_that_disappears_is_named() -> None:
    without = {one: us for one, us in TIMES.items() if one != PLANTED}
    first = attributed(rounds(TIMES, without)).parts[0]
    assert first.named
    assert (first.candidate_ns, first.candidate_kernels) == (0.0, ())


def test_one_launch_names_nobody() -> None:
    result = attributed(rounds(TIMES, {**TIMES, PLANTED: 1800.0}, launches=1))
    assert not any(part.named for part in result.parts)


def test_identical_programs_name_nobody_and_intervals_hold_the_truth() -> None:
    """In each of many noisy worlds; the limits are those of a binomial distribution."""
    worlds = 120
    named = held = 0
    for seed in range(worlds):
        noise = (0.003, 0.01, 0.04)[seed % 3]
        measured = rounds(TIMES, TIMES, seed=seed, launch_sd=noise, round_sd=noise)
        named += any(part.named for part in attributed(measured).parts)
        measured = rounds(
            TIMES, {**TIMES, PLANTED: 200.0}, seed=seed, launch_sd=noise, round_sd=noise
        )
        (part,) = [one for one in attributed(measured).parts if PLANTED in one.sources]
        held += part.low_ns <= 60e3 <= part.high_ns
    assert named <= 0.05 * worlds + 2.0 * math.sqrt(0.05 * 0.95 * worlds)
    assert held >= 0.95 * worlds - 2.5 * math.sqrt(0.05 * 0.95 * worlds)


def test_a_disturbed_round_is_dropped_as_a_whole() -> None:
    measured = rounds(TIMES, TIMES, launches=2)
    spoiled = measured[3]
    side = spoiled.candidate
    slow = MeasuredRound(
        launch=spoiled.launch,
        baseline=spoiled.baseline,
        candidate=replace(side, plain_ns=10 * side.plain_ns),
    )
    kept = usable_rounds([*measured[:3], slow, *measured[4:]])
    assert slow not in kept
    assert len(kept) == len(measured) - 1


def test_enough_rounds_remain_on_a_busy_machine() -> None:
    measured = [
        MeasuredRound(
            launch=one.launch, baseline=one.baseline, candidate=one.candidate, disturbed=True
        )
        for one in rounds(TIMES, TIMES, launches=2)
    ]
    assert len(usable_rounds(measured)) == 6
    result = attributed(measured)
    assert result.untrusted == "noisy machine: 10 of 10 rounds were disturbed"


def test_a_noisy_machine_names_nobody() -> None:
    slow = rounds(TIMES, {**TIMES, PLANTED: 1800.0})
    assert attributed(slow).parts[0].named
    noisy = attributed([replace(one, disturbed=index % 4 > 0) for index, one in enumerate(slow)])
    assert noisy.untrusted
    assert not any(part.named for part in noisy.parts)


LONG = {one: 10.0 * time_us for one, time_us in TIMES.items()}


@pytest.mark.parametrize("sd", [0.003, 0.03])
def test_noise_of_profiled_blocks_is_in_the_interval_of_host_time(sd: float) -> None:
    inside = wide = 0
    for seed in range(20):
        clean = rounds(LONG, {**LONG, PLANTED: 1800.0}, seed=seed, host_us=(300.0, 300.0))
        result = attributed(with_profiler(clean, sd=sd, seed=seed))
        (host,) = (part for part in result.parts if part.kind == "host")
        explained_ns = sum(part.difference_ns for part in result.parts if part.kind != "profiler")
        inside += result.low_ns <= explained_ns <= result.high_ns
        wide += host.low_ns <= 0.0 <= host.high_ns
        assert not host.named
    assert inside >= 19
    assert wide >= 19


def test_a_bias_of_the_profiler_is_not_host_time() -> None:
    clean = rounds(LONG, LONG, host_us=(300.0, 300.0))
    result = attributed(with_profiler(clean, sd=0.003, bias=1.1))
    parts = {part.kind: part for part in result.parts}
    truth_ns = -0.1 * result.baseline_ns
    assert parts["profiler"].difference_ns == pytest.approx(truth_ns, rel=0.2)
    assert not parts["profiler"].named
    assert not parts["host"].named
    assert math.fsum(part.difference_ns for part in result.parts) == pytest.approx(
        result.difference_ns, abs=1.0
    )


def on_gpu(measured: list[MeasuredRound]) -> Attribution:
    return attribute(replace(WORKLOAD, device="cuda"), "eager", "inductor", measured)


def test_what_remains_on_a_gpu_are_idle_gaps() -> None:
    result = on_gpu(rounds(TIMES, TIMES, host_us=(50.0, 150.0)))
    assert result.parts[0].kind == "idle"
    assert result.parts[0].named
    assert result.parts[0].low_ns < 100e3 < result.parts[0].high_ns
    assert not {"host", "profiler"} & {part.kind for part in result.parts}
    for side in ("baseline_ns", "candidate_ns"):
        total = math.fsum(getattr(part, side) for part in result.parts)
        assert total == pytest.approx(getattr(result, side), rel=1e-9)


def test_a_slow_profiler_does_not_change_the_parts_of_a_gpu() -> None:
    measured = rounds(TIMES, {**TIMES, PLANTED: 180.0})
    slowed = [
        replace(one, candidate=replace(one.candidate, instrumented_ns=3e6)) for one in measured
    ]
    assert on_gpu(slowed).parts == on_gpu(measured).parts


NORM = source("norm", "native_layer_norm", line=3)
ADD = source("", "add", line=4)
LINEAR = source("up", "addmm", line=5)


def names(
    baseline: list[OperatorRow], candidate: list[OperatorRow], *, iteration_us: float = 100.0
) -> set[frozenset[str]]:
    """Return the operators of each group."""
    groups = align(baseline, candidate, 1e3 * iteration_us)
    roots = {groups.group_of(one) for one in (*baseline, *candidate) if one.sources}
    return {frozenset(member[-1] for member in groups.members(root)) for root in roots}


def test_operators_of_both_sides_are_one_group() -> None:
    baseline = [row("aten::native_layer_norm", NORM), row("aten::addmm", LINEAR)]
    candidate = [row("cpp_fused_0", NORM), row("aten::addmm", LINEAR)]
    assert names(baseline, candidate) == {
        frozenset({"native_layer_norm"}),
        frozenset({"addmm"}),
    }


def test_a_fused_kernel_joins_its_operators() -> None:
    baseline = [row("layer_norm", NORM), row("add", ADD), row("addmm", LINEAR)]
    candidate = [row("cpp_fused_add_native_layer_norm_0", ADD, NORM), row("addmm", LINEAR)]
    assert names(baseline, candidate) == {
        frozenset({"native_layer_norm", "add"}),
        frozenset({"addmm"}),
    }


def test_other_operators_of_the_same_line_are_compared_with_each_other() -> None:
    baseline = [row("addmm", LINEAR, us=50.0)]
    candidate = [row("mm", source("up", "mm", line=5), us=50.0)]
    assert names(baseline, candidate) == {frozenset({"addmm", "mm"})}


def test_an_added_operator_stays_alone() -> None:
    added = source("act", "exp", line=9)
    baseline = [row("addmm", LINEAR, us=50.0)]
    candidate = [row("addmm", LINEAR, us=50.0), row("exp", added, us=20.0)]
    assert names(baseline, candidate) == {frozenset({"addmm"}), frozenset({"exp"})}


@pytest.mark.parametrize("wrapped", ["head.inner", "module.head"])
@pytest.mark.parametrize("line", [5, 8])
def test_an_operator_of_a_wrapped_module_is_compared_with_the_original(
    wrapped: str, line: int
) -> None:
    baseline = [row("addmm", source("head", "addmm", line=5), us=50.0)]
    added = row("spin", source("head", "spin", line=7, file="/b.py"), us=20.0)
    candidate = [row("addmm", source(wrapped, "addmm", line=line), us=50.0), added]
    assert names(baseline, candidate) == {frozenset({"addmm"}), frozenset({"spin"})}


def test_an_operator_of_two_inner_modules_is_not_one_of_them() -> None:
    baseline = [row("addmm", source("head", "addmm", line=5), us=50.0)]
    candidate = [
        row("addmm", source(f"head.{name}", "addmm", line=5), us=50.0) for name in ("up", "down")
    ]
    assert len(align(baseline, candidate, 1e5).sources) == 3
    roots = {align(baseline, candidate, 1e5).group_of(one) for one in candidate}
    assert len(roots) == 2


def test_a_small_part_has_the_noise_of_its_own_size() -> None:
    """Three launches: the interval of an operator of 10 us does not contain the noise of 1.5 ms."""
    times = {**TIMES, source("large", "op", line=9): 1000.0}
    changed = {**times, PLANTED: 320.0}
    result = attributed(rounds(times, changed, launches=3, launch_sd=0.003, round_sd=0.003))
    planted, *others = result.parts
    assert planted.named
    small = next(part for part in others if [one.module for one in part.sources] == ["norm"])
    assert small.high_ns - small.low_ns < 0.2 * small.baseline_ns


@pytest.mark.parametrize("mode", [0.1, 0.3])
def test_operators_in_two_modes_name_nobody_after_three_launches(mode: float) -> None:
    """Each operator of each variant is in a fast or a slow mode, by launch."""
    worlds = 60
    named = 0
    for seed in range(worlds):
        chance = random.Random(seed)
        measured = []
        for launch in range(3):
            sides = [
                {one: us * (1.0 + mode * (chance.random() < 0.5)) for one, us in TIMES.items()}
                for _ in range(2)
            ]
            own = rounds(*sides, launches=1, seed=1000 * seed + launch)
            measured += [replace(one, launch=launch) for one in own]
        named += any(part.named for part in attributed(measured).parts)
    assert named <= 0.05 * worlds + 2.0 * math.sqrt(0.05 * 0.95 * worlds)


def test_lines_of_different_files_are_matched_by_their_text() -> None:
    first = source("", "mul", line=3, file="/a.py")
    second = source("", "mul", line=3, file="/b.py")
    moved = source("", "mul", line=8, file="/b.py")
    assert names([row("mul", first)], [row("mul", second)]) == {frozenset({"mul"})}
    groups = align([row("mul", first)], [row("mul", moved)], 1.0)
    assert len(groups.sources) == 2


def test_rows_without_sources_are_unattributed() -> None:
    groups = align([row("copy_")], [], 1.0)
    assert groups.group_of(row("copy_")) == UNATTRIBUTED
