"""The message of a failed step: cause, fix, log, and rerun script."""

from __future__ import annotations

import stat
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import plan_of, shell, step
from tests.builds.sandbox.sandbox_commands import needs_cut_network
from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.plan import Command, Step
from torchyard.builds.running.steps import CommandFailed, StepPerformer, explain_failure
from torchyard.errors import StepFailed


def failed(folder: Path, item: Step) -> StepFailed:
    """The error of a step whose command really fails."""
    performer = StepPerformer(
        step=item,
        folder=BuildFolder(folder=folder),
        variables=dict(item.variables),
        verify=lambda *_: None,
        on_output=lambda _: None,
    )
    with pytest.raises(CommandFailed) as raised:
        performer.perform()
    return explain_failure(
        plan_of(folder, item), BuildFolder(folder=folder), item, performer, raised.value
    )


def test_the_first_error_of_the_log_is_the_reason(tmp_path: Path) -> None:
    (tmp_path / "wrong.c").write_text("int f(void) { return nothing_of_that_name; }\n")
    error = failed(tmp_path, step("build", Command(argv=("cc", "-c", "wrong.c"))))
    assert error.what == "the step part/build failed: exit code 1 from: cc -c wrong.c"
    assert "wrong.c:1" in error.why
    assert "nothing_of_that_name" in error.why
    assert error.log == str(tmp_path / "logs/part-build.log")
    assert f"all files are kept in {tmp_path}" in error.hint
    assert error.exit_code == 5


def test_the_rerun_script_works_and_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "a folder's name"
    folder.mkdir()
    error = failed(folder, step("build", shell("echo tried >> tries; exit 9")))
    line = error.hint.splitlines()[-1]
    assert line.startswith("to run the command again: sh ")
    done = subprocess.run(["sh", "-c", line.partition(": ")[2]], check=False, cwd="/")
    assert done.returncode == 9
    assert (folder / "tries").read_text() == "tried\ntried\n"
    script = folder / "logs/part-build.reenter.sh"
    assert stat.S_IMODE(script.stat().st_mode) == 0o700


def test_the_rerun_script_runs_another_command_in_the_same_environment(tmp_path: Path) -> None:
    command = replace(shell("exit 9"), variables=(("KIND", "of the step"),))
    failed(tmp_path, step("build", command))
    script = tmp_path / "logs/part-build.reenter.sh"
    argv = [
        "sh",
        str(script),
        "sh",
        "-c",
        'echo "$KIND" "$@" "${ELSEWHERE-unset}"; pwd',
        "-",
        "a  b",
    ]
    environ = {"ELSEWHERE": "of the caller", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == f"of the step a  b unset\n{tmp_path}\n"


def test_an_interrupted_command_has_a_rerun_script(tmp_path: Path) -> None:
    performer = StepPerformer(
        step=step("build", shell("echo started; sleep 60")),
        folder=BuildFolder(folder=tmp_path),
        variables={"PATH": "/usr/bin:/bin"},
        verify=lambda *_: None,
        on_output=lambda _: threading.Thread(target=performer.stop).start(),
    )
    with pytest.raises(CommandFailed) as raised:
        performer.perform()
    assert raised.value.stopped
    done = subprocess.run(
        ["sh", performer.rerun_script, "echo", "again"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "again\n"


def test_a_known_cause_comes_with_its_remedy(tmp_path: Path) -> None:
    error = failed(
        tmp_path,
        step(
            "build",
            shell("echo 'cc: fatal error: Killed signal terminated program cc1plus'; exit 1"),
        ),
    )
    assert "memory" in error.why
    assert len(error.hint.splitlines()) >= 2
    assert "the command again: " in error.hint


def test_a_log_without_an_error_message(tmp_path: Path) -> None:
    error = failed(tmp_path, step("build", shell("exit 1")))
    assert error.why


@needs_cut_network
def test_requested_hosts_are_reported(tmp_path: Path) -> None:
    code = "import socket; socket.create_connection(('files.example.invalid', 443))"
    error = failed(tmp_path, step("build", Command(argv=("/usr/bin/env", "python3", "-c", code))))
    assert "files.example.invalid" in error.why


def test_no_rerun_script_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "logs/part-build.reenter.sh").mkdir(parents=True)
    error = failed(tmp_path, step("build", shell("exit 1")))
    assert "the command again" not in error.hint
    assert f"all files are kept in {tmp_path}" in error.hint


def test_a_step_of_the_environment_has_no_component(tmp_path: Path) -> None:
    item = replace(step("x", shell("exit 2")), name="environment/python", component="environment")
    assert "the step environment/python failed" in failed(tmp_path, item).what
