"""Execute one step, action by action: commands in their sandbox, files, downloads, checks.

Output goes to the log of the step, and no process outlives its command. Every failure is raised as
StepFailed; `explain_failure` adds the diagnosis of the log, the suggested fix and a script that
runs the failed command again.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.diagnosis import diagnose
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
from torchyard.builds.sandbox import Sandbox, wanted_names
from torchyard.builds.sources.apt import write_apt_sources
from torchyard.builds.sources.download import download
from torchyard.builds.sources.package_index import download_sdist
from torchyard.builds.verify import RunInTarget
from torchyard.errors import MissingTool, StepFailed, TorchyardError
from torchyard.files.safe_writing import replace_file, write_failed
from torchyard.process.start import start_in_lasting_thread
from torchyard.process.tree import (
    LAUNCH_VARIABLE,
    YARD_VARIABLE,
    kill_launch,
    kill_tree,
    new_launch_mark,
    yard_mark,
)

_CHUNK_BYTES: Final = 1 << 16


class CommandRun:
    """One running command; `stop` may be called from another thread."""

    def __init__(self, argv: list[str], *, folder: str, environment: Mapping[str, str]) -> None:
        self._mark = new_launch_mark()
        self._stopped = threading.Event()
        marked = {**environment, LAUNCH_VARIABLE: self._mark, YARD_VARIABLE: yard_mark()}

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
            self._process = start_in_lasting_thread(start)
        except FileNotFoundError as error:
            missing = folder if folder and not Path(folder).is_dir() else argv[0]
            raise MissingTool(
                f"{missing} is not there", why=f"it was needed for: {' '.join(argv)}"
            ) from error
        except PermissionError as error:
            raise StepFailed(f"{argv[0]} cannot be started", why=str(error)) from error

    def wait(self, log: BinaryIO, heard: Callable[[bytes], None]) -> int:
        """Copy the output to the log as it comes, and return the exit code."""
        pipe = self._process.stdout
        assert pipe is not None  # noqa: S101  # Popen was asked for it
        try:
            while chunk := os.read(pipe.fileno(), _CHUNK_BYTES):
                log.write(chunk)
                log.flush()
                heard(chunk)
        except BaseException:  # a full disk under the log, or a mistake of whoever listens
            self.stop()
            self._process.wait()
            raise
        finally:
            pipe.close()
        code = self._process.wait()
        # What the command left running in the background must not outlive its step. Only the mark
        # tells it now: the process is reaped, and its number may belong to somebody else.
        kill_launch(self._mark)
        return code

    @property
    def stopped(self) -> bool:
        """Whether `stop` ended it."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the command and everything it started."""
        self._stopped.set()
        with suppress(OSError):
            if self._process.poll() is None:
                kill_tree(self._process.pid, self._mark)
            else:
                kill_launch(self._mark)


def perform_fetch(
    action: Download | SdistDownload | AptSources, *, progress: Callable[[str], None]
) -> None:
    """Do one action, whole or not at all; `progress` gets a line for people now and then."""
    match action:
        case Download():
            download(action.url, Path(action.path), sha256=action.sha256.lower(), progress=progress)
        case SdistDownload():
            download_sdist(action, progress=progress)
        case AptSources():
            progress(f"apt configuration for {action.suite or 'the suites of this machine'}")
            write_apt_sources(action)


class CommandFailed(StepFailed):
    """A command of a step ended with another exit code than 0."""

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
    """The whole environment of the step's commands."""
    verify: Callable[[Verify, Step, RunInTarget], None]
    heard: Callable[[bytes], None]
    """Gets the output of commands as it comes."""
    guard: Callable[[StepPerformer], AbstractContextManager[None]] = lambda _: nullcontext()
    """Entered before the first action and left after the last: what the step shares with others."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _running: CommandRun | None = None
    _stopped: bool = False
    _last: tuple[list[str], str, dict[str, str]] | None = None

    @property
    def wanted_file(self) -> Path:
        """Names that the step's commands asked the network for."""
        return self.folder.log(self.step.name).with_suffix(".wanted")

    def perform(self) -> None:
        """Do all actions, in order; the log has every command and its output."""
        path = self.folder.log(self.step.name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.wanted_file.unlink(missing_ok=True)
            with path.open("wb") as log, self.guard(self):
                for action in self.step.actions:
                    self._perform(action, log)
        except OSError as error:
            raise write_failed(path, error, kept="what was built") from error

    @property
    def stopped(self) -> bool:
        """Whether it was told to stop."""
        return self._stopped

    def stop(self) -> None:
        """End the running command; no other one starts."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.stop()

    def reenter_script(self) -> str:
        """A shell script that runs the last command again just as it was run."""
        if self._last is None:
            return ""
        argv, folder, variables = self._last
        lines = [
            "#!/bin/sh",
            f"# {self.step.name}: {self.step.title}",
            f"cd {shlex.quote(folder)} || exit 1",
            "exec env -i \\",
            *(
                f"  {shlex.quote(f'{name}={value}')} \\"
                for name, value in sorted(variables.items())
            ),
            f"  {shlex.join(argv)}",
        ]
        return "\n".join(lines) + "\n"

    def run_in_target(
        self, argv: Sequence[str], variables: Mapping[str, str], /
    ) -> subprocess.CompletedProcess[str]:
        """Run a command where the step's commands run, and give back what it said."""
        sandbox = self._sandbox(Command(argv=tuple(argv)))
        environment = {**self.variables, **variables}
        folder = str(self.folder.folder)
        full_argv, full = sandbox.command(argv, folder=folder, variables=environment)
        marks = {LAUNCH_VARIABLE: new_launch_mark(), YARD_VARIABLE: yard_mark()}
        return subprocess.run(
            full_argv,
            cwd=folder,
            env={**full, **marks},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )

    def _perform(self, action: Action, log: BinaryIO) -> None:
        if isinstance(action, Command):
            code = self._run(action, log)
            if code:
                raise CommandFailed(action, code, stopped=self._stopped)
        elif isinstance(action, WriteFile):
            self._write(action, log)
        elif isinstance(action, Verify):
            self._say(f"checking {action.component}", log)
            self.verify(action, self.step, self.run_in_target)
        else:
            perform_fetch(action, progress=lambda text: self._say(text, log))

    def _write(self, action: WriteFile, log: BinaryIO) -> None:
        self._say(f"writing {action.path}", log)
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
        self._say(f"$ {shlex.join(command.argv)}", log)
        # Kept for a script that is started when this process is long gone.
        again, kept = sandbox.command(
            command.argv, folder=folder, variables=environment, ends_with_yard=False
        )
        self._last = (again, folder, kept)
        with self._lock:
            if self._stopped:
                raise CommandFailed(command, 130, stopped=True)
            self._running = CommandRun(
                argv, folder="" if argv[0] != command.argv[0] else folder, environment=full
            )
        try:
            return self._running.wait(log, self.heard)
        finally:
            self._running = None

    def _sandbox(self, command: Command) -> Sandbox:
        return Sandbox(
            root=self.step.root if command.inside_root else "",
            network=self.step.network,
            writable=self.folder.shown_in(self.step.root),
            wanted_file="" if self.step.network else str(self.wanted_file),
        )

    @staticmethod
    def _say(text: str, log: BinaryIO) -> None:
        log.write(f"[{time.strftime('%H:%M:%S')}] {text}\n".encode(errors="backslashreplace"))
        log.flush()


def explain_failure(
    plan: Plan, folder: BuildFolder, step: Step, performer: StepPerformer, error: CommandFailed
) -> StepFailed:
    """The error of a step whose command failed; everything it built stays where it is."""
    log = folder.log(step.name)
    script = log.with_suffix(".reenter.sh")
    back = ""
    with suppress(TorchyardError):  # a full disk is what the error itself will tell
        replace_file(script, performer.reenter_script())
        script.chmod(0o700)  # addresses of proxies and indexes may hold a password
        back = f"\nthe command again: sh {shlex.quote(str(script))}"
    release = next((part.release for part in plan.components if part.name == step.component), "")
    wanted = wanted_names(str(performer.wanted_file))
    diagnosis = diagnose(
        log,
        exit_code=error.command_exit_code,
        wanted_names=wanted,
        release=release,
        machine=platform.machine(),
    )
    root = diagnosis.root
    if root is not None:
        why = f"{root.title}: {root.cause}"
        hint = "\n".join((*root.remedy, *root.commands)) + back
    else:
        first = diagnosis.first_error
        why = first.text if first is not None else "the log names no error"
        hint = f"everything is kept in {plan.folder}{back}"
    if wanted and (root is None or wanted[0] not in why):
        why += f"\nit asked the network for: {', '.join(wanted[:5])}"
    return StepFailed(
        f"the step {step.name} failed: {error.what}", why=why, hint=hint, log=str(log)
    )
