"""The folder of a sweep: its settings, and rows that only grow, whole lines each.

Both the worker and the yard add rows. What a killed process left half-written is passed over, and
its case is run again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from torchyard.core.records import decode, encode
from torchyard.core.value_sweep import CaseState, OperatorCase, Sweep, SweepSettings
from torchyard.errors import ResultsDamaged, UsageError
from torchyard.results.durable import replace_file, to_json_text, write_failed

__all__ = ["SweepFolder"]

FORMAT: Final = 1
SETTINGS_FILE: Final = "sweep.json"
ROWS_FILE: Final = "rows.jsonl"


@dataclass
class _Read:
    torch: str = ""
    device: str = ""
    names: tuple[str, ...] = ()
    began: str = ""
    cases: dict[str, OperatorCase] = field(default_factory=dict)


class SweepFolder:
    """Where a sweep is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = folder / ROWS_FILE

    def begin(self, settings: SweepSettings) -> None:
        """Note what is asked for."""
        text = to_json_text({"format": FORMAT, **encode(settings)}, indent=1)
        replace_file(self.folder / SETTINGS_FILE, text)

    def settings(self) -> SweepSettings:
        """What was asked for; raises when this is no sweep."""
        path = self.folder / SETTINGS_FILE
        if not path.is_file():
            raise UsageError(
                f"{self.folder} holds no sweep", hint="name the folder that a sweep printed"
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
        """What is there now."""
        found = self._read()
        order = {name: number for number, name in enumerate(found.names)}
        cases = sorted(found.cases.values(), key=lambda case: order.get(case.case, len(order)))
        return Sweep(
            settings=self.settings(),
            torch=found.torch,
            device=found.device,
            names=found.names,
            cases=tuple(cases),
        )

    def done(self) -> list[str]:
        """Cases that have a result."""
        return list(self._read().cases)

    def names(self) -> tuple[str, ...]:
        """Of all cases that were asked for, once a worker has said so."""
        return self._read().names

    def under_way(self) -> str:
        """The case that began last and has no result; empty when there is none."""
        found = self._read()
        return found.began if found.began not in found.cases else ""

    def add(self, case: str, state: CaseState, why: str) -> None:
        """A row for a case whose process is gone."""
        row = {"kind": "row", "case": case, "state": state.value, "why": why}
        try:
            with self.rows.open("a", encoding="ascii") as file:
                file.write("\n" + to_json_text(row) + "\n")
        except OSError as error:
            raise write_failed(self.rows, error, kept="every row before") from error

    def _read(self) -> _Read:
        found = _Read()
        for line in self._lines():
            if line["kind"] == "header":
                found.torch, found.device = str(line["torch"]), str(line["device"])
                found.names = tuple(str(name) for name in line["cases"])
            elif line["kind"] == "began":
                found.began = str(line["case"])
            elif line["kind"] == "row":
                case = _case(line, self.rows)
                found.cases[case.case] = case
        return found

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            text = self.rows.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return
        for line in text.splitlines():
            try:
                data = json.loads(line)
            except ValueError:
                continue  # half a line of a process that was killed, or the empty one behind it
            if isinstance(data, dict) and "kind" in data:
                yield data


def _case(line: dict[str, Any], path: Path) -> OperatorCase:
    """Fields that are null stand for what they are when they are left out."""
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
