"""`machine quiet`, `restore` and `boot` from the command line, on copies of machines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import call, program
from tests.machine.trees import make_tree
from torchyard.machine.model import (
    AppliedSettings,
    KnobState,
    QuietRequest,
    Restored,
    Setting,
    SettingChange,
    SettingReturn,
)
from torchyard.machine.quieting.journal import JOURNAL_VARIABLE
from torchyard.machine.report import quieting_summary, quieting_table, restored_text

Capture = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[1] / "golden"
ASLR = "proc/sys/kernel/randomize_va_space"
ONLY = ("--only", "aslr", "--aslr", "off")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_tree("cloud-vm", tmp_path / "root")


def compare_with_golden(name: str, text: str) -> None:
    """To accept a new text, delete the golden file and run the test twice."""
    path = GOLDEN / f"{name}.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was missing and is written now; look at it and run again")
    assert text.split() == path.read_text().split()


# What is shown.


def change(
    knob: str, place: str, found: str, wanted: str | None, state: Any, reason: str = ""
) -> SettingChange:
    setting = Setting(knob=knob, place=place, found=found, wanted=wanted)
    return SettingChange(setting=setting, state=state, reason=reason)


def tuned() -> AppliedSettings:
    policy = "sys/devices/system/cpu/cpufreq/policy"
    changes = [
        change("governor", f"{policy}{n}/scaling_governor", "powersave", "performance", "written")
        for n in range(8)
    ]
    changes += [
        change("turbo", "sys/no_turbo", "0", "1", "refused", "cannot write '1': no"),
        change("aslr", ASLR, "2", "2", "already so"),
        change("interrupts", "proc/irq/3/smp_affinity", "ff", None, "left alone"),
        change("nvidia-clocks", "GPU-1 clocks", "free", "1200", "written"),
    ]
    names = ("governor", "turbo", "aslr", "interrupts", "nvidia-clocks")
    states = [
        KnobState(knob=name, settings=tuple(c.setting for c in changes if c.setting.knob == name))
        for name in names
    ]
    states[1:1] = [
        KnobState(knob="smt", unavailable="cores have one thread"),
        KnobState(knob="swap", notes=("swap is not enabled",)),
    ]
    return AppliedSettings(request=QuietRequest(), knobs=tuple(states), changes=tuple(changes))


def test_the_table_of_quieting() -> None:
    text = quieting_table(tuned())
    compare_with_golden("tune-table", text)
    assert "and 7 more" in text
    assert quieting_summary(tuned()) == "9 written, 1 unchanged, 1 refused, 1 knobs unavailable"


def test_the_text_of_a_restore() -> None:
    def item(place: str, state: Any, reason: str = "", meanwhile: str = "") -> SettingReturn:
        setting = Setting(knob="aslr", place=place, found="2", wanted="0")
        return SettingReturn(setting=setting, state=state, reason=reason, meanwhile=meanwhile)

    text = restored_text(
        Restored(
            settings=(
                item("proc/a", "restored", meanwhile="1"),
                item("proc/b", "was so"),
                item("proc/c", "not restored", "it went away"),
            )
        )
    )
    compare_with_golden("restore-text", text)
    rebooted = restored_text(
        Restored(settings=(item("proc/a", "was so", meanwhile="1"),), rebooted=True)
    )
    assert "a reboot has reset the settings" in rebooted
    assert "is '1', was '2'" in rebooted


# On a copy of a machine.


def test_a_dry_run_writes_nothing(capsys: Capture, root: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    completed = call(capsys, "machine", "quiet", "--dry-run", "--root", str(root), "--aslr", "off")
    assert completed.code == 0
    assert f"to be written 2 -> 0  /{ASLR}\n" in completed.out
    assert "would be written" in completed.err
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_the_same_as_json(capsys: Capture, root: Path) -> None:
    completed = call(capsys, "machine", "quiet", "--dry-run", "--json", "--root", str(root), *ONLY)
    document = json.loads(completed.out)
    assert document["schema"] == 1
    assert document["tune"]["mode"] == "dry-run"
    assert document["tune"]["knobs"][0]["settings"] == [
        {"place": ASLR, "found": "2", "wanted": "0", "state": "written", "reason": ""}
    ]


def test_the_old_name_of_the_command_works_with_a_note(capsys: Capture, root: Path) -> None:
    arguments = ("--dry-run", "--json", "--root", str(root), *ONLY)
    present = call(capsys, "machine", "quiet", *arguments)
    old = call(capsys, "machine", "tune", *arguments)
    assert (old.code, old.out) == (present.code, present.out)
    note = "`torchyard machine tune` is deprecated: use `torchyard machine quiet`\n"
    assert old.err == note + present.err
    listed = call(capsys, "machine", "--help").out
    assert "\n  quiet " in listed
    assert "\n  tune " not in listed


def test_persistent_quieting_and_its_restore(capsys: Capture, root: Path) -> None:
    tune = ("machine", "quiet", "--root", str(root), *ONLY)
    first = call(capsys, *tune)
    assert first.code == 0, first.err
    assert "machine restore" in first.err
    assert (root / ASLR).read_text() == "0"
    second = call(capsys, *tune, "--json")
    assert second.code == 4
    assert "already quieted" in json.loads(second.out)["error"]["what"]
    back = call(capsys, "machine", "restore", "--json", "--root", str(root))
    assert back.code == 0
    (setting,) = json.loads(back.out)["restore"]["settings"]
    assert (setting["place"], setting["state"]) == (ASLR, "restored")
    assert (root / ASLR).read_text() == "2"
    nothing = call(capsys, "machine", "restore", "--root", str(root))
    assert nothing.code == 3
    assert "nothing to restore" in nothing.err


def test_a_value_that_cannot_be_restored_is_named(capsys: Capture, root: Path) -> None:
    call(capsys, "machine", "quiet", "--root", str(root), *ONLY)
    (root / ASLR).unlink()
    (root / ASLR).mkdir()
    back = call(capsys, "machine", "restore", "--root", str(root))
    assert back.code == 5
    assert f"NOT restored: aslr (/{ASLR}) to '2'" in back.out
    (root / ASLR).rmdir()
    (root / ASLR).write_text("0\n")
    assert call(capsys, "machine", "restore", "--root", str(root)).code == 0
    assert (root / ASLR).read_text() == "2"


def test_a_command_is_run_on_a_quieted_machine(root: Path) -> None:
    script = f"cat {root / ASLR}; echo; echo loud >&2; exit 7"
    completed = program("machine", "quiet", "--root", str(root), *ONLY, "--", "sh", "-c", script)
    assert completed.code == 7
    assert completed.out == "0\n"
    assert "loud" in completed.err
    assert f"written       2 -> 0  /{ASLR}\n" in completed.err
    assert (root / ASLR).read_text() == "2"


def test_options_of_the_command_are_the_commands(root: Path) -> None:
    completed = program(
        *("machine", "quiet", "--root", str(root), *ONLY, "--json"),
        *("--", "echo", "--json", "--help", "-x"),
    )
    assert completed.out == "--json --help -x\n"
    assert json.loads(completed.err)["tune"]["mode"] == "session"


def test_a_restore_that_fails_after_a_good_command_is_exit_code_5(root: Path) -> None:
    script = f"rm {root / ASLR}; mkdir {root / ASLR}"
    completed = program("machine", "quiet", "--root", str(root), *ONLY, "--", "sh", "-c", script)
    assert completed.code == 5
    assert "NOT restored" in completed.err
    assert "machine restore" in completed.err


def test_exit_codes_of_persistent_quieting() -> None:
    from torchyard.audit.command_quiet import _exit_code

    refused = change("aslr", ASLR, "2", "0", "refused", "no")
    state = KnobState(knob="aslr", settings=(refused.setting,))
    assert (
        _exit_code(AppliedSettings(request=QuietRequest(), knobs=(state,), changes=(refused,))) == 4
    )
    assert _exit_code(tuned()) == 0
    assert (
        _exit_code(
            AppliedSettings(
                request=QuietRequest(), knobs=(KnobState(knob="smt", unavailable="none"),)
            )
        )
        == 3
    )


def test_quieting_without_usable_knobs_is_exit_code_3(capsys: Capture, root: Path) -> None:
    completed = call(capsys, "machine", "quiet", "--root", str(root), "--only", "frequency")
    assert completed.code == 3
    assert "unavailable" in completed.out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--only", "govenor"), "govenor"),
        (("--frequency", "fast"), "--frequency"),
        (("--frequency", "0"), "--frequency"),
        (("--cores", "99"), "CPU 99 is not available"),
        (("--profile", "tpu"), "tpu"),
        (("--", "nosuchprogram"), "nosuchprogram"),
    ],
)
def test_wrong_options(capsys: Capture, root: Path, words: tuple[str, ...], what: str) -> None:
    completed = call(capsys, "machine", "quiet", "--root", str(root), "--dry-run", *words)
    assert completed.code == 2
    assert what in completed.err
    assert "hint:" in completed.err


def test_a_damaged_journal_is_exit_code_8(capsys: Capture, root: Path) -> None:
    folder = root / "var/lib/torchyard/machine"
    folder.mkdir(parents=True)
    (folder / "tune.jsonl").write_text("no journal\nat all\n")
    for words in (("restore",), ("quiet", *ONLY)):
        completed = call(capsys, "machine", *words, "--root", str(root))
        assert completed.code == 8
        assert "by hand" in completed.err
    assert (root / ASLR).read_text() == "2\n"


def test_frequencies_and_cores_become_requested_settings(tmp_path: Path) -> None:
    from torchyard.machine.command_options import request_from_options
    from torchyard.machine.system.file_tree import FileTree

    files = FileTree(make_tree("amd-acpi", tmp_path))
    options: dict[str, Any] = {"profile": "all", "only": (), "also": (), "without": ()}
    options |= {"cores": None, "partition": "root", "frequency": "base", "latency_us": 3}
    options |= {"aslr": "on", "thp": "never", "gpu_clock": 1200}
    request, notes = request_from_options(files, options)
    assert (request.profiles, request.frequency_khz, request.latency_us) == (
        ("cpu", "gpu"),
        None,
        3,
    )
    assert set(request.also) == {"aslr", "process-aslr", "huge-pages"}
    assert (request.randomize, request.huge_pages, request.gpu_clock_mhz) == ("on", "never", 1200)
    assert notes == ()
    assert (
        request_from_options(files, {**options, "frequency": "2000"})[0].frequency_khz == 2_000_000
    )
    assert (
        request_from_options(files, {**options, "frequency": "max"})[0].frequency_khz == 2_450_000
    )
    # SMT goes off with the tune, so second threads are not among the cores.
    assert request_from_options(files, {**options, "cores": "auto"})[0].cores == (1, 2, 3)
    both = {**options, "cores": "auto", "without": ("smt",)}
    assert request_from_options(files, both)[0].cores == (1, 2, 3, 5, 6, 7)
    named = {**options, "only": ("swap",)}
    assert request_from_options(files, named)[0].also == ()


# Without root.


def test_what_a_user_may_do_is_a_line_for_the_shell() -> None:
    cpu = min(os.sched_getaffinity(0))
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    completed = program("machine", "quiet", "--user", "--cores", str(cpu))
    assert completed.code == 0, completed.err
    (line,) = completed.out.splitlines()
    assert f"taskset -c {cpu}" in line
    assert line.endswith("COMMAND")
    assert "needs root: " in completed.err


def test_a_command_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal"))
    cpu = max(os.sched_getaffinity(0))
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two processors")
    script = "grep Cpus_allowed_list /proc/self/status; exit 4"
    words = ("machine", "quiet", "--user", "--json", "--cores", str(cpu), "--", "sh", "-c", script)
    completed = program(*words)
    assert completed.code == 4
    assert completed.out.split() == ["Cpus_allowed_list:", str(cpu)]
    document = json.loads(completed.err)["tune"]
    assert document["mode"] == "user"
    assert {row["knob"] for row in document["knobs"]} >= {"pinning", "priority"}
    assert not (tmp_path / "journal").exists(), "nothing has to be put back"


# The boot line.


def test_lines_for_boot_loaders(capsys: Capture, root: Path) -> None:
    completed = call(capsys, "machine", "boot", "--cores", "1", "--cstates", "--root", str(root))
    assert completed.code == 0
    compare_with_golden("boot-lines", completed.out)
    assert "warning: isolcpus disables load balancing" in completed.err


def test_the_boot_line_is_checked_after_the_restart(capsys: Capture, root: Path) -> None:
    boot = ("machine", "boot", "--root", str(root))
    assert call(capsys, *boot, "--check").code == 3
    assert call(capsys, *boot).code == 2
    lines = json.loads(call(capsys, *boot, "--cores", "1", "--json").out)["boot"]
    assert lines["remembered"] is True
    before = call(capsys, *boot, "--check")
    assert before.code == 6
    assert "NOT on the command line" in before.out
    assert "has not been rebooted" in before.err
    (root / "proc/cmdline").write_text(f"ro {' '.join(lines['words'])}\n")
    (root / "proc/sys/kernel/random/boot_id").write_text("another\n")
    (root / "sys/devices/system/cpu/isolated").write_text("1\n")
    half = call(capsys, *boot, "--check", "--json")
    assert half.code == 6
    states = {row["word"]: row["good"] for row in json.loads(half.out)["boot"]["words"]}
    assert states == {
        "isolcpus=managed_irq,domain,1": True,
        "nohz_full=1": False,
        "rcu_nocbs=1": True,
    }
    (root / "sys/devices/system/cpu/nohz_full").write_text("1\n")
    after = call(capsys, *boot, "--check")
    assert after.code == 0
    assert "NOT" not in after.out
    assert after.err == ""


def test_lines_are_shown_where_nothing_can_be_remembered(
    capsys: Capture, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "file" / "sub"))
    completed = call(capsys, "machine", "boot", "--cores", "1", "--root", str(root))
    assert completed.code == 0
    assert "isolcpus=" in completed.out
    assert "not saved" in completed.err
    checked = call(capsys, "machine", "boot", "--cores", "1", "--check", "--root", str(root))
    assert checked.code == 6


# Options of `bench`.


def test_cores_of_a_bench_need_quieting(capsys: Capture, tmp_path: Path) -> None:
    run = ("bench", "--only", "models/gpt", "--run-dir", str(tmp_path / "run"))
    completed = call(capsys, *run, "--cores", "1")
    assert completed.code == 2
    assert "add --tune" in completed.err
    assert not (tmp_path / "run").exists()


def test_a_bench_that_may_not_quiet_the_machine_replaces_nothing(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    kept = tmp_path / "run" / "run.json"
    kept.parent.mkdir()
    kept.write_text("{}")
    run = ("bench", "--only", "models/gpt", "--run-dir", str(kept.parent), "--replace", "--tune")
    completed = call(capsys, *run)
    assert completed.code == 4
    assert "needs root" in completed.err
    assert kept.exists()


def test_an_unknown_profile(capsys: Capture) -> None:
    completed = call(capsys, "bench", "--only", "models/gpt", "--tune", "--tune-profile", "tpu")
    assert completed.code == 2
    assert "tpu" in completed.err


def test_a_study_may_follow_the_option_tune(capsys: Capture) -> None:
    completed = call(capsys, "bench", "--tune", "missing-study.toml")
    assert completed.code == 2
    assert "missing-study.toml" in completed.err
    assert "invalid" not in completed.err.lower()
