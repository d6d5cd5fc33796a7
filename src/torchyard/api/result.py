"""Results of the Python API, with their text and HTML for notebooks, and `torchyard.read_run`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, Final

from torchyard.bench.report.text import to_text
from torchyard.core import comparison as core
from torchyard.core.study import Budget
from torchyard.core.units import format_count, format_duration
from torchyard.errors import MissingTool
from torchyard.presentation.safe_text import one_line
from torchyard.presentation.wording import (
    accuracy_text,
    notes_of,
    p_text,
    speedup_text,
    time_text,
    verdict_text,
)
from torchyard.results import run_reader
from torchyard.results.commands.options import find_run

if TYPE_CHECKING:
    from markupsafe import Markup


THIS_PROCESS: Final = "this process only"
THESE_PROCESSES: Final = "these processes only"
FRESH_PROCESSES: Final = "fresh processes"
SUITE: Final = "python"
"""Suite of the workloads of `torchyard.compare`."""
MARGIN: Final = Budget.margin


def short_name(value: object) -> str:
    """Return the name of a function or class, or of the class of an object."""
    for attribute in ("_orig_mod", "_torchdynamo_orig_callable"):
        original = getattr(value, attribute, None)
        if original is not None:
            return f"compiled {short_name(original)}"
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__


def scope_of(result: core.Comparison) -> str:
    """Return the scope of a comparison that `bench` measured."""
    one_launch = result.estimate is not None and result.estimate.scope == "processes"
    return THESE_PROCESSES if one_launch else FRESH_PROCESSES


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """The result of a candidate against a baseline.

    `speedup` is baseline time divided by candidate time: above 1, the candidate is faster.
    """

    result: core.Comparison
    """The record in `comparisons.jsonl` of a run folder."""
    scope: str
    """What the interval and the verdict are valid for: `fresh processes`, `these processes only` or `this process only`."""
    run: Path | None = None
    """The run folder; None if the comparison ran in this process without a name."""

    @property
    def baseline(self) -> str:
        """Name of the baseline."""
        return self.result.baseline

    @property
    def candidate(self) -> str:
        """Name of the candidate."""
        return self.result.candidate

    @property
    def verdict(self) -> str:
        """`faster`, `slower`, `same`, `undecided`, `untrusted`, `wrong`, or in stored runs `failed`."""
        return self.result.state.value

    @property
    def speedup(self) -> float | None:
        """Baseline time divided by candidate time; None without a measurement."""
        estimate = self.result.estimate
        return None if estimate is None or not estimate.launches else estimate.speedup

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the speedup (low, high), valid for the scope."""
        interval = None if self.result.estimate is None else self.result.estimate.interval
        return None if interval is None else (interval.low, interval.high)

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value, corrected for the number of comparisons of the run."""
        estimate = self.result.estimate
        if estimate is None:
            return None
        return estimate.p_value if estimate.p_adjusted is None else estimate.p_adjusted

    @property
    def trusted(self) -> bool:
        """Whether the measurements may be used; `notes` says why not."""
        return self.result.trusted

    @property
    def accuracy(self) -> str:
        """Outcome of the accuracy check in words, such as `pass (1 tensor, ...)` or `not checked`."""
        return accuracy_text(self.result.accuracy)

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the result, most severe first."""
        return tuple(notes_of(self.result))

    @property
    def baseline_s(self) -> float | None:
        """Time of one call of the baseline in seconds."""
        return _seconds(self.result.baseline_metrics)

    @property
    def candidate_s(self) -> float | None:
        """Time of one call of the candidate in seconds."""
        return _seconds(self.result.candidate_metrics)

    def report(self) -> str:
        """Return the table of `torchyard bench`, accuracy check, scope and notes as text."""
        from rich.console import Console

        from torchyard.bench.report.text import comparison_table

        page = StringIO()
        console = Console(file=page, width=120, color_system=None, legacy_windows=False)
        console.print(comparison_table([self.result]))
        lines = [f"scope: {self.scope}", f"results: {self.accuracy}"]
        lines += [f"run folder: {self.run}"] if self.run is not None else []
        return page.getvalue() + "".join(f"{line}\n" for line in lines)

    def to_pandas(self) -> Any:
        """Return a DataFrame with one row."""
        return data_frame([self.row()])

    def row(self) -> dict[str, object]:
        """Return the result as one row of a table."""
        low, high = self.interval or (None, None)
        return {
            "workload": self.result.workload.label,
            "baseline": self.baseline,
            "candidate": self.candidate,
            "verdict": self.verdict,
            "speedup": self.speedup,
            "low": low,
            "high": high,
            "p_value": self.p_value,
            "baseline_s": self.baseline_s,
            "candidate_s": self.candidate_s,
            "scope": self.scope,
            "trusted": self.trusted,
            "accuracy": self.accuracy,
            "notes": "; ".join(self.notes),
        }

    def __repr__(self) -> str:
        names = f"{one_line(self.candidate)} against {one_line(self.baseline)}"
        return f"<Comparison {names}: {self.verdict}, {speedup_text(self.result)}, {self.scope}>"

    def _repr_html_(self) -> str:
        rows = {
            "verdict": verdict_text(self.result.state),
            "speedup": speedup_text(self.result),
            "p-value": p_text(self.result),
            "baseline": f"{self.baseline}: {time_text(self.result.baseline_metrics)}",
            "candidate": f"{self.candidate}: {time_text(self.result.candidate_metrics)}",
            "scope": self.scope,
            "results": self.accuracy,
        }
        return html_result([self.result], rows, self.notes)


@dataclass(frozen=True, kw_only=True, repr=False)
class Measurement:
    """Times of one callable, as of `torch.utils.benchmark.Timer.blocked_autorange`."""

    name: str
    times_s: tuple[float, ...]
    """Times of one call in seconds, each the mean over `calls_per_time` calls."""
    calls_per_time: int
    """Consecutive calls between two readings of the clock."""
    notes: tuple[str, ...] = ()
    """Remarks: disturbed blocks, no steady state after the warm-up."""
    scope: str = field(default=THIS_PROCESS, init=False)

    @property
    def calls(self) -> int:
        """Number of timed calls."""
        return len(self.times_s) * self.calls_per_time

    @property
    def median_s(self) -> float:
        """Median time of one call in seconds."""
        return median(self.times_s)

    @property
    def quartiles_s(self) -> tuple[float, float]:
        """First and third quartile of the times in seconds."""
        if len(self.times_s) == 1:
            return self.times_s[0], self.times_s[0]
        first, _, third = quantiles(self.times_s, method="inclusive")
        return first, third

    @property
    def iqr_s(self) -> float:
        """Interquartile range of the times in seconds."""
        first, third = self.quartiles_s
        return third - first

    def to_pandas(self) -> Any:
        """Return a DataFrame with one row per time."""
        return data_frame([{"name": self.name, "time_s": time_s} for time_s in self.times_s])

    def __repr__(self) -> str:
        rows = self._rows()
        times = ", ".join(f"{name} {rows[name]}" for name in ("median", "interquartile range"))
        return f"<Measurement {one_line(self.name)}: {times}, {self.calls} calls, {self.scope}>"

    def _repr_html_(self) -> str:
        return html_result([], {"function": self.name, **self._rows()}, self.notes)

    def _rows(self) -> dict[str, str]:
        return {
            "median": format_duration(self.median_s * 1e9),
            "interquartile range": format_duration(self.iqr_s * 1e9),
            "calls": str(self.calls),
            "scope": self.scope,
        }


def data_frame(rows: Sequence[Mapping[str, object]]) -> Any:
    """Return a pandas DataFrame; raise MissingTool without pandas."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingTool(
            "to_pandas() needs pandas, which is not installed", hint="pip install pandas"
        ) from error
    return pd.DataFrame(list(rows))


def html_result(
    comparisons: Sequence[core.Comparison], rows: Mapping[str, str], notes: Sequence[str]
) -> str:
    """Return a fragment of HTML: the forest plot, a table of names and values, and the notes."""
    from markupsafe import Markup

    table = Markup("").join(
        Markup(
            '<tr><th style="text-align:left">{}</th><td style="text-align:left">{}</td></tr>'
        ).format(one_line(name), one_line(value))
        for name, value in rows.items()
    )
    items = Markup("").join(Markup("<li>{}</li>").format(one_line(note)) for note in notes)
    return str(
        Markup(
            '<div class="torchyard-result" style="{}background:var(--page);color:var(--text)">'
            "{}<table>{}</table>{}</div>"
        ).format(
            _colors(),
            _forest(comparisons),
            table,
            Markup("<ul>{}</ul>").format(items) if notes else "",
        )
    )


def _forest(comparisons: Sequence[core.Comparison]) -> Markup:
    from markupsafe import Markup

    from torchyard.bench.report.suite_charts import forest_description, forest_spec
    from torchyard.presentation.chart_layout import numbers_of
    from torchyard.presentation.vega import inline_chart

    if not any(numbers_of(one) for one in comparisons):
        return Markup("")
    return inline_chart(
        forest_spec(comparisons, (), margin=MARGIN),
        title="",
        description=forest_description(comparisons, margin=MARGIN),
    )


@cache
def _colors() -> str:
    """Return the colors of the reports as declarations: a notebook page has other styles."""
    from torchyard.presentation.html_page import asset

    names = re.findall(r"(--[a-z]+): (#[0-9a-f]{6});", asset("report.css").partition("@media")[0])
    return "".join(f"{name}:{color};" for name, color in names)


def _seconds(metrics: core.VariantMetrics) -> float | None:
    return None if metrics.time_ns is None else metrics.time_ns / 1e9


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
