"""`torchyard machine show`: text, JSON, exit codes, hostile text, quieting in force."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import call
from tests.machine.trees import make_tree
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.quieting.journal import Journal, boot_of
from torchyard.machine.system.file_tree import FileTree

Capture = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[1] / "golden"


def journal_of(root: Path, *, boot: str = "", tuned: bool = True) -> None:
    """Leave the journal of a standing tune of turbo."""
    place = "sys/devices/system/cpu/intel_pstate/no_turbo"
    setting = Setting(knob="turbo", place=place, found="0", wanted="1")
    folder = root / "var/lib/torchyard/machine"
    folder.mkdir(parents=True)
    journal = Journal.create(
        folder,
        mode="standing",
        request=QuietRequest(),
        boot=boot or boot_of(FileTree(root)),
        settings=[setting],
    )
    if tuned:
        journal.mark_complete()
    journal.close()


@pytest.mark.parametrize("kind", ["intel-pstate", "arm-bare", "cloud-vm"])
def test_the_text(capsys: Capture, kind: str, tmp_path: Path) -> None:
    """To accept a new text, delete the golden file and run the test twice."""
    root = make_tree(kind, tmp_path / kind)
    completed = call(capsys, "machine", "show", "--root", str(root))
    assert completed.code == 0
    # What is said about GPUs names the folder, which differs.
    out = re.sub(r"^gpu\n(?:  .*\n)+\n", "", completed.out, flags=re.MULTILINE)
    assert str(root) not in out
    path = GOLDEN / f"machine-show-{kind}.txt"
    if not path.exists():
        path.write_text(out)
        pytest.fail(f"{path.name} was missing and is written now; look at it and run again")
    assert out == path.read_text()
    assert max(map(len, completed.out.splitlines())) <= 100


def test_json(capsys: Capture, tmp_path: Path) -> None:
    root = make_tree("cloud-vm", tmp_path)
    completed = call(capsys, "machine", "show", "--root", str(root), "--json")
    assert completed.code == 0
    assert completed.err == ""
    document = json.loads(completed.out)
    assert document["schema"] == 1
    machine = document["machine"]
    assert machine["fit"] is True
    assert machine["tune"] is None
    facts = {(fact["section"], fact["name"]): fact for fact in machine["facts"]}
    assert facts["kernel", "virtualization"]["value"] == "guest of QEMU"
    assert facts["frequency", "governor"]["value"] is None
    assert facts["frequency", "governor"]["unavailable"]
    assert {advice["name"] for advice in machine["advice"]} >= {"guest", "cores"}
    assert set(machine["advice"][0]) == {
        *("name", "effect", "what", "why", "fix", "mend", "needs_root", "needs_reboot", "unfit")
    }


def test_an_unfit_machine_has_its_own_exit_code(capsys: Capture, tmp_path: Path) -> None:
    root = make_tree("cloud-vm", tmp_path)
    (root / "proc/loadavg").write_text("8.00 7.00 3.00 9/400 5\n")
    completed = call(capsys, "machine", "show", "--root", str(root))
    assert completed.code == 6
    lines = completed.out.splitlines()
    assert lines[-1] == "not fit for benchmarks now (busy): measurements not trustworthy"
    assert any(line.startswith("  1. unfit   load average 8.0 on") for line in lines)
    assert (
        json.loads(call(capsys, "machine", "show", "--root", str(root), "--json").out)["machine"][
            "fit"
        ]
        is False
    )


def test_an_empty_folder_is_shown_as_reasons(capsys: Capture, tmp_path: Path) -> None:
    completed = call(capsys, "machine", "show", "--root", str(tmp_path))
    assert completed.code == 0
    assert "fit for benchmarks, no advice" in completed.out
    assert "because /proc/cpuinfo: No such file or directory" in completed.out


def test_a_folder_that_is_not_there(capsys: Capture, tmp_path: Path) -> None:
    assert call(capsys, "machine", "show", "--root", str(tmp_path / "no")).code == 2


def test_text_of_others_does_not_steer_the_terminal(capsys: Capture, tmp_path: Path) -> None:
    root = make_tree("smt-off-at-boot", tmp_path)
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    for path in ("proc/cpuinfo", "sys/class/dmi/id/sys_vendor", "proc/cmdline"):
        (root / path).write_text(f"model name\t: {evil}\nisolcpus={evil}\nQEMU{evil}\n")
    for policy in (root / "sys/devices/system/cpu/cpufreq").glob("policy*"):
        (policy / "scaling_governor").write_text(f"{evil}\n")
    completed = call(capsys, "machine", "show", "--root", str(root))
    assert completed.code == 0
    assert "owned" in completed.out
    shown = completed.out + completed.err
    assert all(letter.isprintable() or letter == "\n" for letter in shown)
    json.loads(call(capsys, "machine", "show", "--root", str(root), "--json").out)


def test_long_text_is_wrapped_and_nothing_is_lost(capsys: Capture, tmp_path: Path) -> None:
    root = make_tree("cloud-vm", tmp_path)
    words = [f"nohz_full={number}" for number in range(1)] + ["isolcpus=" + "1," * 200 + "1"]
    (root / "proc/cmdline").write_text(" ".join(words) + "\n")
    completed = call(capsys, "machine", "show", "--root", str(root))
    assert max(map(len, completed.out.splitlines())) <= 100
    assert "1," * 200 + "1" in "".join(completed.out.split())


def test_quieting_in_force_is_reported(capsys: Capture, tmp_path: Path) -> None:
    root = make_tree("intel-pstate", tmp_path)
    journal_of(root)
    out = " ".join(call(capsys, "machine", "show", "--root", str(root)).out.split())
    assert "machine quieting is in force (process" in out
    assert ": turbo; sudo torchyard machine restore" in out
    machine = json.loads(call(capsys, "machine", "show", "--root", str(root), "--json").out)
    tune = machine["machine"]["tune"]
    assert tune["state"] == "in force"
    assert tune["knobs"] == ["turbo"]


@pytest.mark.parametrize(
    ("boot", "tuned", "said"),
    [
        ("another", True, "machine quieting is undone by a reboot"),
        ("", False, "machine quieting is interrupted and not restored"),
    ],
)
def test_quieting_that_was_changed_since(
    capsys: Capture, tmp_path: Path, boot: str, tuned: bool, said: str
) -> None:
    root = make_tree("intel-pstate", tmp_path)
    journal_of(root, boot=boot, tuned=tuned)
    completed = call(capsys, "machine", "show", "--root", str(root))
    assert said in " ".join(completed.out.split())


def test_a_damaged_journal_does_not_hide_the_machine(capsys: Capture, tmp_path: Path) -> None:
    root = make_tree("cloud-vm", tmp_path)
    folder = root / "var/lib/torchyard/machine"
    folder.mkdir(parents=True)
    (folder / "tune.jsonl").write_text("{}\n")
    completed = call(capsys, "machine", "show", "--root", str(root))
    assert completed.code == 0
    assert "the journal of machine settings is damaged" in " ".join(completed.out.split())
    assert "virtualization" in completed.out


def test_this_machine(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit or not depends on the moment; that it looks and says so does not."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    completed = call(capsys, "machine", "show", "--json")
    machine = json.loads(completed.out)["machine"]
    assert completed.code == (0 if machine["fit"] else 6)
    sections = {fact["section"] for fact in machine["facts"]}
    assert {"processor", "load", "software"} <= sections
