"""Several instances that act as one variant."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch, merge_answers
from torchyard.core.study import Environment, MeasureSettings, Target, Variant, Workload

HERE = Target(name="here", python=sys.executable)
MANY_CORES = len(os.sched_getaffinity(0)) > 1

SLEEPER = """
    import time
    import torch

    class Sleeper(torch.nn.Module):
        def forward(self, x):
            time.sleep(0.02)
            return x + 1

    def make():
        return Sleeper(), torch.ones(8)
"""


def test_the_iteration_time_of_instances_is_their_combined_rate() -> None:
    block = {"inner": 1, "readings": {}, "samples_ns": [10.0, 20.0], "started_ns": 5, "wall_ns": 30}
    other = {**block, "samples_ns": [10.0, 60.0], "started_ns": 4, "wall_ns": 70}
    merged = merge_answers("block", [block, other])
    assert merged["samples_ns"] == pytest.approx([5.0, 15.0])
    assert (merged["started_ns"], merged["wall_ns"]) == (4, 70)


def test_memory_of_all_of_them_counts() -> None:
    answers = [{"peak_memory_bytes": 3}, {"peak_memory_bytes": 4}]
    assert merge_answers("measure", answers)["peak_memory_bytes"] == 7
    assert merge_answers("measure", [{}, {"peak_memory_bytes": 4}]).get("peak_memory_bytes") is None


def test_instances_are_warm_when_all_are() -> None:
    answers = [{"iteration_ns": 3.0, "stable": True}, {"iteration_ns": 5.0, "stable": False}]
    assert merge_answers("warm", answers) == {"iteration_ns": 5.0, "stable": False}
    assert merge_answers("warm", [{"first_call_s": 1.0}, {"first_call_s": 2.0}]) == {
        "first_call_s": 1.0
    }


def launch_processes(folder: Path, *variants: Variant, code: str = SLEEPER) -> LaunchProcesses:
    (folder / "own.py").write_text(dedent(code))
    (folder / "scratch").mkdir(exist_ok=True)
    return LaunchProcesses(
        Workload(suite="file", name=str(folder / "own.py")),
        variants,
        MeasureSettings(),
        draw=draw_launch(random.Random(1)),
        log_folder=folder,
        scratch=folder / "scratch",
    )


@pytest.mark.torch
def test_instances_run_side_by_side_on_cores_of_their_own(tmp_path: Path) -> None:
    one = Variant(name="one", target=HERE)
    pair = Variant(name="pair", target=HERE, environment=Environment(name="pair", instances=2))
    with launch_processes(tmp_path, one, pair) as processes:
        times = {}
        for variant in (one, pair):
            processes.ask(
                variant, "warm", phase="warm-up", limit_s=60, variant=variant.name, seconds=0.2
            )
            block = processes.ask(
                variant,
                "block",
                phase="timing",
                limit_s=60,
                variant=variant.name,
                inner=1,
                samples=20,
                prime=0,
                settle=False,
                flush_l2=False,
            )
            times[variant.name] = sorted(block["samples_ns"])[10]
        # Both sleep at the same time, so that together they do two iterations in one.
        assert times["pair"] == pytest.approx(times["one"] / 2, rel=0.25)
        assert sorted(path.name for path in tmp_path.glob("here+pair*.log")) == [
            "here+pair-1.log",
            "here+pair-2.log",
        ]
        hello = processes.hellos[pair.process_key]
        cores = os.sched_getaffinity(int(hello["pid"]))
        assert len(cores) == max(1, len(os.sched_getaffinity(0)) // 2)
        assert hello["threads"] == len(cores)


@pytest.mark.torch
def test_a_failure_of_any_instance_is_that_of_the_variant(tmp_path: Path) -> None:
    broken = (
        SLEEPER
        + """
    import os
    if os.environ.get("TORCHYARD_CORES") == "%s":
        raise RuntimeError("the second one")
    """
    )
    last = max(os.sched_getaffinity(0))
    pair = Variant(name="pair", target=HERE, environment=Environment(name="pair", instances=2))
    if not MANY_CORES:
        pytest.skip("one core: both instances have it")
    processes = launch_processes(tmp_path, pair, code=broken % last)
    with pytest.raises(VariantFailed) as caught, processes:
        pass
    assert caught.value.failure.variant == "pair"
    assert "the second one" in caught.value.failure.message


@pytest.mark.torch
@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (Environment(name="far", cores="4000"), "cores '4000'"),
        (Environment(name="far", memory="bind:900"), "memory 'bind:900'"),
    ],
)
def test_a_missing_cpu_or_node_is_a_failed_start(
    tmp_path: Path, environment: Environment, said: str
) -> None:
    variant = Variant(name="far", target=HERE, environment=environment)
    with pytest.raises(VariantFailed) as caught, launch_processes(tmp_path, variant):
        pass
    assert said in caught.value.failure.message
    assert caught.value.failure.phase == "start"


def test_too_many_instances_are_refused(tmp_path: Path) -> None:
    many = Environment(name="many", instances=5000)
    processes = launch_processes(tmp_path, Variant(name="fleet", target=HERE, environment=many))
    with pytest.raises(VariantFailed, match="5000 instances are too many for") as raised, processes:
        pytest.fail("it was started")
    failure = raised.value.failure
    assert (failure.kind, failure.phase, failure.variant) == ("no-start", "start", "fleet")
    assert "`instances` of the environment 'many'" in failure.hint


@pytest.mark.torch
def test_memory_comes_from_the_node_that_was_named(tmp_path: Path) -> None:
    if not Path("/sys/devices/system/node/node0").exists():
        pytest.skip("this kernel has no NUMA")
    bound = Variant(name="bound", target=HERE, environment=Environment(name="b", memory="bind:0"))
    with launch_processes(tmp_path, bound) as processes:
        pid = int(processes.hellos[bound.process_key]["pid"])
        policies = Path(f"/proc/{pid}/numa_maps")
        if not policies.exists():
            pytest.skip("this kernel does not show policies")
        assert "bind:0" in policies.read_text()
