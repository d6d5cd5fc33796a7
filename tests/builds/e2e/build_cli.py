"""The installed program with its own results directory: command lines and their files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchyard.builds.meter.compile_costs import read_meter_log

LIMIT_S = 280.0
"""For one command line on a busy machine; nothing here measures time."""
_FROM_OUTSIDE = ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "CC", "CXX", "CFLAGS", "CXXFLAGS")


@dataclass(frozen=True, kw_only=True)
class CompletedCommand:
    """How a command line ended."""

    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """The one object on stdout."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document


@dataclass(frozen=True, kw_only=True)
class Cli:
    """A user with a home, who types commands."""

    home: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    def folder(self, build: str) -> Path:
        """The folder of a build."""
        return self.home / "builds" / build

    def build(self, *arguments: str, code: int = 0, cwd: Path | None = None) -> CompletedCommand:
        """`torchyard build ARGUMENTS`, which must end with that code."""
        return self.program("build", *arguments, code=code, cwd=cwd)

    def program(self, *arguments: str, code: int = 0, cwd: Path | None = None) -> CompletedCommand:
        """`torchyard ARGUMENTS`, which must end with that code."""
        done = subprocess.run(
            self.argv(*arguments),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=cwd,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
        )
        said = f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}{self._logs()}"
        assert "internal error" not in done.stderr, said
        assert done.returncode == code, said
        return CompletedCommand(code=done.returncode, out=done.stdout, err=done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """`torchyard build ARGUMENTS`, left running; what it says goes to the home's folder."""
        with (self.home.parent / "started.out").open("w") as out:
            return subprocess.Popen(
                self.argv("build", *arguments),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.environment(),
                text=True,
                # As in a terminal, whatever this process was told to ignore.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
            )

    def started_output(self) -> str:
        """Return the output of the started process so far."""
        return (self.home.parent / "started.out").read_text()

    @staticmethod
    def argv(*arguments: str) -> list[str]:
        """The program of this checkout."""
        return [sys.executable, "-m", "torchyard", *arguments]

    def environment(self) -> dict[str, str]:
        """This process's variables without what would change a build, and the home."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _FROM_OUTSIDE and not name.startswith("TORCHYARD_")
        }
        own = {
            "TORCHYARD_HOME": str(self.home),
            "CCACHE_DIR": str(self.home.parent / "ccache"),
            "SCCACHE_DIR": str(self.home.parent / "sccache"),
        }
        return {**kept, **own, **self.variables}

    def state(self, build: str, step: str) -> dict[str, Any]:
        """What is on disk of a step."""
        path = self.folder(build) / "steps" / f"{step.replace('/', '-')}.json"
        document = json.loads(path.read_text())
        assert isinstance(document, dict)
        return document

    def record(self, build: str) -> dict[str, Any]:
        """The record of a finished build."""
        document = json.loads((self.folder(build) / "record.json").read_text())
        assert isinstance(document, dict)
        return document

    def compiled(self, build: str, component: str = "generic") -> list[str]:
        """Names of what was compiled and linked so far, without probes of a configure step."""
        log = read_meter_log(self.folder(build) / "meter" / f"{component}.log")
        return [
            one.name
            for one in log.compiles
            if one.succeeded and "cmTC_" not in one.output and "/CMakeFiles/3." not in one.output
        ]

    def _logs(self) -> str:
        """Ends of the step logs, for a test that fails."""
        texts = []
        for path in sorted(self.home.glob("builds/*/logs/*.log")):
            lines = path.read_text(errors="replace").splitlines()[-12:]
            texts.append(f"--- {path.name}\n" + "\n".join(lines))
        return "\n".join(texts)


def call(library: Path, function: str) -> int:
    """What a function of a shared library returns, asked in a process of its own."""
    code = "import ctypes, sys; print(getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])())"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, str(library), function],
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def processes_with(text: str) -> list[str]:
    """Command lines of living processes that mention the text, this one's not among them."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in words:
            found.append(words.replace(b"\0", b" ").decode(errors="replace"))
    return found


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that comes; how long it takes does not matter."""
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.05)
