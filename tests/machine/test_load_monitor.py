"""The load monitor on written /proc trees and on fake machines."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.machine.trees import KINDS as TREE_KINDS
from tests.machine.trees import make_tree
from torchyard.machine.knob import Machine
from torchyard.machine.load_monitor import (
    KINDS,
    OURSELVES,
    SHORT_LIVED,
    SOURCES,
    InterruptCounts,
    LoadMonitor,
    MonitorScope,
    NoiseSource,
    PageMoves,
    PressureTime,
    ProcessorTime,
    ProcessTime,
    SoftInterruptCounts,
    Source,
    advice_for,
)
from torchyard.machine.system.file_tree import FileTree

TICKS = os.sysconf("SC_CLK_TCK")
OWN = 100
KERNEL_FLAGS = 0x00200040


class Proc:
    """A /proc that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        (folder / "proc").mkdir()

    def scope(self, *cores: int, everywhere: bool = True) -> MonitorScope:
        return MonitorScope(
            files=FileTree(self.root),
            cores=cores or (0, 1),
            everywhere=everywhere,
            own_pid=OWN,
        )

    def write(self, path: str, text: str) -> None:
        file = self.root / "proc" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def process(
        self,
        pid: int,
        name: str,
        cpu_s: float,
        *,
        parent: int = 1,
        flags: int = 0,
        processor: int = 0,
        start: int = 50,
    ) -> None:
        after = ["0"] * 50
        after[0], after[1], after[6] = "R", str(parent), str(flags)
        after[11], after[12] = str(int(cpu_s * TICKS / 2)), str(int(cpu_s * TICKS / 2))
        after[19], after[36] = str(start), str(processor)
        self.write(f"{pid}/stat", f"{pid} ({name}) {' '.join(after)}\n")

    def end(self, pid: int) -> None:
        shutil.rmtree(self.root / "proc" / str(pid))

    def busy(self, *, user_s: float, steal_s: float = 0.0, soft_s: float = 0.0) -> None:
        numbers = [user_s, 0, 0, 0, 0, 0, soft_s, steal_s]
        row = " ".join(str(int(number * TICKS)) for number in numbers)
        half = " ".join(str(int(number * TICKS / 2)) for number in numbers)
        self.write("stat", f"cpu  {row} 0 0\ncpu0 {half} 0 0\ncpu1 {half} 0 0\nintr 5\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_the_first_question_sets_the_start(proc: Proc) -> None:
    proc.process(7, "cc1plus", 40.0)
    assert dict(ProcessTime().since_last(proc.scope())) == {}


def test_processes_by_name_and_our_own_left_out(proc: Proc) -> None:
    source = ProcessTime()
    proc.process(OWN, "torchyard", 1.0)
    proc.process(101, "python", 5.0, parent=OWN)
    proc.process(102, "python", 5.0, parent=101)
    proc.process(7, "cc1plus", 40.0)
    source.since_last(proc.scope())
    proc.process(OWN, "torchyard", 1.2)
    proc.process(101, "python", 6.0, parent=OWN)
    proc.process(102, "python", 6.0, parent=101)
    proc.process(7, "cc1plus", 40.4)
    proc.process(8, "cc1plus", 0.2, start=999)
    usage = source.since_last(proc.scope())
    assert usage == pytest.approx(
        {NoiseSource("process", "cc1plus"): 0.6, NoiseSource("torchyard", OURSELVES): 0.2}
    )


def test_a_reused_pid_is_another_process(proc: Proc) -> None:
    source = ProcessTime()
    proc.process(7, "old", 40.0, start=5)
    source.since_last(proc.scope())
    proc.process(7, "new", 0.5, start=6)
    assert source.since_last(proc.scope()) == pytest.approx({NoiseSource("process", "new"): 0.5})


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("kworker/u8:2-ext4-rsv-conversion", "kworker"),
        ("ksoftirqd/1", "ksoftirqd"),
        ("kdamond.0", "kdamond"),
        ("kswapd0", "kswapd"),
        ("rcu_preempt", "rcu_preempt"),
        ("9", "9"),
    ],
)
def test_kernel_threads_have_one_name_for_all_of_a_kind(proc: Proc, name: str, shown: str) -> None:
    source = ProcessTime()
    proc.process(9, name, 1.0, flags=KERNEL_FLAGS)
    source.since_last(proc.scope())
    proc.process(9, name, 1.5, flags=KERNEL_FLAGS)
    usage = source.since_last(proc.scope())
    assert usage == pytest.approx({NoiseSource("kernel thread", shown): 0.5})


def test_brackets_and_blanks_in_names(proc: Proc) -> None:
    source = ProcessTime()
    proc.process(9, "a) R 1 (b", 1.0)
    source.since_last(proc.scope())
    proc.process(9, "a) R 1 (b", 2.0)
    assert list(source.since_last(proc.scope())) == [NoiseSource("process", "a) R 1 (b")]


def test_with_pinning_only_processes_on_the_cores_count(proc: Proc) -> None:
    source = ProcessTime()
    usage: Mapping[NoiseSource, float] = {}
    for cpu_s in (1.0, 2.0):
        proc.process(7, "here", cpu_s, processor=3)
        proc.process(8, "elsewhere", cpu_s, processor=0)
        usage = source.since_last(proc.scope(2, 3, everywhere=False))
    assert list(usage) == [NoiseSource("process", "here")]


def test_processes_that_lived_between_two_polls_are_a_remainder(proc: Proc) -> None:
    source = ProcessTime()
    proc.process(7, "make", 1.0)
    proc.process(8, "cc1", 2.0)
    proc.busy(user_s=10.0)
    source.since_last(proc.scope())
    proc.end(8)
    proc.process(7, "make", 1.2)
    proc.busy(user_s=11.0)
    usage = source.since_last(proc.scope())
    assert usage[NoiseSource("process", SHORT_LIVED)] == pytest.approx(0.8)


def test_ended_workers_are_not_counted_as_other_processes(proc: Proc) -> None:
    source = ProcessTime()
    proc.process(OWN, "torchyard", 1.0)
    proc.process(101, "python", 5.0, parent=OWN)
    proc.busy(user_s=10.0)
    source.since_last(proc.scope())
    proc.end(101)
    proc.busy(user_s=11.0)
    assert NoiseSource("process", SHORT_LIVED) not in source.since_last(proc.scope())


def test_no_processes_at_all_is_reported(proc: Proc) -> None:
    source = ProcessTime()
    source.since_last(proc.scope())
    assert source.unavailable == "/proc shows no process"


def test_a_process_that_is_half_gone_is_skipped(proc: Proc) -> None:
    proc.write("12/stat", "12 (gone")
    proc.write("13/stat", "")
    proc.process(7, "make", 1.0)
    source = ProcessTime()
    source.since_last(proc.scope())
    assert source.unavailable == ""


def test_steal_and_soft_interrupts_per_core(proc: Proc) -> None:
    source = ProcessorTime()
    proc.busy(user_s=10.0, steal_s=1.0, soft_s=2.0)
    source.since_last(proc.scope())
    proc.busy(user_s=11.0, steal_s=1.4, soft_s=2.2)
    usage = source.since_last(proc.scope())
    # 0.4 s on two cores: each lost 0.2 s.
    assert usage[NoiseSource("steal", "the host")] == pytest.approx(0.2)
    assert usage[NoiseSource("interrupt time", "soft interrupts")] == pytest.approx(0.1)
    assert NoiseSource("interrupt time", "interrupts") not in usage


INTERRUPTS = """\
           CPU0       CPU1       CPU5
 11:       {a}        100          7    GICv3  27 Level     arch_timer
 24:          0        {b}          9 ITS-PCI-MSIX-0000:00:03.0   1 Edge      virtio2-input.0
 99:          {a}        {b}          0   IR-PCI-MSI 524288-edge      eth0-TxRx-0, usb1
IPI0:    {a}          1          1       Rescheduling interrupts
LOC:     {a}          1          1   Local timer interrupts
NMI:     {a}          1          1
ERR:          {a}
"""


def test_interrupts_by_device_on_the_cores(proc: Proc) -> None:
    source = InterruptCounts()
    proc.write("interrupts", INTERRUPTS.format(a=0, b=0))
    source.since_last(proc.scope(0))
    proc.write("interrupts", INTERRUPTS.format(a=10, b=7))
    assert source.since_last(proc.scope(0)) == {
        NoiseSource("timer interrupt", "arch_timer"): 10,
        NoiseSource("interrupt", "eth0-TxRx-0, usb1"): 10,
        NoiseSource("interrupt", "Rescheduling interrupts"): 10,
        NoiseSource("timer interrupt", "Local timer interrupts"): 10,
        NoiseSource("interrupt", "NMI"): 10,
    }
    proc.write("interrupts", INTERRUPTS.format(a=10, b=9))
    assert source.since_last(proc.scope(1)) == {
        NoiseSource("timer interrupt", "arch_timer"): 90,
        NoiseSource("interrupt", "virtio2-input.0"): 9,
    }


def test_soft_interrupts_without_those_that_programs_cause_themselves(proc: Proc) -> None:
    source = SoftInterruptCounts()
    usage: Mapping[NoiseSource, float] = {}
    for count in (0, 50):
        proc.write(
            "softirqs",
            f"     CPU0  CPU1\n  TIMER: {count} 0\n NET_RX: {count} 3\n   RCU: {count} 0\n",
        )
        usage = source.since_last(proc.scope(0))
    assert usage == {NoiseSource("soft interrupt", "NET_RX"): 50}


def test_pressure_in_seconds(proc: Proc) -> None:
    source = PressureTime()
    usage: Mapping[NoiseSource, float] = {}
    for total in (5_000_000, 5_250_000):
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\nfull avg10=0 total=9\n"
        proc.write("pressure/cpu", text)
        usage = source.since_last(proc.scope())
    assert usage == {NoiseSource("waiting for a core", "some process"): 0.25}
    assert source.unavailable == ""


def test_page_moves_and_swap_in_both_directions(proc: Proc) -> None:
    source = PageMoves()
    usage: Mapping[NoiseSource, float] = {}
    for count in (0, 8):
        lines = (f"pswpin {count}", f"pswpout {count}", f"pgmigrate_success {count}", "nr_dirty 3")
        proc.write("vmstat", "\n".join(lines))
        usage = source.since_last(proc.scope())
    assert usage == {
        NoiseSource("swap", "pages swapped"): 16,
        NoiseSource("page moves", "pages migrated"): 8,
    }


def test_a_counter_that_fell_was_reset(proc: Proc) -> None:
    source = PageMoves()
    usage: Mapping[NoiseSource, float] = {}
    for count in (100, 5):
        proc.write("vmstat", f"pswpin {count}\n")
        usage = source.since_last(proc.scope())
    assert usage == {}


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make().name)
def test_a_source_without_its_file_says_why(make: Callable[[], Source], proc: Proc) -> None:
    source = make()
    assert dict(source.since_last(proc.scope())) == {}
    assert source.unavailable
    assert dict(source.since_last(proc.scope())) == {}


@pytest.mark.parametrize("kind", sorted(TREE_KINDS))
def test_fake_machines_can_be_monitored(kind: str, tmp_path: Path) -> None:
    machine = Machine(files=FileTree(make_tree(kind, tmp_path)))
    monitor = LoadMonitor(machine, own_pid=1)
    for _ in range(3):
        monitor.sample()
    assert len(monitor.samples) == 2
    assert all(who.kind in KINDS for one in monitor.samples for who in one.amounts)


def test_amounts_are_rates_in_the_unit_of_the_kind(proc: Proc) -> None:
    monitor = LoadMonitor(Machine(files=FileTree(proc.root)), cores=(0, 1), own_pid=OWN)
    proc.process(7, "cc1plus", 1.0)
    proc.write("vmstat", "pswpin 0\n")
    proc.write("interrupts", INTERRUPTS.format(a=0, b=0))
    proc.busy(user_s=1.0)
    monitor.sample()
    time.sleep(0.1)
    proc.process(7, "cc1plus", 2.0)
    proc.write("vmstat", "pswpin 50\n")
    proc.write("interrupts", INTERRUPTS.format(a=0, b=60))
    proc.busy(user_s=2.0, steal_s=500.0)
    monitor.sample()
    (sample,) = monitor.samples
    seconds = (sample.ended_ns - sample.started_ns) / 1e9
    amounts = sample.amounts
    assert amounts[NoiseSource("process", "cc1plus")] == pytest.approx(1.0 / seconds)
    assert amounts[NoiseSource("swap", "pages swapped")] == pytest.approx(50 / seconds)
    assert amounts[NoiseSource("interrupt", "virtio2-input.0")] == pytest.approx(30 / seconds)
    assert amounts[NoiseSource("steal", "the host")] == 1.0


def test_advice_knows_kernel_threads() -> None:
    assert "DAMON" in advice_for(NoiseSource("kernel thread", "kdamond"))
    assert advice_for(NoiseSource("kernel thread", "strange")) == KINDS["kernel thread"].advice
    assert all(kind.advice and kind.limit > 0 for kind in KINDS.values())
