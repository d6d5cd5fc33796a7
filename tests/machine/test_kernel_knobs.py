"""Knobs of the kernel on every fake machine: what is written, what is said, what comes back."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kernel import FakeKernel
from fake_programs import put_programs
from knob_rounds import Round
from trees import KINDS, make_tree

from torchyard.core.machine import EFFECTS, Wish
from torchyard.machine.file_tree import FileTree, cpus_of_list, cpus_of_mask
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS

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
IRQ = "proc/irq"
QUEUES = "sys/devices/virtual/workqueue"
UNLIKE = ("intel-pstate", "cgroup-v1", "cloud-vm")
"""Trees that have least in common."""


def round_on(kind: str, folder: Path, *names: str) -> Round:
    root = make_tree(kind, folder / "root")
    put_programs(root)
    knobs = {name: KNOBS[name] for name in names or NAMES}
    return Round(FakeKernel(root), folder, knobs)


def last_core(round_: Round) -> tuple[int, ...]:
    return cpus_of_list(round_.text("sys/devices/system/cpu/online"))[-1:]


def refused(round_: Round) -> Iterator[str]:
    return (change.reason for change in round_.changes if change.state == "refused")


def left(round_: Round) -> dict[str, object]:
    """What is not as it was found; which processor of its mask handles an interrupt is Linux's."""
    return {path: texts for path, texts in round_.left().items() if "effective_aff" not in path}


# All of them together.


@pytest.mark.parametrize("kind", KINDS)
def test_everything_comes_back_byte_for_byte(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path)
    round_.tune(cores=last_core(round_), huge_pages="always")
    assert list(refused(round_)) == []
    for name in ("interrupts", "workqueues", "perf-rate", "watchdogs", "huge-pages"):
        assert any(change.setting.knob == name for change in round_.changes), name
    restored = round_.restore()
    assert restored is not None
    assert restored.missing == ()
    assert left(round_) == {}


@pytest.mark.parametrize("kind", UNLIKE)
def test_a_second_restore_changes_nothing(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path)
    round_.tune(cores=last_core(round_))
    for change in (*round_.changes, *round_.changes):
        KNOBS[change.setting.knob].restore(round_.machine, change.setting)
    assert round_.restore() is not None
    assert left(round_) == {}


@pytest.mark.parametrize("after", range(0, 12, 3))
def test_a_tune_that_dies_half_way_comes_back(after: int, tmp_path: Path) -> None:
    round_ = round_on("intel-pstate", tmp_path)
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
def test_only_looking_changes_nothing(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path)
    settings = round_.survey(cores=last_core(round_), huge_pages="never")
    assert settings
    assert left(round_) == {}
    assert round_.kernel.accepted == []


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_machine_says_why(name: str, tmp_path: Path) -> None:
    state = KNOBS[name].survey(Machine(files=FileTree(tmp_path)), Wish(cores=(1,)))
    assert state.settings == ()
    assert state.unavailable


@pytest.mark.parametrize("name", NAMES)
def test_every_knob_speaks_for_itself(name: str) -> None:
    knob = KNOBS[name]
    assert knob.name == name
    assert knob.effect in EFFECTS
    assert knob.reach == "machine"
    assert knob.needs_root
    assert knob.profile == "cpu"
    assert len(knob.about) < 60
    assert knob.why.endswith(".")


def test_read_only_machines_refuse_and_are_left_alone(tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path, "perf-rate", "watchdogs", "numa-balancing")
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
    round_ = round_on(kind, tmp_path, "huge-pages")
    enabled, defrag = round_.survey()
    assert enabled.found == enabled.wanted
    assert enabled.found in ("always", "madvise")
    assert defrag.found == defrag.wanted == "madvise"
    assert round_.tune() == []
    assert "kept as it is" in round_.state("huge-pages").notes[0]


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
def test_huge_pages_by_wish(wanted: str, enabled: str, defrag: str, tmp_path: Path) -> None:
    round_ = round_on("amd-epp", tmp_path, "huge-pages")
    assert round_.text(f"{THP}/enabled") == "[always] madvise never"
    round_.tune(huge_pages=wanted)
    assert round_.text(f"{THP}/enabled") == enabled
    assert round_.text(f"{THP}/defrag") == defrag
    round_.restore()
    assert left(round_) == {}


def test_a_kernel_without_huge_pages(tmp_path: Path) -> None:
    round_ = round_on("cloud-vm", tmp_path, "huge-pages")
    round_.kernel.path(f"{THP}/enabled").unlink()
    round_.survey(huge_pages="always")
    assert "no transparent huge pages" in round_.state("huge-pages").unavailable


# Memory between nodes.


def test_memory_stays_on_its_node(tmp_path: Path) -> None:
    round_ = round_on("intel-pstate", tmp_path, "numa-balancing")
    place = "proc/sys/kernel/numa_balancing"
    round_.kernel.put(place, "2")  # memory tiering, which 1 would lose
    round_.found = round_.kernel.snapshot()
    round_.tune()
    assert round_.text(place) == "0"
    round_.restore()
    assert round_.text(place) == "2"
    assert left(round_) == {}


def test_a_kernel_that_moves_no_memory(tmp_path: Path) -> None:
    round_ = round_on("cloud-vm", tmp_path, "numa-balancing")
    assert round_.survey() == []
    assert "does not balance memory" in round_.state("numa-balancing").unavailable


# Profiler.


@pytest.mark.parametrize("share", ["25", "0", "100", "1"])
@pytest.mark.parametrize("rate", ["100000", "12345", "1"])
def test_the_rate_comes_back_whatever_the_share_is(share: str, rate: str, tmp_path: Path) -> None:
    """Linux refuses rates while the share is 0 or 100."""
    round_ = round_on("arm-bare", tmp_path, "perf-rate")
    round_.kernel.put(RATE, rate)
    round_.kernel.put(SHARE, share)
    round_.found = round_.kernel.snapshot()
    round_.tune()
    assert list(refused(round_)) == []
    assert (round_.text(RATE), round_.text(SHARE)) == ("1", "1")
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert left(round_) == {}


def test_the_rate_comes_back_after_the_share(tmp_path: Path) -> None:
    round_ = round_on("arm-bare", tmp_path, "perf-rate")
    round_.kernel.put(SHARE, "100")
    share, rate = round_.survey()
    assert (share.place, rate.place) == (SHARE, RATE)
    knob = KNOBS["perf-rate"]
    for setting in (share, rate):
        knob.write(round_.machine, setting)
    for setting in (share, rate, share, rate):
        knob.restore(round_.machine, setting)
    assert (round_.text(RATE), round_.text(SHARE)) == ("100000", "100")


def test_a_rate_that_the_kernel_lowered_comes_back(tmp_path: Path) -> None:
    round_ = round_on("arm-bare", tmp_path, "perf-rate")
    round_.tune()
    round_.kernel.put(RATE, "500")
    restored = round_.restore()
    assert restored is not None
    assert [item.meanwhile for item in restored.settings if item.meanwhile] == ["500"]
    assert left(round_) == {}


# Watchdogs and timers.


@pytest.mark.parametrize("kind", UNLIKE)
def test_timers_of_the_kernel(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path, "watchdogs")
    round_.tune()
    assert [round_.text(path) for path in (NMI, STAT, MIGRATION)] == ["0", "10", "0"]


def test_a_longer_interval_is_kept(tmp_path: Path) -> None:
    round_ = round_on("intel-pstate", tmp_path, "watchdogs")
    round_.kernel.put(STAT, "120")
    round_.tune()
    assert round_.text(STAT) == "120"


def test_missing_timers_are_said_and_the_rest_is_done(tmp_path: Path) -> None:
    round_ = round_on("intel-pstate", tmp_path, "watchdogs")
    round_.kernel.path(NMI).unlink()
    round_.tune()
    assert round_.text(MIGRATION) == "0"
    assert any(NMI in note for note in round_.state("watchdogs").notes)


# Interrupts.


def test_interrupts_go_to_the_house(tmp_path: Path) -> None:
    round_ = round_on("amd-acpi", tmp_path, "interrupts")
    round_.kernel.write(f"{IRQ}/25/smp_affinity", "04")  # on a measuring core only
    round_.kernel.write(f"{IRQ}/26/smp_affinity", "0c")  # on one of each
    round_.found = round_.kernel.snapshot()
    round_.tune(cores=(2, 6))
    house = (0, 1, 3, 4, 5, 7)
    assert cpus_of_mask(round_.text(f"{IRQ}/default_smp_affinity")) == house
    assert cpus_of_mask(round_.text(f"{IRQ}/24/smp_affinity")) == house
    assert cpus_of_mask(round_.text(f"{IRQ}/25/smp_affinity")) == house
    assert cpus_of_mask(round_.text(f"{IRQ}/26/smp_affinity")) == (3,), "stays near its device"
    round_.kernel.accepted.clear()
    round_.restore()
    # First to where it was handled, then the mask: Linux leaves it there, where it can.
    assert [value for path, value in round_.kernel.accepted if "/26/" in path] == ["04", "0c"]
    assert left(round_) == {}


@pytest.mark.parametrize("code", [errno.EIO, errno.EPERM])
def test_interrupts_that_belong_to_a_processor_are_said(code: int, tmp_path: Path) -> None:
    round_ = round_on("amd-acpi", tmp_path, "interrupts")
    round_.kernel.per_cpu_interrupts = (0,)
    round_.kernel.interrupt_refusal = code
    round_.tune(cores=(2, 6))
    assert list(refused(round_)) == [
        "interrupt 0 belongs to one processor or to its driver and stays there"
    ]
    assert sum(change.state == "written" for change in round_.changes) == 5
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert left(round_) == {}


def test_other_refusals_of_interrupts_stay_as_they_are(tmp_path: Path) -> None:
    round_ = round_on("amd-acpi", tmp_path, "interrupts")
    round_.kernel.refuse(f"{IRQ}/24/smp_affinity", errno.ENOSPC)
    round_.tune(cores=(2, 6))
    assert [reason for reason in refused(round_) if "No space left" in reason]


def test_masks_that_nobody_may_write_are_counted_and_left_out(tmp_path: Path) -> None:
    round_ = round_on("amd-acpi", tmp_path, "interrupts")
    for number in (0, 26):
        round_.kernel.path(f"{IRQ}/{number}/smp_affinity").chmod(0o444)
    places = {setting.place for setting in round_.survey(cores=(2, 6))}
    assert f"{IRQ}/0/smp_affinity" not in places
    assert f"{IRQ}/24/smp_affinity" in places
    assert round_.state("interrupts").notes == (
        "2 of 5 interrupts belong to one processor or to their driver, and stay",
    )


@pytest.mark.parametrize("kind", UNLIKE)
def test_interrupts_stay_without_cores(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path, "interrupts", "workqueues")
    assert round_.survey() == []
    for name in ("interrupts", "workqueues"):
        assert "no cores are set apart" in round_.state(name).unavailable


@pytest.mark.parametrize(
    ("cores", "reason"),
    [((99,), "processors 99 are not online"), (tuple(range(8)), "leave none to the house")],
)
def test_cores_that_cannot_be(cores: tuple[int, ...], reason: str, tmp_path: Path) -> None:
    round_ = round_on("amd-acpi", tmp_path, "interrupts", "workqueues")
    assert round_.survey(cores=cores) == []
    assert reason in round_.state("interrupts").unavailable
    assert reason in round_.state("workqueues").unavailable


def test_an_interrupt_that_went_away_is_no_obstacle(tmp_path: Path) -> None:
    round_ = round_on("amd-acpi", tmp_path, "interrupts")
    round_.tune(cores=(2, 6))
    gone = round_.kernel.path(f"{IRQ}/27")
    for file in gone.iterdir():
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink()
    gone.rmdir()
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert all(path.startswith(f"{IRQ}/27") for path in left(round_))


def test_masks_of_large_machines_are_compared_by_their_bits() -> None:
    same = KNOBS["interrupts"].same
    assert same("", "ff", "00000000,000000ff")
    assert not same("", "ff", "000000ff,00000000")
    assert same("", "gone", "ff")


# Workqueues.


@pytest.mark.parametrize("kind", KINDS)
def test_deferred_work_goes_to_the_house(kind: str, tmp_path: Path) -> None:
    round_ = round_on(kind, tmp_path, "workqueues")
    (core,) = last_core(round_)
    round_.tune(cores=(core,))
    for path in (f"{QUEUES}/cpumask", f"{QUEUES}/writeback/cpumask"):
        cpus = cpus_of_mask(round_.text(path))
        assert cpus
        assert core not in cpus
    round_.restore()
    assert left(round_) == {}


def test_what_was_requested_comes_back_and_not_what_was_left_of_it(tmp_path: Path) -> None:
    """Somebody's isolated partition had taken processor 7 out of the mask that is in force."""
    round_ = round_on("amd-acpi", tmp_path, "workqueues")
    round_.kernel.put(f"{QUEUES}/cpumask", "7f")
    requested = round_.text(f"{QUEUES}/cpumask_requested")
    round_.tune(cores=(2, 6))
    round_.restore()
    assert round_.text(f"{QUEUES}/cpumask_requested") == requested
    assert round_.kernel.accepted[-1] == (f"{QUEUES}/cpumask", requested)


def test_kernels_that_show_no_requested_mask(tmp_path: Path) -> None:
    round_ = round_on("cgroup-v1", tmp_path, "workqueues")
    round_.kernel.path(f"{QUEUES}/cpumask_requested").unlink()
    round_.found = round_.kernel.snapshot()
    settings = round_.survey(cores=(2,))
    assert settings[0].place == f"{QUEUES}/cpumask"
    round_.tune(cores=(2,))
    round_.restore()
    assert left(round_) == {}
