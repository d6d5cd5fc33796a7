"""Measured rounds of a reduction, kept so that a search that was killed resumes.

request.json        workload, variants, settings and metric; the same command finds the same folder
records-NNN.jsonl   the operators of the captured graph, then the rounds of each program, in order

The search is a function of its rounds: with the stored ones, it repeats its decisions.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from typing import Any, Self

from torchyard.core.records import encode
from torchyard.files.safe_reading import read_records
from torchyard.files.safe_writing import RecordFile, replace_json, to_json_text, write_error
from torchyard.reduce.search import Measure, Round, Sizes, Unusable
from torchyard.results.directory import home_folder


class RoundStore:
    """The rounds of one reduction; a context manager."""

    def __init__(self, request: Sequence[object], *, resume: bool) -> None:
        """Open the folder of a request; without `resume`, earlier rounds are deleted."""
        document = encode(list(request))
        digest = hashlib.sha256(to_json_text(document).encode("ascii")).hexdigest()
        folder = home_folder() / "reduce" / digest[:16]
        try:
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(folder, error, kept="existing data") from error
        replace_json(folder / "request.json", document)
        paths = sorted(folder.glob("records-*.jsonl"))
        self._stored = [record for path in paths for _, record in read_records(path)]
        self._file = RecordFile(folder / f"records-{len(paths) + 1:03d}.jsonl")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._file.records:
            self._file.path.unlink(missing_ok=True)
        self._file.close()

    def begin(self, operators: Sequence[str]) -> int:
        """Return the number of stored rounds; none if the graph has other operators now."""
        graphs = [number for number, one in enumerate(self._stored) if "operators" in one]
        if graphs and self._stored[graphs[-1]]["operators"] == list(operators):
            self._stored = self._stored[graphs[-1] + 1 :]
        else:
            self._stored = []
            self._append({"operators": list(operators)})
        return sum(len(one.get("rounds", ())) for one in self._stored)

    def stored_first(self, measure: Measure) -> Measure:
        """Return a function that measures what is not stored, and stores it."""
        stored: dict[str, list[dict[str, Any]]] = {}
        for one in self._stored:
            if "program" in one:
                stored.setdefault(one["program"], []).append(one)

        def measured(units: Sequence[int], sizes: Sizes, rounds: int) -> Sequence[Round]:
            program = repr((tuple(units), tuple(map(tuple, sizes))))
            if stored.get(program):
                record = stored[program].pop(0)
                if "unusable" in record:
                    raise Unusable(str(record["unusable"]))
                return [(a, b, c, d) for a, b, c, d in record["rounds"]]
            try:
                result = measure(units, sizes, rounds)
            except Unusable as error:
                self._append({"program": program, "unusable": str(error)})
                raise
            self._append({"program": program, "rounds": [list(one) for one in result]})
            return result

        return measured

    def _append(self, record: dict[str, Any]) -> None:
        self._file.append(record)
        self._file.sync()
