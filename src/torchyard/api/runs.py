"""`torchyard.read_run`: the comparisons of an existing run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchyard.api.result import Comparison, data_frame, html_result, scope_of
from torchyard.bench.report.text import to_text
from torchyard.core.units import format_count
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import speedup_text
from torchyard.results import run_reader
from torchyard.results.commands.options import find_run


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """A run of `torchyard bench` or `torchyard.compare`."""

    record: run_reader.Run
    """The full record: study, machine, blocks."""

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.record.folder

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.record.id

    @property
    def state(self) -> str:
        """`running`, `finished`, `interrupted` or `failed`."""
        return self.record.state

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons, in the order of the study."""
        return tuple(
            Comparison(result=one, scope=scope_of(one), run=self.folder)
            for one in self.record.comparisons
        )

    def report(self) -> str:
        """Return the text of `torchyard report`."""
        return to_text(self.record)

    def to_pandas(self) -> Any:
        """Return a DataFrame with one row per comparison."""
        return data_frame([one.row() for one in self.comparisons])

    def __repr__(self) -> str:
        count = format_count(len(self.record.comparisons), "comparison")
        return f"<Run {one_line(self.id)}: {self.state}, {count}>"

    def _repr_html_(self) -> str:
        rows = {"run": self.id, "state": self.state}
        for one in self.comparisons:
            rows[f"{one.result.workload.label}: {one.candidate}"] = (
                f"{one.verdict}, {speedup_text(one.result)}, {one.scope}"
            )
        return html_result(self.record.comparisons, rows, ())


def read_run(run: str | Path) -> Run:
    """Read a run: a folder, the id of a run in the results directory, or `latest`."""
    return Run(record=run_reader.read_run(find_run(str(run))))
