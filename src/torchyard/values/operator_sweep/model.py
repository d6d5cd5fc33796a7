"""A sweep of operators: its settings, the outcome of each case, and the folder that holds them.

Worker and controller both append rows, one JSON line each. A half-written line of a killed process
is ignored, and its case runs again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.files.safe_writing import replace_file, to_json_text, write_error
from torchyard.values.model import Proof


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
            raise write_error(self.rows, error, kept="every row before") from error

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
