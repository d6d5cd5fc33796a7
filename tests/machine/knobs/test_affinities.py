"""Interrupts and workqueues on fake machines: moved to housekeeping cores and back."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import make_tree
from torchyard.core.cpu_lists import cpus_of_list, cpus_of_mask
from torchyard.machine.knobs import KNOBS

IRQ = "proc/irq"
QUEUES = "sys/devices/virtual/workqueue"
UNLIKE = ("intel-pstate", "cgroup-v1", "cloud-vm")
"""Trees that have least in common."""


def cycle_on(kind: str, folder: Path, *names: str) -> KnobCycle:
    knobs = {name: KNOBS[name] for name in names}
    return KnobCycle(FakeKernel(make_tree(kind, folder / "root")), folder, knobs)


def last_core(round_: KnobCycle) -> tuple[int, ...]:
    return cpus_of_list(round_.text("sys/devices/system/cpu/online"))[-1:]


def refused(round_: KnobCycle) -> Iterator[str]:
    return (change.reason for change in round_.changes if change.state == "refused")


def left(round_: KnobCycle) -> dict[str, object]:
    """What is not as it was found; which processor of its mask handles an interrupt is Linux's."""
    return {path: texts for path, texts in round_.left().items() if "effective_aff" not in path}


# Interrupts.


def test_interrupts_go_to_the_housekeeping_cores(tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path, "interrupts")
    round_.kernel.write(f"{IRQ}/25/smp_affinity", "04")  # on a measuring core only
    round_.kernel.write(f"{IRQ}/26/smp_affinity", "0c")  # on one of each
    round_.found = round_.kernel.snapshot()
    round_.tune(cores=(2, 6))
    housekeeping = (0, 1, 3, 4, 5, 7)
    assert cpus_of_mask(round_.text(f"{IRQ}/default_smp_affinity")) == housekeeping
    assert cpus_of_mask(round_.text(f"{IRQ}/24/smp_affinity")) == housekeeping
    assert cpus_of_mask(round_.text(f"{IRQ}/25/smp_affinity")) == housekeeping
    assert cpus_of_mask(round_.text(f"{IRQ}/26/smp_affinity")) == (3,), "stays near its device"
    round_.kernel.accepted.clear()
    round_.restore()
    # First to where it was handled, then the mask: Linux leaves it there, where it can.
    assert [value for path, value in round_.kernel.accepted if "/26/" in path] == ["04", "0c"]
    assert left(round_) == {}


@pytest.mark.parametrize("code", [errno.EIO, errno.EPERM])
def test_interrupts_bound_to_a_processor_are_reported(code: int, tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path, "interrupts")
    round_.kernel.per_cpu_interrupts = (0,)
    round_.kernel.interrupt_refusal = code
    round_.tune(cores=(2, 6))
    assert list(refused(round_)) == [
        "interrupt 0 is bound to one CPU or managed by its driver and stays there"
    ]
    assert sum(change.state == "written" for change in round_.changes) == 5
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert left(round_) == {}


def test_other_refusals_of_interrupts_stay_as_they_are(tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path, "interrupts")
    round_.kernel.refuse(f"{IRQ}/24/smp_affinity", errno.ENOSPC)
    round_.tune(cores=(2, 6))
    assert [reason for reason in refused(round_) if "No space left" in reason]


def test_masks_that_nobody_may_write_are_counted_and_left_out(tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path, "interrupts")
    for number in (0, 26):
        round_.kernel.path(f"{IRQ}/{number}/smp_affinity").chmod(0o444)
    places = {setting.place for setting in round_.survey(cores=(2, 6))}
    assert f"{IRQ}/0/smp_affinity" not in places
    assert f"{IRQ}/24/smp_affinity" in places
    assert round_.state("interrupts").notes == (
        "2 of 5 interrupts are bound to one CPU or managed by their driver",
    )


@pytest.mark.parametrize("kind", UNLIKE)
def test_interrupts_stay_without_cores(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path, "interrupts", "workqueues")
    assert round_.survey() == []
    for name in ("interrupts", "workqueues"):
        assert "no cores are isolated" in round_.state(name).unavailable


@pytest.mark.parametrize(
    ("cores", "reason"),
    [((99,), "CPUs 99 are not online"), (tuple(range(8)), "leave none for housekeeping")],
)
def test_invalid_cores(cores: tuple[int, ...], reason: str, tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path, "interrupts", "workqueues")
    assert round_.survey(cores=cores) == []
    assert reason in round_.state("interrupts").unavailable
    assert reason in round_.state("workqueues").unavailable


def test_an_interrupt_that_went_away_is_no_obstacle(tmp_path: Path) -> None:
    round_ = cycle_on("amd-acpi", tmp_path, "interrupts")
    round_.tune(cores=(2, 6))
    interrupt_folder = round_.kernel.path(f"{IRQ}/27")
    for file in interrupt_folder.iterdir():
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink()
    interrupt_folder.rmdir()
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


@pytest.mark.parametrize("kind", UNLIKE)
def test_deferred_work_goes_to_the_housekeeping_cores(kind: str, tmp_path: Path) -> None:
    round_ = cycle_on(kind, tmp_path, "workqueues")
    (core,) = last_core(round_)
    round_.tune(cores=(core,))
    for path in (f"{QUEUES}/cpumask", f"{QUEUES}/writeback/cpumask"):
        cpus = cpus_of_mask(round_.text(path))
        assert cpus
        assert core not in cpus
    round_.restore()
    assert left(round_) == {}


def test_what_was_requested_is_restored_and_not_what_was_left_of_it(tmp_path: Path) -> None:
    """Somebody's isolated partition had taken processor 7 out of the mask that is in force."""
    round_ = cycle_on("amd-acpi", tmp_path, "workqueues")
    round_.kernel.put(f"{QUEUES}/cpumask", "7f")
    requested = round_.text(f"{QUEUES}/cpumask_requested")
    round_.tune(cores=(2, 6))
    round_.restore()
    assert round_.text(f"{QUEUES}/cpumask_requested") == requested
    assert round_.kernel.accepted[-1] == (f"{QUEUES}/cpumask", requested)


def test_kernels_that_show_no_requested_mask(tmp_path: Path) -> None:
    round_ = cycle_on("cgroup-v1", tmp_path, "workqueues")
    round_.kernel.path(f"{QUEUES}/cpumask_requested").unlink()
    round_.found = round_.kernel.snapshot()
    settings = round_.survey(cores=(2,))
    assert settings[0].place == f"{QUEUES}/cpumask"
    round_.tune(cores=(2,))
    round_.restore()
    assert left(round_) == {}
