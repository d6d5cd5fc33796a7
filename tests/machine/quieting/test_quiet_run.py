"""A machine that is quieted for a run and restored: on copies, and for real with `bench --tune`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.tiny_bench import write_file
from tests.machine.trees import make_tree
from torchyard.core.study import Study, Target, Variant, Workload
from torchyard.errors import ResultsDamaged
from torchyard.machine.model import AppliedSettings, KnobState, QuietRequest, Setting, SettingChange
from torchyard.machine.quieting.journal import (
    JOURNAL_FILE,
    JOURNAL_VARIABLE,
    Journal,
    JournalLock,
    boot_of,
)
from torchyard.machine.quieting.quiet_run import QuietMachine, quieting_facts, request_for
from torchyard.machine.system.file_tree import FileTree
from torchyard.results.run_reader import read_run

ASLR = "proc/sys/kernel/randomize_va_space"
ASLR_OFF = QuietRequest(only=("aslr",), randomize="off")
HERE = Target(name="here", python=sys.executable)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree("arm-bare", tmp_path / "root")


def study(*devices: str) -> Study:
    return Study(
        name="s",
        baseline=Variant(name="a", target=HERE),
        candidates=(Variant(name="b", target=HERE),),
        workloads=tuple(Workload(suite="models", name="gpt", device=device) for device in devices),
    )


@pytest.mark.parametrize(
    ("profile", "devices", "profiles"),
    [
        ("auto", ("cpu",), ("cpu",)),
        ("auto", ("cpu", "cuda:1"), ("cpu", "gpu")),
        ("cpu", ("cuda",), ("cpu",)),
        ("gpu", ("cpu",), ("gpu",)),
        ("all", ("cpu",), ("cpu", "gpu")),
    ],
)
def test_profiles_of_a_study(
    profile: str, devices: tuple[str, ...], profiles: tuple[str, ...]
) -> None:
    assert request_for(profile, study(*devices)).profiles == profiles


def test_a_run_without_requested_settings_changes_nothing(root: Path) -> None:
    with QuietMachine(None, files=FileTree(root)) as machine:
        assert (machine.tuned, machine.before) == (None, [])
        assert (root / ASLR).read_text() == "2\n"
    assert machine.after == []
    assert machine.is_back
    assert not (root / "var").exists()


def test_a_run_with_requested_settings_is_restored(root: Path) -> None:
    cpus, nice = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
    with QuietMachine(ASLR_OFF, files=FileTree(root)) as machine:
        assert (root / ASLR).read_text() == "0"
        assert machine.tuned is not None
        assert len(machine.tuned.written) == 1
    assert (root / ASLR).read_text() == "2"
    assert (machine.after, machine.is_back) == ([], True)
    assert (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)) == (cpus, nice)


def test_settings_that_are_not_restored_are_reported(root: Path) -> None:
    with QuietMachine(ASLR_OFF, files=FileTree(root)) as machine:
        (root / ASLR).unlink()
    assert not machine.is_back
    (line,) = machine.after
    assert f"/{ASLR} could not be restored to '2'" in line
    assert "torchyard machine restore" in line


def interrupt(root: Path, folder: Path | None = None) -> None:
    """Write the journal and the value of a quieting whose owner and restore process were killed."""
    home = folder or root / "var/lib/torchyard/machine"
    home.mkdir(parents=True)
    setting = Setting(knob="aslr", place=ASLR, found="2", wanted="0")
    journal = Journal.create(
        home,
        mode="session",
        request=QuietRequest(),
        boot=boot_of(FileTree(root)),
        settings=[setting],
    )
    journal.note("writing", setting)
    journal.close()
    path = home / JOURNAL_FILE
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', '"pid": 4194999'))


@pytest.mark.parametrize("quiet_request", [None, ASLR_OFF])
def test_settings_of_a_killed_process_are_restored_first(
    root: Path, quiet_request: QuietRequest | None
) -> None:
    interrupt(root)
    (root / ASLR).write_text("0\n")
    with QuietMachine(quiet_request, files=FileTree(root)) as machine:
        assert any("process 4194999" in line and "restored" in line for line in machine.before)
        assert (root / ASLR).read_text() == ("2" if quiet_request is None else "0")
    assert (root / ASLR).read_text() == "2"


def test_a_damaged_journal_warns_and_forbids_quieting(root: Path) -> None:
    home = root / "var/lib/torchyard/machine"
    home.mkdir(parents=True)
    (home / JOURNAL_FILE).write_text("x\ny\n")
    with QuietMachine(None, files=FileTree(root)) as machine:
        assert "may not be restored" in machine.before[0]
    with pytest.raises(ResultsDamaged):
        QuietMachine(ASLR_OFF, files=FileTree(root)).__enter__()


def test_without_root_a_killed_quieting_is_a_warning(tmp_path: Path) -> None:
    """As another user, of this very machine; nothing is written."""
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    code = (
        "from torchyard.machine.quieting.quiet_run import QuietMachine\n"
        "with QuietMachine(None) as machine: print(machine.before)\n"
    )
    ready = [*nobody, sys.executable, "-c", "import torchyard"]
    if os.geteuid() != 0 or subprocess.run(ready, check=False, capture_output=True).returncode:
        pytest.skip("needs root, and an interpreter that others may run")
    tmp_path.chmod(0o755)
    home = Path("/tmp") / f"torchyard-journal-{os.getpid()}"
    interrupt(Path("/"), home)
    try:
        completed = subprocess.run(
            [*nobody, sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, JOURNAL_VARIABLE: str(home)},
        )
    finally:
        for path in home.iterdir():
            path.unlink()
        home.rmdir()
    assert "still has the settings of a killed session" in completed.stdout
    assert "sudo torchyard machine restore" in completed.stdout


def test_facts_of_quieting() -> None:
    def change(knob: str, n: int, state: str, reason: str = "") -> SettingChange:
        setting = Setting(knob=knob, place=f"sys/policy{n}/governor", found="slow", wanted="fast")
        return SettingChange(setting=setting, state=state, reason=reason)  # type: ignore[arg-type]

    changes = [change("governor", n, "written") for n in range(4)]
    changes += [change("turbo", 1, "refused", "no"), change("swap", 1, "already so")]
    states = [KnobState(knob=name) for name in ("governor", "turbo", "swap")]
    states.append(KnobState(knob="smt", unavailable="one thread"))
    tuned = AppliedSettings(request=QuietRequest(), knobs=tuple(states), changes=tuple(changes))
    assert quieting_facts(tuned) == {
        "written": {"governor": "governor: slow -> fast"},
        "refused": {"turbo": "governor: slow -> fast (no)"},
        "unavailable": {"smt": "one thread"},
    }
    assert quieting_facts(AppliedSettings(request=QuietRequest(), knobs=())) == {}


# `bench --tune` of this machine.

STEP = """
    import torch

    def make():
        return (lambda x: x + 1), torch.ones(4)
"""
WATCHED = (Path("/proc/sys/kernel/perf_event_max_sample_rate"), Path("/proc/sys/vm/stat_interval"))


def watched() -> list[str]:
    return [path.read_text() for path in WATCHED]


def until(done: Callable[[], bool], *, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


def bench(folder: Path, *more: str) -> list[str]:
    words = [
        "bench",
        "--run-dir",
        str(folder / "run"),
        "--tune",
        "--tune-profile",
        "cpu",
        "--candidate",
        "eager",
    ]
    words += ["--only", write_file(folder, "step.py", STEP), "--threads", "1", "--json", *more]
    return [sys.executable, "-m", "torchyard", *words]


AS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not all(os.access(path, os.W_OK) for path in WATCHED),
    reason="needs root on a machine of its own",
)


@AS_ROOT
@pytest.mark.torch
def test_a_quieted_bench_records_changes_and_restores_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal"))
    before = watched()
    completed = subprocess.run(
        bench(tmp_path, "--time", "1s", "--launches", "1"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode in {0, 6}, completed.stderr
    assert watched() == before
    machine = read_run(tmp_path / "run").info["machine"]
    assert machine["tune"]["written"]["perf-rate"]
    assert json.loads(completed.stdout)["machine"]["tune"] == machine["tune"]
    assert not (tmp_path / "journal" / JOURNAL_FILE).exists()


@AS_ROOT
@pytest.mark.torch
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_quieted_bench_that_is_ended_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal"))
    before = watched()
    process = subprocess.Popen(
        bench(tmp_path, "--time", "5m", "--precision-goal", "0%"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    samples = tmp_path / "run/samples.jsonl"
    try:
        until(lambda: samples.exists() and samples.stat().st_size > 0, limit_s=90)
        assert watched() != before
    finally:
        process.send_signal(number)
        code = process.wait(timeout=60)
    lock = JournalLock.take(tmp_path / "journal", wait_s=30)
    assert lock is not None
    lock.release()
    assert watched() == before
    assert not (tmp_path / "journal" / JOURNAL_FILE).exists()
    if number == signal.SIGTERM:
        assert code == 143
        assert read_run(tmp_path / "run").state == "interrupted"
