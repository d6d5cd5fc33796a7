"""Run Python in the finished target, and the interface of all checks.

Python runs outside the source tree and with a time limit. How a command gets into the target (a
plain process, a sandbox with a root folder) is decided by the caller, who passes in a function. A
check is a function that takes a `Subject` and returns a `Checked`; checks do not know each other,
and what several need (the folders of the environment, the imported module) is in `Subject`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from torchyard.builds.plan import Component
from torchyard.builds.record import (
    CheckFinding,
    ImportedModule,
    LinkedLibrary,
    OptionVerdict,
    SmokeResult,
)

# -I (isolated) keeps the working folder, PYTHONPATH and the user's own packages off sys.path, so
# that nothing but the environment can be imported. faulthandler's watchdog is a thread in C: it
# ends a snippet that hangs inside native code, and says where.
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


class Finished(Protocol):
    """What is known of a command that ended, as `subprocess.CompletedProcess` says it."""

    @property
    def returncode(self) -> int:
        """Exit code; negative for a signal."""

    @property
    def stdout(self) -> str:
        """All it wrote."""

    @property
    def stderr(self) -> str:
        """All it complained."""


class RunInTarget(Protocol):
    """Runs a command in the target, with these variables on top of the target's own."""

    def __call__(self, argv: Sequence[str], variables: Mapping[str, str], /) -> Finished:
        """Wait for the command and give back what it said; no exit code is an error here."""


@dataclass(frozen=True, kw_only=True)
class SnippetOutcome:
    """How a snippet ended."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool
    duration_s: float
    answer: dict[str, Any] | None = None
    """What it handed to `answer(...)`."""

    @property
    def good(self) -> bool:
        """It came to its end."""
        return self.returncode == 0 and not self.timed_out

    def tail(self, count: int = 12) -> str:
        """The last lines it wrote, for people."""
        return last_lines(self.stderr or self.stdout, count)


@dataclass(frozen=True, kw_only=True)
class TargetPython:
    """The interpreter of the target."""

    python: str
    run: RunInTarget
    folder: str
    """An empty folder that the target sees at this path: the working folder of every snippet."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def snippet(
        self, code: str, *, limit_s: float = 120.0, arguments: Sequence[str] = ()
    ) -> SnippetOutcome:
        """Run some lines; they may call `answer(mapping)` to hand a result back."""
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

    def ask(
        self, code: str, *, limit_s: float = 120.0, arguments: Sequence[str] = ()
    ) -> SnippetOutcome:
        """As `snippet`, with a function `answer` defined for the code."""
        define = (
            "def answer(value):\n"
            "    import json, sys\n"
            f"    sys.stdout.write('\\n{_ANSWER_MARK}' + json.dumps(value, default=str) + '\\n')\n"
            "    sys.stdout.flush()\n"
        )
        return self.snippet(define + code, limit_s=limit_s, arguments=arguments)


def last_lines(text: str, count: int) -> str:
    """The end of a text, without blank lines."""
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
    """Where the target's interpreter keeps its things."""

    prefix: str = ""
    """Of the environment; the same as the system's where there is no environment."""
    site: tuple[str, ...] = ()
    """Folders that packages are installed to."""


@dataclass(frozen=True, kw_only=True)
class ModuleFacts:
    """What importing the module showed."""

    name: str
    file: str = ""
    version: str = ""
    config: dict[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()
    """Shared libraries in the process, by their real paths."""
    failure: str = ""
    """The last lines, when it did not import."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A finished component, as the checks see it."""

    component: Component
    root: str
    run: RunInTarget
    target: TargetPython | None
    """None for a component without an interpreter."""
    environment: EnvironmentFolders
    module: ModuleFacts | None
    """None when the recipe names no module."""
    smoke_limit_s: float

    @property
    def editable(self) -> bool:
        """The tree itself is what gets imported, on purpose."""
        recipe = self.component.recipe
        return recipe.builder == "python" and recipe.python.install == "editable"

    def outside(self, path: str) -> Path:
        """Where a path of the target is for this process.

        Folders that a root shares with this machine have one path for both, and are empty below
        the root folder while nothing is mounted there.
        """
        if self.root:
            below = Path(self.root) / path.lstrip("/")
            if below.exists():
                return below
        return Path(path)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What one check found."""

    findings: tuple[CheckFinding, ...] = ()
    imported: ImportedModule | None = None
    options: tuple[OptionVerdict, ...] = ()
    config: dict[str, str] = field(default_factory=dict)
    libraries: tuple[LinkedLibrary, ...] = ()
    loaded: tuple[str, ...] = ()
    smoke: tuple[SmokeResult, ...] = ()


class Check(Protocol):
    """One kind of check."""

    def __call__(self, subject: Subject, /) -> Checked:
        """Look, and say what is not as it should be; raises only for our own mistakes."""
