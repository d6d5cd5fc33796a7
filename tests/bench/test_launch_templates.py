"""Launches forked from templates behave like started ones, and reuse what was compiled."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.bench.tiny_bench import HERE, QUICK, bench, write_file
from torchyard.bench import bench_run, session
from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.bench.launch_templates import LaunchTemplates, may_fork, modules_of
from torchyard.bench.preparation import PreparationState, warm_up
from torchyard.core.study import Budget, Environment, MeasureSettings, Variant, Workload
from torchyard.process.templates import TemplatePool

EAGER = Variant(name="eager", target=HERE)
INDUCTOR = Variant(name="inductor", target=HERE, backend="inductor")
LAYER_NORM = Workload(suite="kernels", name="layer-norm")
THREADED = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"


def launch(
    folder: Path,
    number: int,
    pool: TemplatePool | None,
    *variants: Variant,
    settings: MeasureSettings = QUICK,
) -> LaunchProcesses:
    (folder / "scratch").mkdir(exist_ok=True)
    return LaunchProcesses(
        LAYER_NORM,
        variants,
        settings,
        draw=draw_launch(random.Random(number)),
        log_folder=folder / f"logs-{number}",
        scratch=folder / "scratch",
        templates=None if pool is None else LaunchTemplates(pool, settings),
        number=number,
    )


def test_a_template_imports_what_its_processes_need() -> None:
    eager, compiled = modules_of(LAYER_NORM, [EAGER]), modules_of(LAYER_NORM, [EAGER, INDUCTOR])
    assert eager[0] == compiled[0] == "torch"
    assert not any(name.startswith("torch._") for name in eager)
    assert "torch._inductor.compile_fx" in compiled
    assert "transformers" in modules_of(Workload(suite="huggingface", name="x"), [EAGER])
    own = Variant(name="own", target=HERE, backend="mine.py:function")
    assert modules_of(LAYER_NORM, [own]) == eager


@pytest.mark.torch
def test_forked_launches_describe_themselves_alike_and_reuse_artifacts(tmp_path: Path) -> None:
    hellos: list[dict[str, Any]] = []
    cached: list[set[str]] = []
    with TemplatePool() as pool:
        for number, source in ((0, pool), (0, pool), (1, pool), (0, None)):
            prepared = PreparationState()
            with launch(tmp_path, number, source, EAGER, INDUCTOR) as processes:
                assert set(processes.not_forked.values()) == ({""} if source else set())
                hellos.append(processes.hellos["here", "default"])
                for variant in processes.variants:
                    warm_up(processes, variant, prepared)
            cached.append(prepared.cached)
            metrics = prepared.metrics_of(INDUCTOR)
            assert (metrics.compile_cold_s is None) == bool(prepared.cached)
            assert metrics.compile_warm_s is None or prepared.cached
    assert cached == [set(), {"inductor"}, {"inductor"}, {"inductor"}]
    assert len({hello.pop("pid") for hello in hellos}) == 4
    assert hellos[0] == hellos[1] == hellos[2] == hellos[3]


@pytest.mark.torch
@pytest.mark.parametrize("start", ["auto", "fork"])
def test_a_template_with_a_thread_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Any
) -> None:
    monkeypatch.setattr(bench_run, "MIN_SHARING", 1)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(THREADED)
    environment = Environment(name="threaded", variables=(("PYTHONPATH", str(tmp_path / "path")),))
    settings = MeasureSettings(block_s=0.02, threads=1, start=start)
    baseline = Variant(name="base", target=HERE, environment=environment)
    code = "import torch\ndef make():\n    return torch.nn.Linear(8, 8), torch.ones(4, 8)\n"
    workload = write_file(tmp_path, "own.py", code)
    other = Variant(name="other", target=HERE, environment=environment)
    (row,) = bench(tmp_path / "run", workload, other, baseline=baseline, settings=settings)
    if start == "fork":
        assert row.failure is not None
        assert "cannot be forked" in row.failure.message
        assert "threads" in row.failure.message
        return
    assert row.failure is None
    assert any("not forked from a template process: it has" in note for note in row.notes)
    (record,) = map(json.loads, (tmp_path / "run" / "launches.jsonl").read_text().splitlines())
    assert record["start"]["here+threaded"].startswith("fresh: it has")


@pytest.mark.parametrize(
    ("start", "same_process", "forked"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("fork", True, True),
        ("fork", False, True),
        ("fresh", True, False),
        ("fresh", False, False),
    ],
)
def test_by_default_only_variants_of_one_process_are_forked(
    start: Any, same_process: bool, forked: bool
) -> None:
    other = Variant(name="other", target=HERE, environment=Environment(name="other"))
    variants = [EAGER, INDUCTOR if same_process else other]
    assert may_fork(MeasureSettings(start=start), variants) is forked


@pytest.mark.torch
@pytest.mark.parametrize(
    ("start", "shared_by", "used"),
    [("fresh", 1, "fresh"), ("auto", 3, "fresh"), ("auto", 1, "fork")],
)
def test_a_run_of_few_workloads_starts_processes_unless_asked_to_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Any, shared_by: int, used: str
) -> None:
    monkeypatch.setattr(bench_run, "MIN_SHARING", shared_by)
    code = "import torch\ndef make():\n    return torch.nn.Linear(8, 8), torch.ones(4, 8)\n"
    workload = write_file(tmp_path, "own.py", code)
    bench(
        tmp_path / "run", workload, settings=MeasureSettings(block_s=0.02, threads=1, start=start)
    )
    (record,) = map(json.loads, (tmp_path / "run" / "launches.jsonl").read_text().splitlines())
    assert record["start"] == {"here+default": used}


@pytest.mark.torch
def test_a_long_run_of_one_workload_forks_its_later_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MIN_FORKED", 1)
    code = "import torch\ndef make():\n    return torch.nn.Linear(8, 8), torch.ones(4, 8)\n"
    bench(
        tmp_path / "run",
        write_file(tmp_path, "own.py", code),
        budget=Budget(time_s=30.0, precision_goal=0.0, max_launches=4, launch_s=0.1),
        settings=MeasureSettings(block_s=0.02, threads=1),
    )
    lines = (tmp_path / "run" / "launches.jsonl").read_text().splitlines()
    starts = [json.loads(line)["start"]["here+default"] for line in lines]
    assert starts == ["fresh", "fresh", "fork", "fork"]


@pytest.mark.torch
def test_instances_are_forked_on_cores_of_their_own(tmp_path: Path) -> None:
    environment = Environment(name="two", instances=2, threads=1)
    variant = Variant(name="base", target=HERE, environment=environment)
    with TemplatePool() as pool, launch(tmp_path, 0, pool, variant) as processes:
        assert processes.not_forked == {("here", "two"): ""}
        assert processes.hellos["here", "two"]["threads"] == 1


@pytest.mark.torch
def test_a_failing_start_is_reported_as_without_a_template(tmp_path: Path) -> None:
    environment = Environment(name="nowhere", cores="4000-4001")
    variant = Variant(name="base", target=HERE, environment=environment)
    messages = []
    with TemplatePool() as pool:
        for source in (pool, None):
            with pytest.raises(VariantFailed) as caught, launch(tmp_path, 0, source, variant):
                pass
            messages.append(caught.value.failure)
    assert messages[0].kind == messages[1].kind
    assert messages[0].message == messages[1].message
