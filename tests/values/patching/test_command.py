"""The command line of `torchyard values fix`: what it accepts, refuses and changes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.cli.main import run as run_torchyard
from torchyard.core.comparison import Interval
from torchyard.core.study import Target
from torchyard.errors import NotAllowed, NothingToDo, StepFailed, UsageError
from torchyard.values.model import (
    Certainty,
    Place,
    ProfileRequest,
    Proof,
    ValueFinding,
    ValueProfile,
    write_profile,
)
from torchyard.values.patching.model import FixReport, Gain, Proposal, Verification, store_request
from torchyard.values.patching.report import fix_text
from torchyard.values.patching.session import apply_patches, fix_profile

HERE = Target(name="here", python=sys.executable)
SOURCE = "import torch\nb = torch.zeros(3)\n"


def stored_profile(folder: Path, *findings: ValueFinding, began_s: float = 1e12) -> Path:
    """Store a profile as `torchyard values program.py` does in this folder."""
    profile = ValueProfile(
        format=1, state="finished", torch="2.13", program=("program.py",), findings=findings
    )
    request = ProfileRequest(target=HERE, program=("program.py",))
    place = folder / "profile"
    place.mkdir(exist_ok=True)
    path = write_profile(place, profile)
    store_request(place, request, profile, began_s=began_s)
    return path


def finding(certainty: Certainty = Certainty.LIKELY, file: str = "program.py") -> ValueFinding:
    """Return a finding at line 2."""
    return ValueFinding(
        pattern="dead initialisation",
        operator="aten::zeros",
        place=Place(file=file, line=2),
        proof=Proof(certainty=certainty, why="only seen"),
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a program."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(SOURCE)
    return tmp_path


def run(*words: str) -> int:
    """Return the exit code of the command."""
    return run_torchyard(["values", "fix", *words])


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "torchyard values fix latest --finding 2 --apply" in capsys.readouterr().out


def test_reasons_are_printed_and_the_exit_code_is_3(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored_profile(folder, finding())
    assert run(str(path), "--apply") == 3
    output = capsys.readouterr().out
    assert "0 patches proposed for 1 finding." in output
    assert "dead initialisation, zeros at program.py:2: likely, not proven: only seen" in output
    assert (folder / "program.py").read_text() == SOURCE


def test_json_is_one_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored_profile(folder, finding())
    assert run(str(path), "--json") == 3
    data = json.loads(capsys.readouterr().out)
    assert data["fixes"]["proposals"][0]["why_not"].startswith("likely, not proven")
    assert json.loads((Path(data["folder"]) / "fixes.json").read_text())["proposals"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--finding", "2"), "there is no finding 2"),
        (("surplus",), "unexpected argument"),
        (("--class", "faster"), "faster"),
        (("--finding", "0"), "0"),
    ],
)
def test_invalid_requests(
    folder: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    path = stored_profile(folder, finding())
    assert run(str(path), *words) == 2
    assert message in capsys.readouterr().err


def test_a_missing_profile_and_a_missing_script(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(folder / "nothing")) == 2
    assert run("nothing.py") == 2
    assert "nothing.py" in capsys.readouterr().err


def test_a_profile_without_findings_is_nothing_to_do(folder: Path) -> None:
    path = stored_profile(folder)
    with pytest.raises(NothingToDo):
        fix_profile(path, target=HERE)


def test_a_profile_of_an_earlier_version_is_refused(folder: Path) -> None:
    path = stored_profile(folder, finding())
    (path.parent / "request.json").unlink()
    with pytest.raises(UsageError, match="does not say how"):
        fix_profile(path, target=HERE)


def test_a_profile_does_not_choose_the_interpreter(folder: Path) -> None:
    path = stored_profile(folder, finding())
    stored = json.loads((path.parent / "request.json").read_text())
    stored["request"]["target"]["python"] = str(folder / "program.py")
    (path.parent / "request.json").write_text(json.dumps(stored))
    with pytest.raises(UsageError, match="was profiled with"):
        fix_profile(path, target=HERE)


def reasons(path: Path) -> list[str]:
    """Return why the findings of a profile have no patch."""
    report, _ = fix_profile(path, target=HERE)
    return [one.why_not for one in report.proposals]


def test_a_changed_file_has_no_patch(folder: Path) -> None:
    path = stored_profile(folder, finding(Certainty.PROVEN))
    (folder / "program.py").write_text("# new\n" + SOURCE)
    assert reasons(path) == ["the file has changed since the program was profiled"]


def test_a_file_written_during_the_run_has_no_patch(folder: Path) -> None:
    path = stored_profile(folder, finding(Certainty.PROVEN), began_s=0.0)
    assert reasons(path) == ["the program writes this file itself"]


def test_files_outside_of_the_program_have_no_patch(folder: Path) -> None:
    inside = folder / "inside"
    inside.mkdir()
    outside = folder.parent / f"{folder.name}-library.py"
    outside.write_text(SOURCE)
    elsewhere = folder.parent / f"{folder.name}-elsewhere"
    elsewhere.mkdir()
    (elsewhere / "library.py").write_text(SOURCE)
    (folder / "elsewhere").symlink_to(elsewhere)
    linked = folder / "linked.py"
    linked.symlink_to(outside)
    path = stored_profile(
        folder,
        finding(Certainty.PROVEN, str(outside)),
        finding(Certainty.PROVEN, "linked.py"),
        finding(Certainty.PROVEN, "elsewhere/library.py"),
        finding(Certainty.PROVEN, "<string>"),
        finding(Certainty.PROVEN, "missing.py"),
        finding(Certainty.PROVEN, "../../../etc/passwd"),
    )
    assert sorted(reasons(path)) == [
        "the code is not in a Python file",
        "the code is not in a Python file",
        "the file is a link, or in a folder that is one",
        "the file is a link, or in a folder that is one",
        "the file is not in the folder of the program",
        "the file was not there when the program was profiled",
    ]


def test_programs_that_failed_or_compile_have_no_patch(folder: Path) -> None:
    path = stored_profile(folder, finding(Certainty.PROVEN))
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, "compiled": True}))
    assert reasons(path) == ["the program uses torch.compile"]
    path.write_text(json.dumps({**text, "state": "crashed"}))
    assert reasons(path) == ["the program did not finish"]


def verified_report(folder: Path) -> tuple[FixReport, Path]:
    """Return a report with one verified patch and its folder."""
    path = stored_profile(folder, finding(Certainty.PROVEN))
    proposal = Proposal(
        finding=1,
        pattern="dead initialisation",
        operator="aten::zeros",
        file="program.py",
        line=2,
        kind="uninitialized",
        text="memory allocated without filling it",
        diff="--- a/program.py\n+++ b/program.py\n",
        verification=Verification(passed=True, runs=3, compared=("printed text",)),
        gain=Gain(
            share=0.1,
            interval=Interval(low=0.05, high=0.15, confidence=0.95),
            clock="CPU time",
            pairs=8,
        ),
    )
    report = FixReport(
        profile=str(path),
        proposals=(proposal,),
        diff=proposal.diff,
        together=proposal.verification,
        gain=proposal.gain,
    )
    place = folder / "profile" / "fixes"
    place.mkdir()
    (place / "after-program.py").write_text(SOURCE.replace("zeros", "empty"))
    return report, place


def test_apply_keeps_the_earlier_content(folder: Path) -> None:
    report, place = verified_report(folder)
    applied = apply_patches(report, place)
    assert (folder / "program.py").read_text() == SOURCE.replace("zeros", "empty")
    assert Path(applied.applied[0].backup).read_text() == SOURCE
    assert "to undo: cp " in fix_text(applied, folder=str(place))


def test_apply_refuses_a_file_that_changed_meanwhile(folder: Path) -> None:
    report, place = verified_report(folder)
    (folder / "program.py").write_text(SOURCE + "# edited\n")
    with pytest.raises(UsageError, match="has changed"):
        apply_patches(report, place)
    assert (folder / "program.py").read_text() == SOURCE + "# edited\n"


def test_apply_refuses_a_file_that_is_gone(folder: Path) -> None:
    report, place = verified_report(folder)
    (folder / "program.py").unlink()
    with pytest.raises(UsageError, match="has changed"):
        apply_patches(report, place)


def test_apply_refuses_a_read_only_file(folder: Path) -> None:
    report, place = verified_report(folder)
    (folder / "program.py").chmod(0o444)
    with pytest.raises(NotAllowed, match="read-only"):
        apply_patches(report, place)
    assert (folder / "program.py").read_text() == SOURCE


def test_apply_refuses_patches_that_fail_together(folder: Path) -> None:
    report, place = verified_report(folder)
    with pytest.raises(StepFailed, match="together"):
        apply_patches(replace(report, together=Verification(why="results differ")), place)
    assert (folder / "program.py").read_text() == SOURCE


def test_the_report_escapes_control_characters_of_programs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\x1b[31mb.py"
    path = stored_profile(folder, finding(Certainty.PROVEN, name))
    run(str(path))
    assert "\x1b" not in capsys.readouterr().out


def test_savings_without_evidence_are_not_claimed(folder: Path) -> None:
    report, place = verified_report(folder)
    text = fix_text(report, folder=str(place))
    assert "measured: saves 10.0% [5.0%, 15.0%] of CPU time (8 pairs of runs)" in text
    noisy = Gain(
        share=0.1,
        interval=Interval(low=-0.02, high=0.2, confidence=0.95),
        clock="CPU time",
        pairs=8,
    )
    proposal = replace(report.proposals[0], gain=noisy)
    text = fix_text(replace(report, proposals=(proposal,)), folder=str(place))
    assert "no measurable saving: 10.0% [-2.0%, 20.0%]" in text
