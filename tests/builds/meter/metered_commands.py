"""Running commands under a meter in a folder of its own. For the tests of the meter."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from torchyard.builds.meter.compile_costs import MeterLog, read_meter_log
from torchyard.builds.meter.compiler_launcher import meter_actions
from torchyard.builds.plan import WriteFile


def write_meter_files(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for action in meter_actions(folder):
        if isinstance(action, WriteFile):
            Path(action.path).write_text(action.text)


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about in time")


_COMPILED: list[Path] = []


def meter_program(factory: pytest.TempPathFactory) -> Path:
    """The meter, compiled once with every warning an error."""
    if not _COMPILED:
        if shutil.which("cc") is None:
            pytest.skip("needs a C compiler")
        folder = factory.mktemp("meter")
        write_meter_files(folder)
        command = ["cc", "-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-Wshadow"]
        subprocess.run(
            [*command, "-o", folder / "meter", folder / "meter.c"], check=True, timeout=120
        )
        _COMPILED.append(folder / "meter")
    return _COMPILED[0]


@dataclass
class MeteredCommands:
    """Runs commands under the meter with limits of its own; ends what it started."""

    meter: Path
    folder: Path
    jobs: int = 8
    units: int = 100
    unit_mib: int = 1
    default_mib: int = 1
    more: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log_path(self) -> Path:
        return self.folder / "compiles.log"

    @property
    def variables(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if "TORCHYARD" not in name},
            "TORCHYARD_METER_LOG": str(self.log_path),
            "TORCHYARD_METER_LOCKS": str(self.folder / "locks"),
            "TORCHYARD_METER_TABLE": str(self.folder / "table"),
            "TORCHYARD_METER_JOBS": str(self.jobs),
            "TORCHYARD_METER_UNITS": str(self.units),
            "TORCHYARD_METER_UNIT_MIB": str(self.unit_mib),
            "TORCHYARD_METER_DEFAULT_MIB": str(self.default_mib),
            **self.more,
        }

    def start(self, *argv: object, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [str(word) for word in (self.meter, *argv)],
            env=self.variables,
            cwd=self.folder,
            **options,
        )
        self.started.append(process)
        return process

    def run(self, *argv: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in (self.meter, *argv)],
            env=self.variables,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def fake_compiler(self, body: str, name: str = "fakecc") -> Path:
        """A program that the meter takes for a compiler: a Python script without its imports."""
        path = self.folder / name
        path.write_text(f"#!{sys.executable} -SE\nimport sys, os, time\n{body}\n")
        path.chmod(0o755)
        return path

    @property
    def log(self) -> MeterLog:
        return read_meter_log(self.log_path)

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log_path.read_text().splitlines()]


def open_metered_commands(
    factory: pytest.TempPathFactory, folder: Path
) -> Iterator[MeteredCommands]:
    """For a fixture: a bench whose processes are ended afterwards."""
    bench = MeteredCommands(meter=meter_program(factory), folder=folder)
    yield bench
    for process in bench.started:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=30)
