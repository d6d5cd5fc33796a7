"""Kernel knobs on the machine that runs the tests: applied, killed, restored, compared."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine.real_machine import (
    alone_on_machine,
    needs_root,
    quieted_by_another,
    wait_until,
    wait_until_restored,
)
from torchyard.core.cpu_lists import cpus_of_list
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.quieting.apply_settings import QuietSession
from torchyard.machine.quieting.journal import JOURNAL_VARIABLE
from torchyard.machine.quieting.restoring import restore
from torchyard.machine.system.file_tree import FileTree

pytestmark = needs_root

FILES = FileTree()
NAMES = ("huge-pages", "perf-rate", "watchdogs", "interrupts", "workqueues", "numa-balancing")
PATTERNS = (
    "sys/kernel/mm/transparent_hugepage/enabled",
    "sys/kernel/mm/transparent_hugepage/defrag",
    "proc/sys/kernel/perf_event_max_sample_rate",
    "proc/sys/kernel/perf_cpu_time_max_percent",
    "proc/sys/kernel/nmi_watchdog",
    "proc/sys/kernel/numa_balancing",
    "proc/sys/kernel/timer_migration",
    "proc/sys/vm/stat_interval",
    "proc/sys/vm/swappiness",
    "proc/irq/default_smp_affinity",
    "proc/irq/*/smp_affinity",
    "sys/devices/virtual/workqueue/cpumask*",
    "sys/devices/virtual/workqueue/*/cpumask",
    "proc/swaps",
)


def present() -> dict[str, str]:
    return {
        path: FILES.read(path).value or "" for pattern in PATTERNS for path in FILES.paths(pattern)
    }


def online() -> tuple[int, ...]:
    return cpus_of_list(FILES.read("sys/devices/system/cpu/online").value or "")


@pytest.fixture(autouse=True)
def untouched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """What the machine was like; it must be so again after every test."""
    if len(online()) < 2:
        pytest.skip("one processor cannot be divided")
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal"))
    with alone_on_machine():
        settings = present()
        yield settings
        assert present() == settings


def request() -> QuietRequest:
    other = "always" if "[madvise]" in present()[PATTERNS[0]] else "madvise"
    return QuietRequest(only=NAMES, cores=online()[-1:], huge_pages=other)  # type: ignore[arg-type]


def test_quieting_for_a_while(untouched: dict[str, str]) -> None:
    with QuietSession(Machine(), request()) as session:
        reasons = [change.reason for change in session.applied.refused]
        if any("Read-only file system" in reason for reason in reasons):
            pytest.skip("this machine's settings are read-only")
        changed = {path for path, value in present().items() if value != untouched[path]}
        assert {change.setting.knob for change in session.applied.written} >= {
            "huge-pages",
            "perf-rate",
            "watchdogs",
        }
        assert PATTERNS[0] in changed
        assert FILES.read("proc/sys/kernel/perf_event_max_sample_rate").value == "1"
        assert FILES.read("proc/sys/kernel/perf_cpu_time_max_percent").value == "1"
        # What belongs to one processor is left out or said, everything else has moved.
        stay = [change for change in session.applied.refused if "stays there" not in change.reason]
        assert stay == []
    assert session.restored is not None
    assert session.restored.complete


@pytest.mark.parametrize("after", [1, 4, 9])
def test_the_restore_process_restores_after_a_kill(
    after: int, untouched: dict[str, str], tmp_path: Path
) -> None:
    with quieted_by_another(tmp_path / "journal", repr(request()), knobs="KNOBS", after=after):
        wait_until_restored(tmp_path / "journal")
    assert present() == untouched


def test_restore_restores_after_a_kill_of_both_processes(
    untouched: dict[str, str], tmp_path: Path
) -> None:
    with quieted_by_another(tmp_path / "journal", repr(request()), knobs="KNOBS") as pid:
        keepers = _children(pid)
        assert keepers
        for number in (*keepers, pid):
            os.kill(number, signal.SIGKILL)
        wait_until(lambda: all(map(_ended, keepers)))
    assert present() != untouched
    restored = restore(Machine())
    assert restored.complete
    assert present() == untouched


@pytest.mark.parametrize("share", ["0", "100", "30"])
def test_the_profilers_rate_for_every_share(share: str, untouched: dict[str, str]) -> None:
    """Linux refuses rates while the share is 0 or 100, and the rate comes back all the same."""
    place = "proc/sys/kernel/perf_cpu_time_max_percent"
    knob, machine = KNOBS["perf-rate"], Machine()
    if not FILES.writable(place):
        pytest.skip(f"/{place} cannot be written here")
    FILES.write(place, share)
    try:
        settings = knob.survey(machine, QuietRequest()).settings
        for setting in settings:
            knob.write(machine, setting)
        for setting in (*settings, *settings):
            knob.restore(machine, setting)
        assert FILES.read(place).value == share
        assert (
            present()["proc/sys/kernel/perf_event_max_sample_rate"]
            == (untouched["proc/sys/kernel/perf_event_max_sample_rate"])
        )
    finally:
        FILES.write(place, untouched[place])


def test_swap_files_with_priorities_of_the_kernel(
    untouched: dict[str, str], tmp_path: Path
) -> None:
    if len(untouched["proc/swaps"].splitlines()) > 1:
        pytest.skip("this machine has swap of its own, which must stay as it is")
    if not all(shutil.which(name) for name in ("mkswap", "swapon", "swapoff")):
        pytest.skip("the programs of swap are not installed")
    names = [tmp_path / name for name in ("first", "second one", "third")]
    try:
        for path, priority in zip(names, ((), (), ("-p", "7")), strict=True):
            path.write_bytes(bytes(1 << 18))
            path.chmod(0o600)
            subprocess.run(["mkswap", path], check=True, capture_output=True)
            on = subprocess.run(["swapon", *priority, path], check=False, capture_output=True)
            if on.returncode != 0:
                pytest.skip(f"swap files are not possible here: {on.stderr.decode().strip()}")
        machine, knob = Machine(), KNOBS["swap"]
        before = FILES.read("proc/swaps").value
        settings = knob.survey(machine, QuietRequest()).settings
        assert [setting.place for setting in settings] == ["proc/swaps", "proc/sys/vm/swappiness"]
        for setting in settings:
            knob.write(machine, setting)
        assert knob.read(machine, "proc/swaps") == "off"
        assert FILES.read("proc/sys/vm/swappiness").value == "1"
        for setting in reversed(settings):
            knob.restore(machine, setting)
        assert knob.read(machine, "proc/swaps") == settings[0].found
        assert sorted((FILES.read("proc/swaps").value or "").splitlines()) == sorted(
            (before or "").splitlines()
        )
    finally:
        for path in names:
            subprocess.run(["swapoff", path], check=False, capture_output=True)


def test_interrupts_of_processors_cannot_be_moved() -> None:
    """The kernel's answer that the knob explains: EIO, or EPERM on newer kernels."""
    fixed = [
        path
        for path in FILES.paths("proc/irq/[0-9]*/smp_affinity")
        if not FILES.path(path).stat().st_mode & 0o222
    ]
    if not fixed:
        pytest.skip("every interrupt of this machine can be moved")
    value = FILES.read(fixed[0]).value or ""
    setting = Setting(knob="interrupts", place=fixed[0], found=value, wanted="1")
    with pytest.raises(Exception, match="bound to one CPU or managed by its driver"):
        KNOBS["interrupts"].write(Machine(), setting)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def _ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
