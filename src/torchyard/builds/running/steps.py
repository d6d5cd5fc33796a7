"""Execute one step, action by action: commands in their sandbox, files, downloads, checks.

Output goes to the log of the step, and no process outlives its command. Every failure is raised as
StepFailed; `explain_failure` adds the diagnosis of the log, the suggested fix and a script that
runs the failed command again.
"""

from __future__ import annotations

import fcntl
import os
import platform
import select
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.plan import (
    Action,
    AptSources,
    Command,
    Download,
    Plan,
    SdistDownload,
    Step,
    Verify,
    WriteFile,
)
from torchyard.builds.sandbox import Sandbox, requested_hosts
from torchyard.builds.sources.apt import write_apt_sources
from torchyard.builds.sources.download import download
from torchyard.builds.sources.package_index import download_sdist
from torchyard.builds.verify.target_python import RunInTarget
from torchyard.errors import MissingTool, StepFailed, TorchyardError
from torchyard.files.safe_writing import replace_file, write_error
from torchyard.process.programs import capture
from torchyard.process.start import start_in_long_lived_thread
from torchyard.process.tree import (
    CONTROLLER_VARIABLE,
    LAUNCH_VARIABLE,
    controller_mark,
    kill_launch,
    kill_tree,
    new_launch_mark,
)

_CHUNK_BYTES: Final = 1 << 16
_POLL_MS: Final = 100
"""Interval at which a silent command is checked for its end."""


class CommandRun:
    """A running command; `stop` may be called from another thread."""

    def __init__(self, argv: list[str], *, folder: str, environment: Mapping[str, str]) -> None:
        self._mark = new_launch_mark()
        self._stopped = threading.Event()
        marked = {
            **environment,
            LAUNCH_VARIABLE: self._mark,
            CONTROLLER_VARIABLE: controller_mark(),
        }

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                argv,
                cwd=folder or None,
                env=marked,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        try:
            self._process = start_in_long_lived_thread(start)
        except FileNotFoundError as error:
            missing = folder if folder and not Path(folder).is_dir() else argv[0]
            raise MissingTool(
                f"{missing} does not exist", why=f"required by: {' '.join(argv)}"
            ) from error
        except PermissionError as error:
            raise StepFailed(f"{argv[0]} cannot be started", why=str(error)) from error

    def wait(self, log: BinaryIO, on_output: Callable[[bytes], None]) -> int:
        """Copy the output to the log while the command runs, and return the exit code."""
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101  # set, because stdout=PIPE
        try:
            for chunk in self._output(pipe.fileno()):
                log.write(chunk)
                log.flush()
                on_output(chunk)
        except BaseException:  # a full disk, or an error in the callback
            self.stop()
            self._process.wait()
            raise
        finally:
            pipe.close()
        code = self._process.wait()
        kill_launch(self._mark)
        return code

    def _output(self, pipe: int) -> Iterator[bytes]:
        """Yield the output until the command has ended, even if another process holds the pipe."""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while self._process.poll() is None:
            if poll.poll(_POLL_MS):
                chunk = os.read(pipe, _CHUNK_BYTES)
                if not chunk:
                    return
                yield chunk
        # Background processes of the command must not outlive the step. They are found by the
        # mark: the command is reaped, and its process id may have been reused.
        kill_launch(self._mark)
        os.set_blocking(pipe, False)
        unread = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)  # the command cannot have left more
        with suppress(BlockingIOError):
            while unread > 0 and (chunk := os.read(pipe, _CHUNK_BYTES)):
                unread -= len(chunk)
                yield chunk

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Kill the command and its descendants."""
        self._stopped.set()
        with suppress(OSError):
            if self._process.poll() is None:
                kill_tree(self._process.pid, self._mark)
            else:
                kill_launch(self._mark)


def perform_fetch(
    action: Download | SdistDownload | AptSources, *, progress: Callable[[str], None]
) -> None:
    """Perform a download action atomically; `progress` receives status lines."""
    match action:
        case Download():
            download(action.url, Path(action.path), sha256=action.sha256.lower(), progress=progress)
        case SdistDownload():
            download_sdist(action, progress=progress)
        case AptSources():
            progress(f"apt configuration for {action.suite or 'the suites of this machine'}")
            write_apt_sources(action)


class CommandFailed(StepFailed):
    """A command of a step ended with a nonzero exit code."""

    def __init__(self, command: Command, exit_code: int, *, stopped: bool) -> None:
        shown = shlex.join(command.argv)
        super().__init__(f"exit code {exit_code} from: {shown}")
        self.command = command
        self.command_exit_code = exit_code
        self.stopped = stopped


@dataclass(kw_only=True)
class StepPerformer:
    """Performs the actions of one step; `stop` ends it from another thread."""

    step: Step
    folder: BuildFolder
    variables: Mapping[str, str]
    """The complete environment of the step's commands."""
    verify: Callable[[Verify, Step, RunInTarget], None]
    on_output: Callable[[bytes], None]
    """Receives the output of commands in chunks."""
    guard: Callable[[StepPerformer], AbstractContextManager[None]] = lambda _: nullcontext()
    """Context manager around all actions: locks on what the step shares with other builds."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: CommandRun | None = None
    _stopped: bool = False
    rerun_script: str = field(default="", init=False)
    """Script that runs the failed or interrupted command again; empty if it was not written."""

    @property
    def requested_hosts_file(self) -> Path:
        """File with the host names that the step's commands tried to resolve."""
        return self.folder.log(self.step.name).with_suffix(".wanted")

    def perform(self) -> None:
        """Perform all actions in order; the log has every command and its output."""
        path = self.folder.log(self.step.name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.requested_hosts_file.unlink(missing_ok=True)
            with path.open("wb") as log, self.guard(self):
                for action in self.step.actions:
                    self._perform(action, log)
        except OSError as error:
            raise write_error(path, error, kept="the build so far") from error

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def stop(self) -> None:
        """Stop the running command and start no further one."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.stop()

    def _write_rerun_script(self, command: Command) -> None:
        """Write a script that runs a command, or the one in its arguments, as in this step."""
        folder = command.folder or str(self.folder.folder)
        variables = {**self.variables, **dict(command.variables)}
        # This process, whose end is the end of the commands of a step, will be gone by then.
        argv, full = self._sandbox(command).command(
            command.argv, folder=folder, variables=variables, ends_with_controller=False
        )
        before = argv[: len(argv) - len(command.argv)]
        lines = [
            "#!/bin/sh",
            f"# {self.step.name}: {self.step.title}",
            "# With arguments, runs these as a command instead, such as a shell: sh SCRIPT bash",
            f"cd {shlex.quote(folder)} || exit 1",
            f"[ $# -gt 0 ] || set -- {shlex.join(command.argv)}",
            "exec env -i \\",
            *(f"  {shlex.quote(f'{name}={value}')} \\" for name, value in sorted(full.items())),
            f'  {shlex.join(before)} "$@"',
        ]
        script = self.folder.log(self.step.name).with_suffix(".reenter.sh")
        with suppress(TorchyardError):  # a full disk: the error of the step is more important
            replace_file(script, "\n".join(lines) + "\n")
            script.chmod(0o700)  # URLs of proxies and package indexes may contain a password
            self.rerun_script = str(script)

    def run_in_target(
        self, argv: Sequence[str], variables: Mapping[str, str], /
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the environment of the step and return its output."""
        sandbox = self._sandbox(Command(argv=tuple(argv)))
        environment = {**self.variables, **variables}
        folder = str(self.folder.folder)
        full_argv, full = sandbox.command(argv, folder=folder, variables=environment)
        marks = {LAUNCH_VARIABLE: new_launch_mark(), CONTROLLER_VARIABLE: controller_mark()}
        return capture(full_argv, variables={**full, **marks}, folder=folder)

    def _perform(self, action: Action, log: BinaryIO) -> None:
        if isinstance(action, Command):
            code = self._run(action, log)
            if code:
                self._write_rerun_script(action)
                raise CommandFailed(action, code, stopped=self._stopped)
        elif isinstance(action, WriteFile):
            self._write(action, log)
        elif isinstance(action, Verify):
            self._write_line(f"checking {action.component}", log)
            self.verify(action, self.step, self.run_in_target)
        else:
            perform_fetch(action, progress=lambda text: self._write_line(text, log))

    def _write(self, action: WriteFile, log: BinaryIO) -> None:
        self._write_line(f"writing {action.path}", log)
        path = Path(action.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, action.text)
        if action.executable:
            path.chmod(path.stat().st_mode | 0o111)

    def _run(self, command: Command, log: BinaryIO) -> int:
        folder = command.folder or str(self.folder.folder)
        environment = {**self.variables, **dict(command.variables)}
        sandbox = self._sandbox(command)
        argv, full = sandbox.command(command.argv, folder=folder, variables=environment)
        self._write_line(f"$ {shlex.join(command.argv)}", log)
        with self._lock:
            if self._stopped:
                raise CommandFailed(command, 130, stopped=True)
            self._running = CommandRun(
                argv, folder="" if argv[0] != command.argv[0] else folder, environment=full
            )
        try:
            return self._running.wait(log, self.on_output)
        finally:
            self._running = None

    def _sandbox(self, command: Command) -> Sandbox:
        return Sandbox(
            root=self.step.root if command.inside_root else "",
            network=self.step.network,
            writable=self.folder.shown_in(self.step.root),
            requested_hosts_file="" if self.step.network else str(self.requested_hosts_file),
            # A program that makes a root folder may need to create its own user namespace.
            supervised=command.inside_root,
        )

    @staticmethod
    def _write_line(text: str, log: BinaryIO) -> None:
        log.write(f"[{time.strftime('%H:%M:%S')}] {text}\n".encode(errors="backslashreplace"))
        log.flush()


def explain_failure(
    plan: Plan, folder: BuildFolder, step: Step, performer: StepPerformer, error: CommandFailed
) -> StepFailed:
    """Return the error of a step whose command failed, with diagnosis and rerun script."""
    log = folder.log(step.name)
    script = performer.rerun_script
    rerun_hint = f"\nto run the command again: sh {shlex.quote(script)}" if script else ""
    release = next((part.release for part in plan.components if part.name == step.component), "")
    hosts = requested_hosts(str(performer.requested_hosts_file))
    diagnosis = diagnose(
        log,
        exit_code=error.command_exit_code,
        wanted_names=hosts,
        release=release,
        machine=platform.machine(),
    )
    root = diagnosis.root
    if root is not None:
        why = f"{root.title}: {root.cause}"
        hint = "\n".join((*root.remedy, *root.commands)) + rerun_hint
    else:
        first = diagnosis.first_error
        why = first.text if first is not None else "the log contains no error message"
        hint = f"all files are kept in {plan.folder}{rerun_hint}"
    if hosts and (root is None or hosts[0] not in why):
        why += f"\nit tried to reach: {', '.join(hosts[:5])}"
    return StepFailed(
        f"the step {step.name} failed: {error.what}", why=why, hint=hint, log=str(log)
    )
