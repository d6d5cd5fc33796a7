"""Boot parameters: merged with existing ones, and checked after the restart."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.machine.trees import make_tree
from torchyard.errors import NotAllowed, ResultsDamaged
from torchyard.machine.boot_parameters import (
    BootRequest,
    boot_lines,
    effects,
    merged,
    read_boot_request,
    requested_parameters,
    save_boot_request,
)
from torchyard.machine.system.file_tree import FileTree

BOTH = BootRequest(cores=(2, 3, 6, 7), cstates=True)
OURS = [
    "isolcpus=managed_irq,domain,2-3,6-7",
    "nohz_full=2-3,6-7",
    "rcu_nocbs=2-3,6-7",
    "intel_idle.max_cstate=1",
    "processor.max_cstate=1",
]


@pytest.fixture
def intel(tmp_path: Path) -> FileTree:
    return FileTree(make_tree("intel-pstate", tmp_path))


def put(files: FileTree, path: str, text: str) -> None:
    place = files.path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text + "\n")


def test_words_for_intel(intel: FileTree) -> None:
    words, warnings = requested_parameters(intel, BOTH)
    assert list(words) == OURS
    assert any("disables load balancing" in text and "OMP_PROC_BIND" in text for text in warnings)
    assert any("conflicts with intel_pstate" in text for text in warnings)


def test_words_for_amd_and_arm(tmp_path: Path) -> None:
    amd = FileTree(make_tree("amd-acpi", tmp_path / "amd"))
    arm = FileTree(make_tree("arm-bare", tmp_path / "arm"))
    assert requested_parameters(amd, BootRequest(cstates=True)) == (("processor.max_cstate=1",), ())
    words, (warning,) = requested_parameters(arm, BootRequest(cstates=True))
    assert words == ()
    assert "machine quiet" in warning
    assert not any(
        "conflicts" in text for text in requested_parameters(amd, BootRequest(cores=(1,)))[1]
    )


def test_processor_0_and_a_kernel_without_nohz_full_are_warned_of(intel: FileTree) -> None:
    intel.path("sys/devices/system/cpu/nohz_full").unlink()
    warnings = requested_parameters(intel, BootRequest(cores=(0, 1)))[1]
    assert any("CPU 0" in text for text in warnings)
    assert any("no nohz_full" in text for text in warnings)


def test_merging_replaces_words_of_the_same_name_and_keeps_the_rest() -> None:
    there = ["quiet", "console=tty0", "isolcpus=1", "console=ttyS0", "quiet", "nohz-full=1", "a=b"]
    assert merged(there, ["isolcpus=2", "nohz_full=2"]) == [
        *("quiet", "console=tty0", "console=ttyS0", "a=b"),
        *("isolcpus=2", "nohz_full=2"),
    ]
    once = merged(there, OURS)
    assert merged(once, OURS) == once


def test_words_of_init_stay_behind_ours() -> None:
    assert merged(["quiet", "--", "isolcpus=9"], ["isolcpus=2"]) == [
        *("quiet", "isolcpus=2", "--", "isolcpus=9"),
    ]


def test_without_grubs_file_the_line_comes_from_the_running_kernel(intel: FileTree) -> None:
    lines = boot_lines(intel, BOTH)
    assert lines.grub_line == f'GRUB_CMDLINE_LINUX_DEFAULT="quiet {" ".join(OURS)}"'
    assert "/proc/cmdline" in lines.grub_from
    assert lines.loader_line == f"root=UUID=0b1c ro quiet {' '.join(OURS)}"


def test_the_line_of_grubs_file_is_kept(intel: FileTree) -> None:
    put(
        intel,
        "etc/default/grub",
        'GRUB_CMDLINE_LINUX_DEFAULT="old"\n# GRUB_CMDLINE_LINUX_DEFAULT="comment"\n'
        'GRUB_CMDLINE_LINUX="other"\n'
        '  GRUB_CMDLINE_LINUX_DEFAULT="splash isolcpus=1 $vt dyndbg=\\"file a +p\\""',
    )
    lines = boot_lines(intel, BootRequest(cores=(3,)))
    assert lines.grub_from == "/etc/default/grub"
    assert lines.grub_line == (
        'GRUB_CMDLINE_LINUX_DEFAULT="splash $vt dyndbg=\\"file a +p\\" '
        'isolcpus=managed_irq,domain,3 nohz_full=3 rcu_nocbs=3"'
    )


@pytest.mark.parametrize("quoted", ["'a $b `c`'", "plain", "''"])
def test_other_quotes_of_grubs_file_become_double_ones(intel: FileTree, quoted: str) -> None:
    put(intel, "etc/default/grub", f"GRUB_CMDLINE_LINUX_DEFAULT={quoted}")
    line = boot_lines(intel, BootRequest(cores=(3,))).grub_line
    completed = subprocess.run(
        ["sh", "-c", f'{line}; printf %s "$GRUB_CMDLINE_LINUX_DEFAULT"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    expected = shlex.split(quoted)[0].split() if shlex.split(quoted) != [""] else []
    assert completed.split() == [
        *expected,
        "isolcpus=managed_irq,domain,3",
        "nohz_full=3",
        "rcu_nocbs=3",
    ]


def test_words_with_quotes_in_the_running_line_survive_a_shell(intel: FileTree) -> None:
    put(intel, "proc/cmdline", 'BOOT_IMAGE=/v root=/dev/a ro dyndbg="file a.c +p" x=$HOME')
    line = boot_lines(intel, BootRequest(cores=(3,))).grub_line
    completed = subprocess.run(
        ["sh", "-c", f'{line}; printf %s "$GRUB_CMDLINE_LINUX_DEFAULT"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert completed.startswith('dyndbg="file a.c +p" x=$HOME isolcpus=')


def test_what_is_replaced_is_reported(intel: FileTree) -> None:
    put(intel, "proc/cmdline", "ro isolcpus=1-2 nohz_full=3")
    warnings = boot_lines(intel, BootRequest(cores=(3,))).warnings
    assert any("replaces isolcpus=1-2" in text for text in warnings)
    assert not any("nohz_full=3," in text for text in warnings)


def restarted(files: FileTree, *, words: str, isolated: str, nohz: str, cstate: str) -> None:
    put(files, "proc/cmdline", f"ro quiet {words}")
    put(files, "sys/devices/system/cpu/isolated", isolated)
    put(files, "sys/devices/system/cpu/nohz_full", nohz)
    put(files, "sys/module/intel_idle/parameters/max_cstate", cstate)
    put(files, "sys/module/processor/parameters/max_cstate", cstate)


def test_after_the_restart_everything_is_in_force(intel: FileTree) -> None:
    restarted(intel, words=" ".join(OURS), isolated="2-3,6-7", nohz="2-3,6-7", cstate="1")
    words = effects(intel, BOTH)
    assert [effect.word for effect in words] == OURS
    assert all(effect.good for effect in words)
    assert [effect.in_force for effect in words] == [True, True, None, True, True]


def test_what_is_on_the_line_and_has_no_effect_is_found(intel: FileTree) -> None:
    restarted(intel, words=" ".join(OURS), isolated="2-3", nohz="(null)", cstate="9")
    bad = [effect.word.partition("=")[0] for effect in effects(intel, BOTH) if not effect.good]
    assert bad == ["isolcpus", "nohz_full", "intel_idle.max_cstate", "processor.max_cstate"]


def test_what_is_not_on_the_line_is_found(intel: FileTree) -> None:
    restarted(intel, words=f"-- {' '.join(OURS)}", isolated="", nohz="", cstate="9")
    words = effects(intel, BOTH)
    assert not any(effect.on_line for effect in words)
    assert not any(effect.good for effect in words)


def test_requested_parameters_are_stored(tmp_path: Path) -> None:
    assert read_boot_request(tmp_path) is None
    request = BootRequest(cores=(1, 2), cstates=True, boot="b")
    save_boot_request(tmp_path / "new" / "folder", request)
    assert read_boot_request(tmp_path / "new" / "folder") == request


def test_stored_parameters_that_cannot_be_written_or_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotAllowed):
        save_boot_request(tmp_path / "file" / "sub", BOTH)
    (tmp_path / "boot-wish.json").write_text("{")
    with pytest.raises(ResultsDamaged, match="boot-wish"):
        read_boot_request(tmp_path)
