"""`torchyard why` on a real run."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.worker.why.net import write_net
from torchyard.core.study import MeasureSettings, Target, Variant, Workload
from torchyard.why.measurement import AttributionSession
from torchyard.why.model import load

pytestmark = pytest.mark.torch


def torchyard(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchyard", *arguments],
        env={"TORCHYARD_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with one run: a module against a copy of it."""
    folder = tmp_path_factory.mktemp("why")
    net = write_net(folder)
    options = ["--candidate", f"{net}:same", "--time", "1s", "-q"]
    completed = torchyard(folder, "bench", f"{net}:Net", *options)
    assert completed.returncode in {0, 6}, completed.stderr
    return folder


def test_parts_sum_to_the_difference(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "why.html"
    completed = torchyard(
        home,
        *("why", "--launches", "2", "--seconds", "1", "--json", "--html", str(page)),
        *("--traces", str(tmp_path / "traces")),
    )
    assert completed.returncode in {0, 6}, completed.stderr
    document = json.loads(completed.stdout)
    result = document["attribution"]
    assert completed.returncode == (6 if result["untrusted"] else 0)
    for side in ("baseline_ns", "candidate_ns"):
        total = math.fsum(part[side] for part in result["parts"])
        assert total == pytest.approx(result[side], rel=1e-6)
    modules = {source["module"] for part in result["parts"] for source in part["sources"]}
    assert {"blocks.*.norm", "blocks.*.up"} <= modules
    assert Path(document["saved"]).is_file()
    assert page.read_text().startswith("<!DOCTYPE html>")
    for side in ("baseline", "candidate"):
        trace = json.loads((tmp_path / "traces" / f"{side}.json").read_text())
        names = {event.get("name") for event in trace["traceEvents"]}
        assert {"ty::iteration", "aten::native_layer_norm"} <= names


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--row", "9"], "there is no row 9"),
        (["--compiler"], "--compiler needs a candidate that Inductor compiles"),
    ],
)
def test_errors_come_before_measuring(home: Path, options: list[str], text: str) -> None:
    completed = torchyard(home, "why", *options)
    assert completed.returncode == 2
    assert text in completed.stderr
    assert "hint:" in completed.stderr


def test_launches_before_a_kill_are_kept(home: Path) -> None:
    (run,) = (home / "runs").iterdir()
    saved = run / "why" / "row-1.json"
    saved.unlink(missing_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "torchyard", "why", "--launches", "90", "--seconds", "1", "-q"],
        env={"TORCHYARD_HOME": str(home), "PATH": "/usr/bin:/bin", "HOME": str(home)},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 200
        while not saved.exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert "incomplete: further launches were planned" in load(saved).notes


def test_whole_programs_are_refused(tmp_path: Path) -> None:
    programs = [word for _ in range(2) for word in ("--command", "sleep 0.01")]
    completed = torchyard(tmp_path, "bench", *programs, "--launches", "3", "-q")
    assert completed.returncode in {0, 6}, completed.stderr
    completed = torchyard(tmp_path, "why")
    assert completed.returncode == 2
    assert "why does not support whole programs" in completed.stderr


@pytest.fixture(scope="module")
def slow_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A results directory with a run that `bench --why` explained; its candidate sleeps for 20 ms."""
    folder = tmp_path_factory.mktemp("slow")
    net = write_net(folder)
    options = ["--candidate", f"{net}:slower", "--time", "12s", "--threads", "1", "--why"]
    for _ in range(3):
        completed = torchyard(folder, "bench", f"{net}:Net", *options)
        assert completed.returncode in {0, 6}, completed.stderr
        if "sum of all parts" in completed.stdout:
            return folder, completed.stdout
        assert "nothing to explain" in completed.stderr
    pytest.skip("the machine is too noisy for a verdict")


def test_bench_explains_its_largest_difference(slow_home: tuple[Path, str]) -> None:
    folder, shown = slow_home
    assert "Largest contribution: host time outside of operators" in shown or "ntrusted" in shown
    assert list((folder / "runs").glob("*/why/row-1.json"))


def test_an_exceeded_limit_is_explained(slow_home: tuple[Path, str]) -> None:
    completed = torchyard(slow_home[0], "gate", "latest", "--max-slowdown", "2%", "--why")
    assert completed.returncode == 7, completed.stderr
    assert "sum of all parts" in completed.stdout
    assert "host time outside of operators" in completed.stdout


class CountedLaunches(AttributionSession):
    """A session whose launches take 20 ms and measure nothing."""

    count = 0

    def _launch(self, number: int, scratch: Path) -> None:
        assert scratch.is_dir()
        self.count = number + 1
        time.sleep(0.02)


@pytest.mark.parametrize(("budget_s", "count"), [(0.0, 2), (1e9, 7)])
def test_launches_end_with_the_time(tmp_path: Path, budget_s: float, count: int) -> None:
    variant = Variant(name="eager", target=Target(name="here", python=sys.executable))
    session = CountedLaunches(
        Workload(suite="kernels", name="matmul"),
        variant,
        variant,
        MeasureSettings(),
        launches=7,
        seconds=1.0,
        budget_s=budget_s,
        folder=tmp_path,
        listener=lambda _event: None,
    )
    session.run()
    assert session.count == count


def test_without_a_run(tmp_path: Path) -> None:
    completed = torchyard(tmp_path, "why")
    assert completed.returncode != 0
    assert "there is no run yet" in completed.stderr
