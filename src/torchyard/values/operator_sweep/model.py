"""A sweep of operators: its settings, the outcome of each case, and the folder that holds them.

Worker and controller both append rows, one JSON line each. A half-written line of a killed process
is ignored, and its case runs again.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import decode, encode
from torchyard.errors import NothingToDo, ResultsDamaged, UsageError, WorkerFailed
from torchyard.files.safe_writing import replace_file, to_json_text, write_error
from torchyard.process.programs import PROGRAM_ENTRY
from torchyard.process.start import LaunchSpec, prepare
from torchyard.process.tree import kill_launch, new_launch_mark, sweep_orphans
from torchyard.results.directory import home_folder, new_run_folder
from torchyard.values.model import Proof, new_profile_folder


class CaseState(StrEnum):
    """Outcome of a case."""

    DONE = "done"
    UNSUPPORTED = "unsupported"
    """This torch or this device cannot run it, with or without value profiling."""
    FAILED = "failed"
    """It runs, but raises an error with value profiling."""
    CRASHED = "crashed"
    """Its process died."""
    TOO_LONG = "too long"
    """Its process was ended because it took longer than the limit."""


@dataclass(frozen=True, kw_only=True)
class OperatorWorth:
    """Cost of the waste, at the size of the case. None means not measured."""

    operator_ns: float | None = None
    wasted_ns: float | None = None
    """The wasted part alone, on as many bytes."""
    gain: float | None = None
    """Speedup of the operator with its fix simulated."""
    gain_method: str = ""
    method: str = ""
    unavailable: str = ""

    @property
    def share(self) -> float | None:
        """Share of the operator's time that the wasted part takes when it runs alone."""
        if self.operator_ns is None or self.wasted_ns is None or self.operator_ns <= 0:
            return None
        return min(1.0, self.wasted_ns / self.operator_ns)


@dataclass(frozen=True, kw_only=True)
class NativeCall:
    """A write inside an operator, as native code issues it."""

    called: str
    """The operator that is called, such as `zeros_like`."""
    functions: tuple[str, ...] = ()
    """Native functions around the call, innermost first; `LIBRARY+0xOFFSET` without a symbol."""
    number: int = 0
    callers: tuple[str, ...] = ()
    """The innermost functions of all calls of the operator, in order; `number` is the index of this one."""


@dataclass(frozen=True, kw_only=True)
class OperatorFinding:
    """Wasted work of one operator."""

    direction: str
    """forward or backward"""
    pattern: str
    operator: str
    path: tuple[str, ...] = ()
    """Enclosing operators, outermost first."""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    bytes_wasted: int = 0
    """In one call."""
    count: int = 0
    detail: str = ""
    native: int = 0
    """How often it ran in one call without value profiling."""
    calls: tuple[NativeCall, ...] = ()
    """Who issues the write, and who wrote to the same memory before."""
    proof: Proof = field(default_factory=Proof)
    worth: OperatorWorth = field(default_factory=OperatorWorth)


@dataclass(frozen=True, kw_only=True)
class OperatorCase:
    """One case, forward and backward."""

    case: str
    state: CaseState
    family: str = ""
    why: str = ""
    seconds: float = 0.0
    directions: tuple[str, ...] = ()
    findings: tuple[OperatorFinding, ...] = ()
    written_bytes: int = 0
    """By all operators of the case, at all depths."""
    not_seen_bytes: int = 0
    """Of these, in memory that cannot be examined."""
    not_tried: int = 0
    """Number of missing trials."""


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """Settings of a sweep; stored with its results, so that it can be resumed."""

    python: str
    target: str
    device: str = "cpu"
    only: str = "*"
    cases_file: str | None = None
    threads: int = 1
    limit_s: float = 120.0
    """For one case."""
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Settings and outcomes of one sweep."""

    settings: SweepSettings
    torch: str = ""
    device: str = ""
    names: tuple[str, ...] = ()
    """Of all selected cases."""
    cases: tuple[OperatorCase, ...] = ()
    """Those with a result."""

    @property
    def finished(self) -> bool:
        """Whether every case has a result."""
        return len(self.cases) >= len(self.names) > 0

    def count(self, state: CaseState) -> int:
        """Return the number of cases with this outcome."""
        return sum(case.state is state for case in self.cases)


FORMAT: Final = 1
SETTINGS_FILE: Final = "sweep.json"
ROWS_FILE: Final = "rows.jsonl"


@dataclass
class _Rows:
    """Contents of the file of rows."""

    torch: str = ""
    device: str = ""
    names: tuple[str, ...] = ()
    began: str = ""
    cases: dict[str, OperatorCase] = field(default_factory=dict)


class SweepFolder:
    """The folder of a sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = folder / ROWS_FILE

    def begin(self, settings: SweepSettings) -> None:
        """Write the settings."""
        text = to_json_text({"format": FORMAT, **encode(settings)}, indent=1)
        replace_file(self.folder / SETTINGS_FILE, text)

    def settings(self) -> SweepSettings:
        """Return the settings; raise UsageError if the folder is not that of a sweep."""
        path = self.folder / SETTINGS_FILE
        if not path.is_file():
            raise UsageError(
                f"{self.folder} is not the folder of a sweep",
                hint="give the folder that a sweep printed",
            )
        try:
            data = json.loads(path.read_bytes())
            version = int(data.pop("format"))
            if version > FORMAT:
                raise ResultsDamaged(
                    f"{path} was written by a newer Torchyard", hint="update Torchyard"
                )
            plain = {key: value for key, value in data.items() if value is not None}
            return decode(SweepSettings, plain, where=str(path), strict=False)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, UsageError) as error:
            raise ResultsDamaged(
                f"{path} cannot be read: {error}", hint="start a new sweep"
            ) from error

    def read(self) -> Sweep:
        """Return the current state of the sweep."""
        rows = self._read()
        order = {name: number for number, name in enumerate(rows.names)}
        cases = sorted(rows.cases.values(), key=lambda case: order.get(case.case, len(order)))
        return Sweep(
            settings=self.settings(),
            torch=rows.torch,
            device=rows.device,
            names=rows.names,
            cases=tuple(cases),
        )

    def done(self) -> list[str]:
        """Return the names of the cases with a result."""
        return list(self._read().cases)

    def names(self) -> tuple[str, ...]:
        """Return the names of all selected cases; empty until a worker has written them."""
        return self._read().names

    def under_way(self) -> str:
        """Return the case that started last and has no result, or an empty string."""
        rows = self._read()
        return rows.began if rows.began not in rows.cases else ""

    def add(self, case: str, state: CaseState, why: str) -> None:
        """Add the row of a case whose process died."""
        row = {"kind": "row", "case": case, "state": state.value, "why": why}
        try:
            with self.rows.open("a", encoding="ascii") as file:
                file.write("\n" + to_json_text(row) + "\n")
        except OSError as error:
            raise write_error(self.rows, error, kept="every earlier row") from error

    def _read(self) -> _Rows:
        rows = _Rows()
        for line in self._lines():
            if line["kind"] == "header":
                rows.torch, rows.device = str(line["torch"]), str(line["device"])
                rows.names = tuple(str(name) for name in line["cases"])
            elif line["kind"] == "began":
                rows.began = str(line["case"])
            elif line["kind"] == "row":
                case = _case(line, self.rows)
                rows.cases[case.case] = case
        return rows

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            text = self.rows.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                data = json.loads(line)
            except ValueError:
                continue  # an incomplete line of a killed process, or the empty one after it
            if isinstance(data, dict) and "kind" in data:
                yield data


def _case(line: dict[str, Any], path: Path) -> OperatorCase:
    """Return the case of a row; null fields have their default."""
    try:
        case = decode(OperatorCase, _without_nulls(line), where=str(path), strict=False)
    except UsageError as error:
        raise ResultsDamaged(error.what, hint="start a new sweep") from error
    findings = tuple(
        replace(finding, proof=finding.proof.by_current_rules()) for finding in case.findings
    )
    return replace(case, findings=findings)


def _without_nulls(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_nulls(value) for key, value in data.items() if value is not None}
    if isinstance(data, list):
        return [_without_nulls(item) for item in data]
    return data


_CASES_EACH: Final = 64
"""Cases per process, which bounds the memory that torch keeps of operators."""
_POLL_S: Final = 0.2
_TAIL: Final = 12

Progress = Callable[[int, int, str], None]
"""Progress callback: finished cases, all cases, the current case."""


def run_sweep(folder: SweepFolder, settings: SweepSettings, progress: Progress) -> None:
    """Run every case without a result. An interrupt keeps the results so far."""
    while not folder.read().finished:
        before = len(folder.done())
        code, log = _run_chunk(folder, settings, progress)
        names = folder.names()
        if not names:
            if code == 0:
                raise NothingToDo(
                    f"no case matches {settings.only}", hint="`--only '*'` selects all cases"
                )
            raise _not_started(settings, code, log)
        died_in = folder.under_way()
        if code != 0 and died_in:
            folder.add(died_in, *_death(code, settings))
        elif len(folder.done()) == before:
            raise _not_started(settings, code, log)


def _run_chunk(
    folder: SweepFolder, settings: SweepSettings, progress: Progress
) -> tuple[int, Path]:
    """Run one worker process until it ends; return its exit code and log."""
    plan = folder.folder / "plan.json"
    log = folder.folder / "worker.log"
    chunk = {
        "device": settings.device,
        "only": settings.only,
        "file": settings.cases_file,
        "threads": settings.threads,
        "limit_s": settings.limit_s,
        "done": folder.done(),
        "most": _CASES_EACH,
    }
    contents = {
        "sweep": chunk,
        "output": str(folder.rows),
        "cache": str(home_folder() / "scan"),
        "options": {},
    }
    plan.write_text(json.dumps(contents), encoding="utf-8")
    mark = new_launch_mark()
    spec = LaunchSpec(name=settings.target, python=settings.python, variables=settings.variables)
    ready = prepare(spec, launch_mark=mark, entry=PROGRAM_ENTRY)
    with log.open("ab") as log_file:
        process = subprocess.Popen(
            [ready.python, str(PROGRAM_ENTRY), str(plan), "--"],
            env=dict(ready.environment),
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=log_file,
            # Ctrl-C is handled here: a case must not report it as its own error.
            start_new_session=True,
        )
        try:
            _wait(process, folder, progress)
        finally:
            if process.poll() is None:
                kill_launch(mark)
                process.kill()
                process.wait()
    return process.returncode, log


def _wait(process: subprocess.Popen[bytes], folder: SweepFolder, progress: Progress) -> None:
    size = -1
    while process.poll() is None:
        now = folder.rows.stat().st_size if folder.rows.is_file() else 0
        if now != size:
            size = now
            progress(len(folder.done()), len(folder.names()), folder.under_way())
        time.sleep(_POLL_S)


def _death(code: int, settings: SweepSettings) -> tuple[CaseState, str]:
    if code < 0:
        return CaseState.CRASHED, f"the process was ended by signal {-code}"
    # faulthandler ends a process with 1; Python does so, too, but exceptions of cases are caught.
    if code == 1:
        return CaseState.TOO_LONG, f"it took longer than {settings.limit_s:g} s"
    return CaseState.CRASHED, f"the process ended with {code}"


def _not_started(settings: SweepSettings, code: int, log: Path) -> WorkerFailed:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return WorkerFailed(
        f"{settings.target}: the sweep ended with {code} before a case began",
        why="\n".join(lines[-_TAIL:]),
        hint="`torchyard target` shows whether the target has torch",
        log=str(log),
    )


Swept = tuple[Sweep, Path]


def start_sweep(
    settings: SweepSettings, *, folder: Path | None = None, say: Callable[[str], None]
) -> Swept:
    """Start a sweep in a new folder."""
    path = (
        new_run_folder(home_folder() / "sweeps") if folder is None else new_profile_folder(folder)
    )
    stored = SweepFolder(path)
    stored.begin(settings)
    return _run(stored, settings, say)


def resume_sweep(folder: Path, *, say: Callable[[str], None]) -> Swept:
    """Resume a sweep with its settings."""
    stored = SweepFolder(folder)
    return _run(stored, stored.settings(), say)


def _run(stored: SweepFolder, settings: SweepSettings, say: Callable[[str], None]) -> Swept:
    sweep_orphans()
    say(
        f"sweep: {stored.folder}; if interrupted, resume it with "
        f"`torchyard values sweep --resume {stored.folder}`"
    )

    def progress(done: int, total: int, current_case: str) -> None:
        if current_case:
            say(f"{done + 1}/{total} {current_case}")

    run_sweep(stored, settings, progress)
    return stored.read(), stored.folder
