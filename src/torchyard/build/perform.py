"""Does what a step says, action by action: commands in their sandbox, files, downloads, checks.

Raises StepFailed for whatever goes wrong; which step runs when is the runner's business.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torchyard.build.command_run import CommandRun
from torchyard.build.layout import BuildFolder
from torchyard.build.sandbox import Sandbox, abilities
from torchyard.build.sources.performing import perform as perform_fetch
from torchyard.core.build_plan import Action, Command, Step, Verify, WriteFile
from torchyard.errors import StepFailed
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
    verify: Callable[[Verify, Step, Callable[[Command, BinaryIO], int]], None]
    heard: Callable[[bytes], None]
    """Gets the output of commands as it comes."""
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
        path.parent.mkdir(parents=True, exist_ok=True)
        self.wanted_file.unlink(missing_ok=True)
        try:
            with path.open("wb") as log:
                for action in self.step.actions:
                    self._perform(action, log)
        except OSError as error:
            raise write_failed(path, error, kept="what was built") from error

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
            *(f"  {shlex.quote(f'{name}={value}')} \\" for name, value in sorted(variables.items())),
            f"  {shlex.join(argv)}",
        ]
        return "\n".join(lines) + "\n"

    def _perform(self, action: Action, log: BinaryIO) -> None:
        if isinstance(action, Command):
            code = self._run(action, log)
            if code:
                raise CommandFailed(action, code, stopped=self._stopped)
        elif isinstance(action, WriteFile):
            self._write(action, log)
        elif isinstance(action, Verify):
            self.verify(action, self.step, self._run)
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
        cut = not self.step.network and abilities().can_unshare_network
        sandbox = Sandbox(
            root=self.step.root if command.inside_root else "",
            network=not cut,
            writable=(str(self.folder.folder),),
            wanted_file=str(self.wanted_file) if cut else "",
        )
        argv, full = sandbox.command(command.argv, folder=folder, variables=environment)
        self._say(f"$ {shlex.join(command.argv)}", log)
        self._last = (argv, folder, full)
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

    @staticmethod
    def _say(text: str, log: BinaryIO) -> None:
        log.write(f"[{time.strftime('%H:%M:%S')}] {text}\n".encode(errors="backslashreplace"))
        log.flush()
