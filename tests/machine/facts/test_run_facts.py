"""Facts of a machine, read from a fake file tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.machine.facts import read_facts


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz\n\nmodel name\t: other\n",
        "proc/meminfo": "MemFree: 1 kB\nMemTotal:       16777216 kB\n",
        "proc/loadavg": "0.10 0.20 0.30 1/100 5\n",
        "proc/sys/kernel/randomize_va_space": "2\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/smt/control": "",
        "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_what_is_there_is_read(root: Path) -> None:
    facts = read_facts(root)
    assert facts["cpu"] == "Some CPU @ 3 GHz"
    assert facts["memory"] == "16.0 GiB"
    assert facts["governor"] == "performance"
    assert facts["transparent huge pages"] == "always [madvise] never"
    assert facts["address randomisation"] == "2"
    assert facts["load"].startswith("0.10")


def test_what_is_missing_or_empty_says_why(root: Path) -> None:
    facts = read_facts(root)
    assert facts["turbo off"] == "unavailable, because no_turbo: No such file or directory"
    assert facts["smt"] == "unavailable, because control is empty"


def test_an_arm_processor_has_a_part_instead_of_a_name(root: Path) -> None:
    (root / "proc/cpuinfo").write_text("CPU implementer\t: 0x41\nCPU part\t: 0xd40\n")
    assert read_facts(root)["cpu"] == "Arm implementer 0x41 part 0xd40"
    (root / "proc/cpuinfo").write_text("nothing: here\n")
    assert "reports no model" in read_facts(root)["cpu"]


def test_an_empty_root_gives_reasons_and_never_a_blank(tmp_path: Path) -> None:
    facts = read_facts(tmp_path)
    for key in ("cpu", "memory", "load", "governor", "address randomisation"):
        assert facts[key].startswith("unavailable, because ")
    assert all(facts.values())


def test_this_machine_can_be_read() -> None:
    facts = read_facts()
    assert int(facts["cores"]) >= 1
    assert facts["memory"].endswith("GiB")


def test_damaged_files_do_not_stop_a_run(root: Path) -> None:
    (root / "proc/meminfo").write_bytes(b"MemTotal: \xff\xfe kB\n")
    (root / "proc/loadavg").write_bytes(b"\xff\n")
    facts = read_facts(root)
    assert facts["memory"].startswith("unavailable")
    assert facts["load"]
