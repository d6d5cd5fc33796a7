"""Does what a step says, action by action: commands in their sandbox, files, downloads, checks.

Raises StepFailed for whatever goes wrong; which step runs when is the runner's business.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torchyard.build.command_run import CommandRun
from torchyard.build.layout import BuildFolder
from torchyard.build.sandbox import Sandbox
from torchyard.build.sources.performing import perform as perform_fetch
from torchyard.build.verify import RunInTarget
from torchyard.core.build_plan import Action, Command, Step, Verify, WriteFile
from torchyard.errors import StepFailed
from torchyard.process.markers import LAUNCH_VARIABLE, YARD_VARIABLE, new_launch_mark, yard_mark
from torchyard.results.durable import replace_file, write_failed

__all__ = ["CommandFailed", "StepPerformer"]


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
