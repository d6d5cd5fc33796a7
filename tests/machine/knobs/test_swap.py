"""Swap areas are disabled and restored with their priorities, also after partial work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machine.fake_kernel import FakeKernel
from tests.machine.fake_programs import calls, put_programs, refuse_program
from tests.machine.knob_cycle import KnobCycle
from tests.machine.trees import make_tree
from torchyard.machine.knobs import KNOBS
from torchyard.machine.model import Setting

KNOB = KNOBS["swap"]
SWAPPINESS = "proc/sys/vm/swappiness"
HEAD = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"


def machine_with(folder: Path, *areas: tuple[str, int, int]) -> KnobCycle:
    """Areas are (name as the kernel writes it, KiB used, priority), in the kernel's order."""
    root = make_tree("intel-pstate", folder / "root")
    put_programs(root)
    rows = [
        f"{name:<40}{'partition' if name.startswith('/dev') else 'file'}\t8388604\t\t{used}\t\t{prio}\n"
        for name, used, prio in areas
    ]
    (root / "proc/swaps").write_text(HEAD + "".join(rows))
    return KnobCycle(FakeKernel(root), folder, {"swap": KNOB})


def test_swap_areas_are_disabled_and_restored_with_their_priorities(tmp_path: Path) -> None:
    round_ = machine_with(
        tmp_path, ("/dev/zram0", 0, 100), ("/dev/sda2", 0, -2), ("/swap\\040file", 0, -3)
    )
    round_.tune()
    assert [change.state for change in round_.changes] == ["written", "written"]
    assert round_.text("proc/swaps") == HEAD.strip()
    assert round_.text(SWAPPINESS) == "1"
    assert calls(round_.kernel.root) == [
        "swapoff /swap file",
        "swapoff /dev/sda2",
        "swapoff /dev/zram0",
    ]
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert calls(round_.kernel.root)[3:] == [
        "swapon -p 100 /dev/zram0",
        "swapon /dev/sda2",
        "swapon /swap file",
    ]
    assert round_.left() == {}


@pytest.mark.parametrize("kind", ["intel-pstate", "arm-bare"])
def test_every_machine(kind: str, tmp_path: Path) -> None:
    root = make_tree(kind, tmp_path / "root")
    put_programs(root)
    round_ = KnobCycle(FakeKernel(root), tmp_path, {"swap": KNOB})
    has_swap = "/dev/sda2" in round_.text("proc/swaps")
    round_.tune()
    assert bool(round_.changes) == has_swap
    if not has_swap:
        assert round_.state("swap").notes == ("swap is not enabled",)
        return
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


@pytest.mark.parametrize("gone_off", [0, 1, 2])
def test_partly_disabled_swap_is_restored(gone_off: int, tmp_path: Path) -> None:
    """As a kill leaves it: some of the areas are off."""
    round_ = machine_with(tmp_path, ("/dev/sda2", 0, -2), ("/dev/sdb2", 0, -3), ("/swap", 0, -4))
    setting = round_.survey()[0]
    for name in ("/swap", "/dev/sdb2", "/dev/sda2")[:gone_off]:
        _run(round_, "swapoff", name)
    KNOB.restore(round_.machine, setting)
    assert KNOB.read(round_.machine, "proc/swaps") == setting.found
    assert round_.left() == {}


def test_priorities_are_counted_again_when_others_interfered(tmp_path: Path) -> None:
    round_ = machine_with(tmp_path, ("/dev/sda2", 0, -2), ("/swap", 0, -3))
    setting = round_.survey()[0]
    KNOB.write(round_.machine, setting)
    _run(round_, "swapon", "/swap")  # now -2, which was the other's
    KNOB.restore(round_.machine, setting)
    assert KNOB.same("proc/swaps", KNOB.read(round_.machine, "proc/swaps"), setting.found)


def test_a_failure_of_the_last_area_leaves_the_others_to_be_restored(tmp_path: Path) -> None:
    round_ = machine_with(tmp_path, ("/dev/sda2", 0, -2), ("/swap", 0, -3))
    refuse_program(round_.kernel.root, "swapoff", "Cannot allocate memory")
    round_.tune()
    assert round_.changes[0].state == "refused"
    assert "Cannot allocate memory" in round_.changes[0].reason
    assert "swapoff" in round_.changes[0].reason
    restored = round_.restore()
    assert restored is not None
    assert restored.complete
    assert round_.left() == {}


def test_what_cannot_be_switched_on_again_is_reported(tmp_path: Path) -> None:
    round_ = machine_with(tmp_path, ("/dev/sda2", 0, -2))
    round_.tune()
    refuse_program(round_.kernel.root, "swapon", "No such device")
    restored = round_.restore()
    assert restored is not None
    assert not restored.complete
    assert "No such device" in restored.missing[0].reason


# When it stays on.


def why_on(round_: KnobCycle) -> str:
    settings = round_.survey()
    assert [setting.place for setting in settings] == [SWAPPINESS]
    return round_.state("swap").notes[0]


def test_it_stays_on_when_memory_does_not_suffice(tmp_path: Path) -> None:
    round_ = machine_with(tmp_path, ("/dev/sda2", 8_000_000, -2))
    meminfo = round_.kernel.path("proc/meminfo")
    meminfo.write_text("MemTotal: 16000000 kB\nMemAvailable: 9000000 kB\n")
    reason = why_on(round_)
    assert "its 7.6 GiB do not fit" in reason
    assert "8.6 GiB of available memory" in reason
    meminfo.write_text("MemTotal: 16000000 kB\nMemAvailable: 9700000 kB\n")
    assert round_.survey()[0].place == "proc/swaps"


def test_it_stays_on_when_memory_is_not_known(tmp_path: Path) -> None:
    round_ = machine_with(tmp_path, ("/dev/sda2", 0, -2))
    round_.kernel.path("proc/meminfo").write_text("MemTotal: 16000000 kB\nodd\nBuffers:\n")
    assert "does not report available memory" in why_on(round_)


def test_it_stays_on_when_its_file_is_deleted(tmp_path: Path) -> None:
    round_ = machine_with(tmp_path, ("/tmp/swap\\040(deleted)", 0, -2))
    assert "/tmp/swap (deleted)" in why_on(round_)


def test_a_copy_without_programs_runs_none_of_ours(tmp_path: Path) -> None:
    round_ = machine_with(tmp_path, ("/dev/sda2", 0, -2))
    for program in round_.kernel.path(".kernel/programs").iterdir():
        program.unlink()
    assert "swapoff and swapon are not in this copy" in why_on(round_)


def test_lower_eagerness_is_kept(tmp_path: Path) -> None:
    round_ = machine_with(tmp_path, ("/dev/sda2", 0, -2))
    round_.kernel.put(SWAPPINESS, "0")
    assert round_.survey()[1] == Setting(knob="swap", place=SWAPPINESS, found="0", wanted="0")


def test_a_kernel_without_swap(tmp_path: Path) -> None:
    round_ = machine_with(tmp_path)
    round_.kernel.path("proc/swaps").unlink()
    assert round_.survey() == []
    assert "/proc/swaps" in round_.state("swap").unavailable


def _run(round_: KnobCycle, program: str, argument: str) -> None:
    from torchyard.machine.system.file_tree import run_program

    run_program(round_.kernel, program, argument, limit_s=20)
