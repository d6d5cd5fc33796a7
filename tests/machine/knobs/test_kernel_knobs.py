"""Kernel knobs on every fake machine: writes, notes, restore."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.fake_programs import put_programs
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import make_tree
from torchyard.core.cpu_lists import cpus_of_list
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import EFFECTS, QuietRequest
from torchyard.machine.system.file_tree import FileTree

NAMES = (
    "irqbalance",
    "interrupts",
    "workqueues",
    "numa-balancing",
    "huge-pages",
    "swap",
    "perf-rate",
    "watchdogs",
)
THP = "sys/kernel/mm/transparent_hugepage"
RATE = "proc/sys/kernel/perf_event_max_sample_rate"
SHARE = "proc/sys/kernel/perf_cpu_time_max_percent"
NMI = "proc/sys/kernel/nmi_watchdog"
STAT = "proc/sys/vm/stat_interval"
MIGRATION = "proc/sys/kernel/timer_migration"
UNLIKE = ("intel-pstate", "cgroup-v1", "cloud-vm")
"""Trees that have least in common."""


def cycle_on(kind: str, folder: Path, *names: str) -> KnobCycle:
    root = make_tree(kind, folder / "root")
    put_programs(root)
    knobs = {name: KNOBS[name] for name in names or NAMES}
    return KnobCycle(FakeKernel(root), folder, knobs)


def last_core(round_: KnobCycle) -> tuple[int, ...]:
    return cpus_of_list(round_.text("sys/devices/system/cpu/online"))[-1:]


def refused(round_: KnobCycle) -> Iterator[str]:
    return (change.reason for change in round_.changes if change.state == "refused")


def left(round_: KnobCycle) -> dict[str, object]:
    """What is not as it was found; which processor of its mask handles an interrupt is Linux's."""
    return {path: texts for path, texts in round_.left().items() if "effective_aff" not in path}


def small(folder: Path, name: str, files: dict[str, str]) -> KnobCycle:
    """A machine that has these files and nothing else."""
    for path, text in files.items():
        place = folder / "root" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text + "\n")
    return KnobCycle(FakeKernel(folder / "root"), folder, {name: KNOBS[name]})


# All of them together.


@pytest.mark.parametrize("kind", UNLIKE)
def test_everything_is_restored_byte_for_byte(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    round_.tune(cores=last_core(round_), huge_pages="always")
    assert list(refused(round_)) == []
    for name in ("interrupts", "workqueues", "perf-rate", "watchdogs", "huge-pages"):
        assert any(change.setting.knob == name for change in round_.changes), name
    restored = round_.restore()
    assert restored is not None
    assert restored.missing == ()
    assert left(round_) == {}


def test_a_second_restore_changes_nothing(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path)
    round_.tune(cores=last_core(round_))
    for change in (*round_.changes, *round_.changes):
        KNOBS[change.setting.knob].restore(round_.machine, change.setting)
    assert round_.restore() is not None
    assert left(round_) == {}


@pytest.mark.parametrize("after", [0, 6])
def test_quieting_that_dies_half_way_is_restored(after: int, tmp_path: Path) -> None:
    round_ = cycle_on("intel-pstate", tmp_path)
    round_.kernel.dies_after = after
    with pytest.raises(KeyboardInterrupt):
        round_.tune(cores=(1,))
    round_.kernel.dies_after = None
    assert left(round_) or after == 0
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert left(round_) == {}


@pytest.mark.parametrize("kind", UNLIKE)
def test_a_survey_alone_changes_nothing(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path)
    settings = round_.survey(cores=last_core(round_), huge_pages="never")
    assert settings
    assert left(round_) == {}
    assert round_.kernel.accepted == []


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_machine_says_why(name: str, tmp_path: Path) -> None:
    state = KNOBS[name].survey(Machine(files=FileTree(tmp_path)), QuietRequest(cores=(1,)))
    assert state.settings == ()
    assert state.unavailable


@pytest.mark.parametrize("name", NAMES)
def test_every_knob_has_texts(name: str) -> None:
    knob = KNOBS[name]
    assert knob.name == name
    assert knob.described.effect in EFFECTS
    assert knob.reach == "machine"
    assert knob.needs_root
    assert knob.profile == "cpu"
    assert len(knob.described.about) < 60
    assert knob.described.why.endswith(".")


def test_read_only_machines_refuse_and_are_left_alone(tmp_path: Path) -> None:
    round_ = cycle_on("amd-epp", tmp_path, "perf-rate", "watchdogs", "numa-balancing")
    for path in (RATE, SHARE, NMI, STAT, MIGRATION):
        round_.kernel.refuse(path, errno.EROFS)
    round_.tune()
    reasons = list(refused(round_))
    assert len(reasons) == 5
    assert all("Read-only file system" in reason for reason in reasons)
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert left(round_) == {}


# Huge pages.


@pytest.mark.parametrize("kind", UNLIKE)
def test_huge_pages_are_kept_and_recorded(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path, "huge-pages")
    enabled, defrag = round_.survey()
    assert enabled.found == enabled.wanted
    assert enabled.found in ("always", "madvise")
    assert defrag.found == defrag.wanted == "madvise"
    assert round_.tune() == []
    assert "kept and recorded" in round_.state("huge-pages").notes[0]


@pytest.mark.parametrize(
    ("wanted", "enabled", "defrag"),
    [
        (
            "always",
            "[always] madvise never",
            "[always] defer defer+madvise madvise never",
        ),
        (
            "madvise",
            "always [madvise] never",
            "always defer defer+madvise [madvise] never",
        ),
        (
            "never",
            "always madvise [never]",
            "always defer defer+madvise [madvise] never",
        ),
    ],
)
def test_huge_pages_on_request(wanted: str, enabled: str, defrag: str, tmp_path: Path) -> None:
    choices = "always defer defer+madvise [madvise] never"
    files = {f"{THP}/enabled": "[always] madvise never", f"{THP}/defrag": choices}
    round_ = small(tmp_path, "huge-pages", files)
    round_.tune(huge_pages=wanted)
    assert round_.text(f"{THP}/enabled") == enabled
    assert round_.text(f"{THP}/defrag") == defrag
    round_.restore()
    assert left(round_) == {}


def test_a_kernel_without_huge_pages(tmp_path: Path) -> None:
    round_ = cycle_on("cloud-vm", tmp_path, "huge-pages")
    round_.kernel.path(f"{THP}/enabled").unlink()
    round_.survey(huge_pages="always")
    assert "no transparent huge pages" in round_.state("huge-pages").unavailable


# Memory between nodes.


def test_memory_stays_on_its_node(tmp_path: Path) -> None:
    place = "proc/sys/kernel/numa_balancing"
    # 2 is memory tiering, which 1 would lose.
    round_ = small(tmp_path, "numa-balancing", {place: "2"})
    round_.tune()
    assert round_.text(place) == "0"
    round_.restore()
    assert round_.text(place) == "2"
    assert left(round_) == {}


def test_a_kernel_that_moves_no_memory(tmp_path: Path) -> None:
    round_ = cycle_on("cloud-vm", tmp_path, "numa-balancing")
    assert round_.survey() == []
    assert "has no NUMA balancing" in round_.state("numa-balancing").unavailable


# Profiler.


@pytest.mark.parametrize("share", ["25", "0", "100", "1"])
@pytest.mark.parametrize("rate", ["100000", "12345", "1"])
def test_the_rate_is_restored_whatever_the_share_is(share: str, rate: str, tmp_path: Path) -> None:
    """Linux refuses rates while the share is 0 or 100."""
    round_ = small(tmp_path, "perf-rate", {RATE: rate, SHARE: share})
    round_.tune()
    assert list(refused(round_)) == []
    assert (round_.text(RATE), round_.text(SHARE)) == ("1", "1")
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert left(round_) == {}


def test_the_rate_is_restored_after_the_share(tmp_path: Path) -> None:
    round_ = small(tmp_path, "perf-rate", {RATE: "100000", SHARE: "100"})
    share, rate = round_.survey()
    assert (share.place, rate.place) == (SHARE, RATE)
    knob = KNOBS["perf-rate"]
    for setting in (share, rate):
        knob.write(round_.machine, setting)
    for setting in (share, rate, share, rate):
        knob.restore(round_.machine, setting)
    assert (round_.text(RATE), round_.text(SHARE)) == ("100000", "100")


def test_a_rate_that_the_kernel_lowered_is_restored(tmp_path: Path) -> None:
    round_ = small(tmp_path, "perf-rate", {RATE: "100000", SHARE: "25"})
    round_.tune()
    round_.kernel.put(RATE, "500")
    restored = round_.restore()
    assert restored is not None
    assert [item.meanwhile for item in restored.settings if item.meanwhile] == ["500"]
    assert left(round_) == {}


# Watchdogs and timers.


@pytest.mark.parametrize("kind", UNLIKE)
def test_timers_of_the_kernel(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path, "watchdogs")
    round_.tune()
    assert [round_.text(path) for path in (NMI, STAT, MIGRATION)] == ["0", "10", "0"]


def test_a_longer_interval_is_kept(tmp_path: Path) -> None:
    round_ = small(tmp_path, "watchdogs", {NMI: "1", STAT: "120", MIGRATION: "1"})
    round_.tune()
    assert round_.text(STAT) == "120"


def test_missing_timers_are_reported_and_the_rest_is_done(tmp_path: Path) -> None:
    round_ = small(tmp_path, "watchdogs", {STAT: "1", MIGRATION: "1"})
    round_.tune()
    assert round_.text(MIGRATION) == "0"
    assert any(NMI in note for note in round_.state("watchdogs").notes)
