"""Actions of a step: commands, files, checks, and the rerun script."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import PATH, shell, step
from tests.builds.sandbox.sandbox_commands import needs_cut_network
from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.plan import Action, Command, Download, Step, Verify, WriteFile
from torchyard.builds.running.steps import CommandFailed, StepPerformer
from torchyard.builds.sandbox import abilities, requested_hosts
from torchyard.builds.verify.target_python import RunInTarget
from torchyard.errors import NotAllowed, StepFailed, TorchyardError


class Workspace:
    """A performer of a step in a folder, with its verifications and its output."""

    def __init__(self, folder: Path) -> None:
        self.folder = BuildFolder(folder=folder)
        self.output: list[bytes] = []
        self.verified: list[tuple[str, str]] = []

    def performer(self, *actions: Action, of: Step | None = None) -> StepPerformer:
        item = of or step("one", *actions)
        return StepPerformer(
            step=item,
            folder=self.folder,
            variables=dict(item.variables),
            verify=self._verify,
            on_output=self.output.append,
        )

    def _verify(self, action: Verify, item: Step, run: RunInTarget) -> None:  # noqa: ARG002
        said = run(("sh", "-c", 'echo "$GREETING"; pwd'), {"GREETING": "hello"}).stdout
        self.verified.append((action.component, said))

    @property
    def log(self) -> str:
        return self.folder.log("part/one").read_text(errors="replace")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_actions_are_done_in_order_and_logged(workspace: Workspace, tmp_path: Path) -> None:
    written = tmp_path / "deep" / "tool"
    workspace.performer(
        WriteFile(path=str(written), text="#!/bin/sh\necho from the tool\n", executable=True),
        Command(argv=(str(written),)),
        Command(argv=("sh", "-c", "pwd; echo $EXTRA"), folder="/", variables=(("EXTRA", "x"),)),
    ).perform()
    log = workspace.log
    assert log.index("writing ") < log.index("from the tool") < log.index("\n/\nx\n")
    assert "$ sh -c 'pwd; echo $EXTRA'" in log
    assert b"from the tool\n" in b"".join(workspace.output)


def test_the_first_failure_ends_it(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as raised:
        workspace.performer(shell("exit 3"), shell("touch never")).perform()
    assert raised.value.command_exit_code == 3
    assert not raised.value.stopped
    assert raised.value.exit_code == 5
    assert "exit code 3 from: sh -c 'exit 3'" in raised.value.what
    assert not (tmp_path / "never").exists()


def test_verification_runs_commands_where_the_step_does(
    workspace: Workspace, tmp_path: Path
) -> None:
    workspace.performer(Verify(component="part", report="r")).perform()
    assert workspace.verified == [("part", f"hello\n{tmp_path}\n")]
    assert "checking part" in workspace.log


def test_downloads_are_done_and_their_errors_reported(workspace: Workspace, tmp_path: Path) -> None:
    import hashlib

    source = tmp_path / "file.txt"
    source.write_text("content")
    digest = hashlib.sha256(b"content").hexdigest()
    good = Download(url=source.as_uri(), path=str(tmp_path / "got"), sha256=digest)
    workspace.performer(good).perform()
    assert (tmp_path / "got").read_text() == "content"
    with pytest.raises(StepFailed, match=r"file\.txt"):
        workspace.performer(replace(good, path=str(tmp_path / "no"), sha256="0" * 64)).perform()


@needs_cut_network
def test_hosts_requested_without_network_are_kept(workspace: Workspace) -> None:
    code = "import socket\ntry: socket.gethostbyname('files.example.invalid')\nexcept OSError: pass"
    performer = workspace.performer(Command(argv=("/usr/bin/env", "python3", "-c", code)))
    performer.perform()
    assert requested_hosts(str(performer.requested_hosts_file)) == ("files.example.invalid",)
    workspace.performer(shell("true")).perform()
    assert requested_hosts(str(performer.requested_hosts_file)) == (), "each run has its own"


def test_stop_ends_the_running_command_and_starts_no_other(
    workspace: Workspace, tmp_path: Path
) -> None:
    performer = workspace.performer(shell("touch started; sleep 600"), shell("touch never"))

    def stop() -> None:
        while not (tmp_path / "started").exists():
            time.sleep(0.02)
        performer.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(CommandFailed) as raised:
        performer.perform()
    thread.join(60)
    assert raised.value.stopped
    assert performer.stopped
    assert not (tmp_path / "never").exists()


def test_stopped_before_it_began(workspace: Workspace, tmp_path: Path) -> None:
    performer = workspace.performer(shell("touch never"))
    performer.stop()
    with pytest.raises(CommandFailed) as raised:
        performer.perform()
    assert raised.value.stopped
    assert not (tmp_path / "never").exists()


def test_the_rerun_script_runs_the_last_command_unchanged(
    workspace: Workspace, tmp_path: Path
) -> None:
    odd = 'it\'s $HOME "quoted"\nand more'
    item = replace(
        step("one", shell("true"), shell('printf "%s|%s|%s" "$ODD" "$PATH" "$PWD" > said; exit 4')),
        variables=(("PATH", PATH), ("ODD", odd)),
    )
    performer = workspace.performer(of=item)
    with pytest.raises(CommandFailed):
        performer.perform()
    first = (tmp_path / "said").read_text()
    (tmp_path / "said").unlink()
    done = subprocess.run(
        ["sh", performer.rerun_script],
        check=False,
        cwd="/",
        env={"PATH": PATH, "NOISE": "1", "ODD": "other"},
    )
    assert done.returncode == 4
    assert (tmp_path / "said").read_text() == first == f"{odd}|{PATH}|{tmp_path}"


def test_without_a_command_there_is_no_rerun_script(workspace: Workspace, tmp_path: Path) -> None:
    performer = workspace.performer(WriteFile(path=str(tmp_path / "x"), text=""))
    performer.perform()
    assert performer.rerun_script == ""


def test_the_guard_is_held_from_the_first_action_to_the_last(
    workspace: Workspace, tmp_path: Path
) -> None:
    events: list[str] = []
    performer = workspace.performer(shell("touch done; exit 1"))

    @contextmanager
    def guard(mine: StepPerformer) -> Iterator[None]:
        assert mine is performer
        events.append("in" if not (tmp_path / "done").exists() else "late")
        try:
            yield
        finally:
            events.append("out" if (tmp_path / "done").exists() else "early")

    performer.guard = guard
    with pytest.raises(CommandFailed):
        performer.perform()
    assert events == ["in", "out"]


def test_a_log_that_cannot_be_written_is_reported(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    with pytest.raises(TorchyardError, match="cannot write") as raised:
        workspace.performer(shell("true")).perform()
    assert raised.value.exit_code in (4, 5)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_that_may_not_be_written(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(NotAllowed):
        workspace.performer(WriteFile(path=str(tmp_path / "locked" / "x"), text="")).perform()


def test_a_second_log_replaces_the_first(workspace: Workspace) -> None:
    workspace.performer(shell("echo first")).perform()
    workspace.performer(shell("echo second")).perform()
    assert "first" not in workspace.log


@pytest.mark.parametrize("network", [False, True])
def test_no_process_outlives_a_step(workspace: Workspace, *, network: bool) -> None:
    """Not even one without the marks of its launch, in its own session, that holds the output."""
    if not (network or abilities().can_unshare_network):
        pytest.skip(f"no private network here: {abilities().why_not}")
    seconds = f"{os.getpid()}.{time.monotonic_ns()}"
    text = f"env -i PATH=$PATH setsid sleep {seconds} & echo started"
    workspace.performer(of=step("one", shell(text), network=network)).perform()
    assert "started" in workspace.log
    assert not _sleeping(seconds)


def _sleeping(seconds: str) -> list[int]:
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes() == f"sleep\0{seconds}\0".encode():
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids
