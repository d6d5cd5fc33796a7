"""Defaults of `[tool.torchyard]` in pyproject.toml: where they are found, what overrides them, errors."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.command_line import call, study_of
from torchyard.cli.commands import COMMANDS
from torchyard.cli.group import program
from torchyard.cli.project_file import read_defaults

ONLY = ("--only", "kernels/matmul:size=64")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a subfolder, which is the working directory."""
    root = tmp_path / "project"
    (root / "sub").mkdir(parents=True)
    (root / ".git").mkdir()
    monkeypatch.chdir(root / "sub")
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    return root


def write(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text, "utf-8")


def budget_of(study: dict[str, Any]) -> dict[str, Any]:
    return study["budget"]  # type: ignore[no-any-return]


BENCH = """
[tool.torchyard.bench]
time = "7s"
precision_goal = 0.02
launches = 5
threads = 1
accuracy = false
candidate = ["eager+bfloat16"]
"""


def test_defaults_of_the_nearest_file_are_used(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, BENCH)
    study: Any = study_of(capsys, *ONLY)
    assert study["budget"]["time_s"] == 7.0
    assert study["budget"]["precision_goal"] == 0.02
    assert study["budget"]["max_launches"] == 5
    assert study["settings"]["threads"] == 1
    assert study["settings"]["check_accuracy"] is False
    assert [one["precision"] for one in study["candidates"]] == ["bfloat16"]
    # A file without the table does not end the search; one with it does.
    write(project / "sub", "[tool.other]\nname = 'torchyard'\n")
    assert budget_of(study_of(capsys, *ONLY))["time_s"] == 7.0
    write(project / "sub", "[tool.torchyard.bench]\ntime = 9\n")
    assert budget_of(study_of(capsys, *ONLY))["time_s"] == 9.0


def test_the_command_line_and_a_study_file_override_the_project(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, BENCH)
    given: Any = study_of(capsys, *ONLY, "--time", "8s", "--accuracy", "--candidate", "inductor")
    assert given["budget"]["time_s"] == 8.0
    assert given["settings"]["check_accuracy"] is True
    assert [one["backend"] for one in given["candidates"]] == ["inductor"]
    Path("study.toml").write_text(
        """
        [[workloads]]
        suite = "kernels"
        name = "matmul"
        [budget]
        time = "11s"
        """
    )
    from_study: Any = study_of(capsys, "study.toml")
    assert from_study["budget"]["time_s"] == 11.0
    assert from_study["budget"]["max_launches"] == 5
    assert study_of(capsys, "study.toml", "--time", "12s")["budget"]["time_s"] == 12.0  # type: ignore[index]


def test_workloads_on_the_command_line_replace_those_of_the_project(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "[tool.torchyard.bench]\nonly = ['kernels/softmax']\n")
    study: Any = study_of(capsys, *ONLY)
    assert [one["name"] for one in study["workloads"]] == ["matmul"]
    study = study_of(capsys)
    assert [one["name"] for one in study["workloads"]] == ["softmax"]


def test_the_search_ends_at_the_root_of_the_repository(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project.parent, BENCH)
    assert budget_of(study_of(capsys, *ONLY))["time_s"] == 60.0


def test_files_of_other_users_are_ignored(project: Path) -> None:
    write(project, BENCH)
    path = project / "pyproject.toml"
    assert read_defaults(project, tables=tuple(COMMANDS)) is not None
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, 12345, -1)
    assert read_defaults(project, tables=tuple(COMMANDS)) is None


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[tool.torchyard.bench]\ntiem = '7s'", "unknown key tool.torchyard.bench.tiem", "'time'"),
        ("[tool.torchyard.bnch]\ntime = '7s'", "unknown key tool.torchyard.bnch", "'bench'"),
        ("[tool.torchyard]\nbench = 7", "tool.torchyard.bench is not a table", "[tool"),
        (
            "[tool.torchyard.bench]\ncandidate = 'x'",
            "bench.candidate: 'x' is not a valid value",
            "a list",
        ),
        (
            "[tool.torchyard.bench]\ntime = ['x']",
            "bench.time: ['x'] is not a valid value",
            "not a list",
        ),
        (
            "[tool.torchyard.bench]\ntime = true",
            "bench.time: True is not a valid value",
            "a number",
        ),
        ("[tool.torchyard.bench]\naccuracy = 'no'", "bench.accuracy: 'no' is no", "true or false"),
        (
            "[tool.torchyard.bench]\ntime = {a = 1}",
            "bench.time: a table is not a valid value",
            "a text",
        ),
        ("[tool.torchyard.bench\n", "is not valid TOML", "correct that line"),
    ],
)
def test_errors_name_the_file_and_the_key(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, message: str, hint: str
) -> None:
    write(project, text)
    completed = call(capsys, "bench", *ONLY, "--dry-run")
    assert completed.code == 2
    assert str(project / "pyproject.toml") in completed.err
    assert message in completed.err
    assert hint in completed.err


@pytest.mark.parametrize(("key", "value"), [("time", "soon"), ("reseat", "soon")])
def test_an_invalid_value_names_its_source(
    project: Path, capsys: pytest.CaptureFixture[str], key: str, value: str
) -> None:
    write(project, f"[tool.torchyard.bench]\n{key} = '{value}'")
    completed = call(capsys, "bench", *ONLY, "--dry-run")
    assert completed.code == 2
    assert f"{project / 'pyproject.toml'} sets tool.torchyard.bench.{key}" in completed.err
    # An error of another option does not.
    completed = call(
        capsys, "bench", *ONLY, "--dry-run", "--time", "1s", "--reseat", "off", "--seed=x"
    )
    assert completed.code == 2
    assert "pyproject" not in completed.err


def test_groups_have_tables_of_commands_and_options_of_their_default_command(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        project, "[tool.torchyard.sweep]\ntime = '7s'\n[tool.torchyard.results.list]\nlimit = 3\n"
    )
    completed = call(capsys, "sweep", "--suites", "kernels", "--only", "kernels/matmul", "--plan")
    assert "at most 7 s of measuring" in completed.out + completed.err
    assert call(capsys, "results", "list").code == 0
    write(project, "[tool.torchyard.sweep]\ntiem = '7s'\n")
    assert "tool.torchyard.sweep.tiem" in call(capsys, "sweep", "--suites", "kernels").err
    write(project, "[tool.torchyard.results.list]\nlimt = 3\n")
    assert "did you mean 'limit'?" in call(capsys, "results", "list").err
    write(project, "[tool.torchyard.results]\nlimit = 3\n")
    assert "unknown key tool.torchyard.results.limit" in call(capsys, "results", "list").err


def test_an_option_of_the_project_is_not_one_of_the_command_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "[tool.torchyard.sweep]\ntime = '7s'\n")
    completed = call(capsys, "sweep", "--resume", "missing")
    assert "--time" not in completed.err
    completed = call(capsys, "sweep", "--resume", "missing", "--time", "7s")
    assert "--time" in completed.err


def test_the_help_shows_the_defaults_of_the_project(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, BENCH)
    text = "".join(call(capsys, "bench", "--help").out.split())
    assert f"[tool.torchyard.bench]in{project / 'pyproject.toml'}:time='7s',precision-goal=" in text
    write(project, "")
    assert "tool.torchyard" not in call(capsys, "bench", "--help").out


def test_environment_variables_are_between_command_line_and_file(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, BENCH)
    monkeypatch.setenv("TORCHYARD_BENCH_TIME", "9s")
    monkeypatch.setenv("TORCHYARD_BENCH_CANDIDATE", "eager+float16 eager+amp")
    study: Any = study_of(capsys, *ONLY)
    assert study["budget"]["time_s"] == 9.0
    assert study["budget"]["max_launches"] == 5
    assert [one["precision"] for one in study["candidates"]] == ["float16", "amp"]
    study = study_of(capsys, *ONLY, "--time", "11s")
    assert study["budget"]["time_s"] == 11.0
    (project / "sub" / "study.toml").write_text("[budget]\ntime = '13s'\n", "utf-8")
    study = study_of(capsys, "study.toml", *ONLY)
    assert study["budget"]["time_s"] == 13.0
    monkeypatch.setenv("TORCHYARD_BENCH_TIME", "soon")
    completed = call(capsys, "bench", *ONLY, "--dry-run")
    assert completed.code == 2
    assert "--time: 'soon'" in completed.err


def test_variables_of_a_default_command_have_the_name_of_its_group(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHYARD_SWEEP_TIME", "9s")
    completed = call(capsys, "sweep", "--workload", ONLY[1], "--plan", "--json")
    assert '"time_s": 9.0' in completed.out, completed.err
    # Not the command that executes a cell, nor a resumed sweep, which has its own plan.
    completed = call(capsys, "sweep", "--resume", "latest")
    assert "there is no sweep yet" in completed.err


def test_no_option_has_the_name_of_an_internal_variable() -> None:
    source = Path(__file__).parents[2] / "src" / "torchyard"
    used = {
        name
        for path in source.rglob("*.py")
        for name in re.findall(r"TORCHYARD_[A-Z_]+[A-Z]", path.read_text("utf-8"))
    } - {"TORCHYARD_BENCH_TIME"}
    options = set()
    waiting = [click.Context(program, info_name="torchyard")]
    while waiting:
        context = waiting.pop()
        command = context.command
        options |= {str(one.envvar) for one in command.params if one.envvar is not None}
        if isinstance(command, click.Group):
            names = [*command.list_commands(context), getattr(command, "default_command", "")]
            for name in filter(None, names):
                inner = command.get_command(context, name)
                assert inner is not None
                waiting.append(click.Context(inner, parent=context, info_name=name))
    assert "TORCHYARD_BENCH_TIME" in options
    assert "TORCHYARD_SWEEP_TIME" in options
    assert not used & options
