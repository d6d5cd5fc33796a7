"""Run Python in the finished target, and the interface of all checks.

Python runs outside the source tree and with a time limit. The caller passes a function that runs a
command in the target (a plain process, or a sandbox with a root folder). A check is a function that
takes a `Subject` and returns a `CheckResult`; checks are independent, and shared data (the folders of
the environment, the imported module) are in `Subject`.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torchyard.builds.plan import Component
from torchyard.builds.record import (
    CheckFinding,
    ImportedModule,
    LinkedLibrary,
    OptionVerdict,
    SmokeResult,
)

# -I (isolated) keeps the working folder, PYTHONPATH and user packages off sys.path, so that only
# packages of the environment can be imported. The watchdog of faulthandler is a C thread: it ends a
# snippet that hangs in native code, and prints the stack.
_BOOT: Final = """
import faulthandler, os, sys
_folder, _limit, _code = sys.argv[1:4]
sys.argv[1:4] = []
os.chdir(_folder)
faulthandler.dump_traceback_later(float(_limit), exit=True)
exec(compile(_code, "<torchyard check>", "exec"), {"__name__": "__main__"})
"""
_TIMEOUT_MARK: Final = "Timeout ("
_ANSWER_MARK: Final = "torchyard-answer:"


RunInTarget = Callable[[Sequence[str], Mapping[str, str]], subprocess.CompletedProcess[str]]
"""Runs a command in the target, with additional environment variables; an exit code does not raise."""


@dataclass(frozen=True, kw_only=True)
class SnippetOutcome:
    """Result of a snippet."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool
    duration_s: float
    answer: dict[str, Any] | None = None
    """The value passed to `answer(...)`."""

    @property
    def good(self) -> bool:
        """Whether it succeeded."""
        return self.returncode == 0 and not self.timed_out

    def tail(self, count: int = 12) -> str:
        """Return the last lines of its output."""
        return last_lines(self.stderr or self.stdout, count)


@dataclass(frozen=True, kw_only=True)
class TargetPython:
    """The interpreter of the target."""

    python: str
    run: RunInTarget
    folder: str
    """An empty folder, at the same path in the target: the working directory of every snippet."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def snippet(
        self, code: str, *, limit_s: float = 120.0, arguments: Sequence[str] = ()
    ) -> SnippetOutcome:
        """Run Python code in the target."""
        argv = (self.python, "-I", "-c", _BOOT, self.folder, str(limit_s), code, *arguments)
        started = time.monotonic()
        done = self.run(argv, self.variables)
        return SnippetOutcome(
            returncode=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            timed_out=done.returncode != 0 and _TIMEOUT_MARK in done.stderr,
            duration_s=time.monotonic() - started,
            answer=_answer_in(done.stdout),
        )

    def query(
        self, code: str, *, limit_s: float = 120.0, arguments: Sequence[str] = ()
    ) -> SnippetOutcome:
        """Run code that may call `answer(mapping)` to return a result."""
        define = (
            "def answer(value):\n"
            "    import json, sys\n"
            f"    sys.stdout.write('\\n{_ANSWER_MARK}' + json.dumps(value, default=str) + '\\n')\n"
            "    sys.stdout.flush()\n"
        )
        return self.snippet(define + code, limit_s=limit_s, arguments=arguments)


def last_lines(text: str, count: int) -> str:
    """Return the last lines of a text, without blank ones."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


def _answer_in(text: str) -> dict[str, Any] | None:
    for line in reversed(text.splitlines()):
        if line.startswith(_ANSWER_MARK):
            try:
                value = json.loads(line.removeprefix(_ANSWER_MARK))
            except ValueError:
                return None
            return value if isinstance(value, dict) else None
    return None


@dataclass(frozen=True, kw_only=True)
class EnvironmentFolders:
    """Folders of the interpreter of the target."""

    prefix: str = ""
    """Prefix of the environment, or that of the system if there is none."""
    site: tuple[str, ...] = ()
    """Folders of installed packages."""


@dataclass(frozen=True, kw_only=True)
class ModuleFacts:
    """Facts about an imported module."""

    name: str
    file: str = ""
    version: str = ""
    config: dict[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()
    """Real paths of the shared libraries in the process."""
    failure: str = ""
    """The last lines of output, if the import failed."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A finished component, the input of the checks."""

    component: Component
    root: str
    run: RunInTarget
    target: TargetPython | None
    """None for a component without an interpreter."""
    environment: EnvironmentFolders
    module: ModuleFacts | None
    """None if the recipe has no module."""
    smoke_limit_s: float

    @property
    def editable(self) -> bool:
        """Whether the component is installed in editable mode."""
        recipe = self.component.recipe
        return recipe.builder == "python" and recipe.python.install == "editable"

    def outside(self, path: str) -> Path:
        """Return the path outside of the root folder for a path in the target.

        Folders that a root shares with this machine have the same path in both, and are empty
        below the root folder while nothing is mounted there.
        """
        if self.root:
            below = Path(self.root) / path.lstrip("/")
            if below.exists():
                return below
        return Path(path)


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """Result of one check."""

    findings: tuple[CheckFinding, ...] = ()
    imported: ImportedModule | None = None
    options: tuple[OptionVerdict, ...] = ()
    config: dict[str, str] = field(default_factory=dict)
    libraries: tuple[LinkedLibrary, ...] = ()
    loaded: tuple[str, ...] = ()
    smoke: tuple[SmokeResult, ...] = ()


Check = Callable[[Subject], CheckResult]
"""One kind of check. Problems are findings; exceptions are bugs."""
