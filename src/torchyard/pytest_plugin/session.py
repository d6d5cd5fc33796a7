"""The comparisons of a test: settings, limits, the line in the summary, and the saved baseline.

A limit is exceeded only if the whole confidence interval is beyond it. What noise leaves undecided
passes with a note.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, cast

import pytest

from torchyard.api.result import THESE_PROCESSES, Comparison
from torchyard.core.comparison import NOISY, Verdict
from torchyard.core.units import format_percent
from torchyard.errors import TorchyardError, UsageError
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import CrossRow
from torchyard.results.compare.sides import Rules, Side
from torchyard.results.gate.decision import Gate, read_limit, run_gate
from torchyard.results.run_reader import Run, read_run

if TYPE_CHECKING:
    from torchyard.api.result import Comparison
    from torchyard.results.run_reader import Run


_RUNS = pytest.StashKey["tuple[Run, ...]"]()
"""Of a session: the runs of the baseline that it is compared with."""
_DEFAULT_TIME: Final = "20s"
MOST_RETRIES: Final = 6
"""Each measurement takes twice the time of the one before."""


class ComparisonLine(TypedDict):
    """A comparison in the summary. pytest-xdist sends it as it is: only plain values."""

    test: str
    outcome: Literal["pass", "note", "fail"]
    text: str
    run: str


class Settings(TypedDict, total=False):
    """Arguments of the marker."""

    limit: str | float
    time: str | float
    retries: int


def read_retries(value: object) -> int:
    """Return the number of retries; raise UsageError if it is none."""
    text = str(value)
    if (
        isinstance(value, bool)
        or not text.isascii()
        or not text.isdigit()
        or int(text) > MOST_RETRIES
    ):
        raise UsageError(
            f"retries is {value!r}, not a number from 0 to {MOST_RETRIES}", hint="write retries=2"
        )
    return int(text)


def check_options(config: pytest.Config) -> None:
    """Raise pytest.UsageError for an invalid option."""
    from torchyard.core.units import parse_duration_s
    from torchyard.results.baselines import check_baseline_name, read_baseline

    checks: dict[str, Callable[[str], object]] = {
        "time": parse_duration_s,
        "retries": read_retries,
        "save": check_baseline_name,
        "compare": read_baseline,
    }
    for name, check in checks.items():
        value = config.getoption(f"torchyard_{name}")
        if value:
            try:
                check(value)
            except TorchyardError as error:
                raise pytest.UsageError(f"--torchyard-{name}: {_text_of(error)}") from error


class TestComparisons:
    """The comparisons of one test."""

    __test__ = False  # not a class of tests

    def __init__(self, item: pytest.Item, lines: list[ComparisonLine]) -> None:
        """`lines` receives one line per comparison."""
        self._item = item
        self._lines = lines
        self._count = 0
        self._settings = settings_of(item)

    def compare(
        self,
        baseline: Any,
        candidate: Any,
        inputs: Any = (),
        *,
        model: Any = None,
        time: str | float | None = None,
        processes: bool = True,
    ) -> Comparison:
        """Compare as `torchyard.compare`; fail the test if the results are wrong or a limit is exceeded."""
        __tracebackhide__ = True
        from torchyard.api.comparing import compare, seconds_of
        from torchyard.presentation.wording import speedup_text

        limit = None
        if "limit" in self._settings:
            limit = read_limits(self._settings["limit"])
        self._count += 1
        name = self._item.nodeid + (f" #{self._count}" if self._count > 1 else "")
        asked_for = self._item.config.getoption("torchyard_time")
        time_s = seconds_of(asked_for or time or self._settings.get("time", _DEFAULT_TIME))
        retries, repetition = self._retries(), 0
        while True:
            comparison = compare(
                baseline,
                candidate,
                inputs,
                model=model,
                time=time_s * 2.0**repetition,
                processes=processes,
                name=name,
            )
            if repetition == retries or not could_not_decide(comparison):
                break
            repetition += 1
        checks = [check_limits(comparison, limit)]
        saved_as = self._item.config.getoption("torchyard_compare")
        if saved_as and checks[0].outcome != "fail":
            runs = self._runs_of(saved_as)
            checks.append(check_change(comparison, name, limit, saved_as=saved_as, runs=runs))
        line = f"{comparison.verdict}, {speedup_text(comparison.result)}"
        line += f", measurement {repetition + 1}" if repetition else ""
        self._lines.append(
            ComparisonLine(
                test=name,
                outcome=_worst(checks),
                text="; ".join([line, *(check.text for check in checks if check.text)]),
                run=str(comparison.run),
            )
        )
        for check in checks:
            if check.outcome == "fail":
                pytest.fail(f"{check.text}\n\n{comparison.report()}", pytrace=True)
        return comparison

    def _retries(self) -> int:
        """Return how often to measure again after noise."""
        option = self._item.config.getoption("torchyard_retries")
        return read_retries(self._settings.get("retries", 0) if option is None else option)

    def _runs_of(self, saved_as: str) -> tuple[Run, ...]:
        from torchyard.results.baselines import read_baseline, runs_of

        stash = self._item.config.stash
        if _RUNS not in stash:
            stash[_RUNS] = runs_of(read_baseline(saved_as))
        return stash[_RUNS]


def settings_of(item: pytest.Item) -> Settings:
    """Return the arguments of the markers of a test, else the settings of the project.

    A marker of the function overrides one of its class.
    """
    settings = Settings()
    for marker in item.iter_markers("torchyard"):
        unknown = [name for name in marker.kwargs if name not in Settings.__annotations__]
        if marker.args or unknown:
            what = repr(marker.args[0]) if marker.args else unknown[0]
            raise UsageError(
                f"{item.nodeid}: the marker torchyard has no argument {what}",
                hint="write @pytest.mark.torchyard(limit='5%', time='20s')",
            )
        given = cast("Settings", marker.kwargs)
        settings = {**given, **settings}
    return {**_project_settings(item.config), **settings}


def _project_settings(config: pytest.Config) -> Settings:
    """Return `[tool.torchyard.pytest]` of pyproject.toml."""
    from torchyard.cli.commands import COMMANDS
    from torchyard.cli.project_file import check_keys, read_defaults

    defaults = read_defaults(config.rootpath, tables=tuple(COMMANDS))
    if defaults is None or "pytest" not in defaults:
        return Settings()
    table = defaults["pytest"]
    names = tuple(Settings.__annotations__)
    check_keys(table, names, path=defaults.path, place="pytest")
    return cast("Settings", table)


def save(name: str, lines: Sequence[ComparisonLine]) -> str:
    """Save the runs as a baseline; return a sentence for the summary."""
    from torchyard.core.units import format_count
    from torchyard.results.baselines import baseline_exists, save_baseline
    from torchyard.results.run_reader import read_run

    if not lines:
        return (
            f"not saved as the baseline {name}: the session has no comparisons, or was interrupted"
        )
    replaced = " (replaced)" if baseline_exists(name) else ""
    try:
        runs = [read_run(Path(line["run"])) for line in lines]
        save_baseline(name, runs, note="pytest", replace_existing=True)
    except TorchyardError as error:
        return f"not saved as the baseline {name}: {_text_of(error)}"
    return f"saved {format_count(len(runs), 'comparison')} as the baseline {name}{replaced}"


def _worst(checks: Sequence[Check]) -> Literal["pass", "note", "fail"]:
    outcomes = [check.outcome for check in checks]
    return "fail" if "fail" in outcomes else "note" if "note" in outcomes else "pass"


def _text_of(error: TorchyardError) -> str:
    return "\n".join(
        [
            error.what,
            *([error.why] if error.why else []),
            *([f"hint: {error.hint}"] if error.hint else []),
        ]
    )


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of a check, with its text for the summary."""

    outcome: Literal["pass", "note", "fail"]
    text: str = ""


def read_limits(limit: str | float) -> float:
    """Return the limit of a marker as a fraction."""
    return read_limit(limit, where="limit")


def could_not_decide(comparison: Comparison) -> bool:
    """Return whether noise, or a time for one launch only, left the comparison without a verdict.

    Such a result is not used, so measuring again does not change the error rate. An interval that
    contains the limit is a result: measuring again until it leaves the limit would raise the error rate.
    """
    if comparison.result.verdict is Verdict.WRONG:
        return False
    noisy = [reason.startswith(NOISY) for reason in comparison.result.untrusted]
    return all(noisy) if noisy else comparison.scope == THESE_PROCESSES


def check_limits(comparison: Comparison, limit: float | None) -> Check:
    """Check the results and the slowdown of the candidate."""
    if comparison.result.verdict is Verdict.WRONG:
        return Check(outcome="fail", text=f"results {comparison.accuracy}")
    if not comparison.trusted:
        return Check(outcome="note", text=f"cannot be trusted: {comparison.result.untrusted[0]}")
    if limit is None:
        return Check(outcome="pass")
    text = format_percent(limit)
    if comparison.interval is None or comparison.scope == THESE_PROCESSES:
        why = "no interval" if comparison.interval is None else "the time allowed one launch only"
        return Check(outcome="note", text=f"limit {text} not checked: {why}")
    lowest_speedup = 1.0 / (1.0 + limit)
    low, high = comparison.interval
    if high < lowest_speedup:
        return Check(
            outcome="fail",
            text=f"slower than the baseline by more than the limit {text}",
        )
    if low >= lowest_speedup:
        return Check(outcome="pass", text=f"within the limit {text}")
    return Check(outcome="note", text=f"undecided: the interval contains the limit {text}")


def check_change(
    comparison: Comparison, name: str, limit: float | None, *, saved_as: str, runs: Sequence[Run]
) -> Check:
    """Check the change of the speedup since a saved session."""
    earlier = tuple(
        run for run in runs if any(row.workload.name == name for row in run.comparisons)
    )
    if not earlier or comparison.run is None:
        return Check(outcome="note", text=f"not in the baseline {saved_as}")
    one = Side(text=f"the baseline {saved_as}", runs=earlier)
    other = Side(text="this session", runs=(read_run(comparison.run),))
    change = compare_sides(one, other, Rules())
    since = f"since {saved_as}"
    if not change.rows:
        return Check(outcome="note", text=f"{since}: {change.unpaired[0].why}")
    row = change.rows[0]
    if row.untrusted or row.support == "not supported":
        reason = (*row.untrusted, *row.reasons)[0]
        return Check(outcome="note", text=f"{since} {_change_text(row)}, not supported: {reason}")
    if limit is None:
        return Check(outcome="pass", text=f"{since} {_change_text(row)}")
    standing = run_gate(change, Gate(max_slowdown=limit)).rows[0].standing
    text = f"{since} {_change_text(row)} of time"
    shown = format_percent(limit)
    if standing == "crossed":
        return Check(outcome="fail", text=f"{text}, beyond the limit {shown}")
    if standing == "kept":
        return Check(outcome="pass", text=f"{text}, within the limit {shown}")
    return Check(outcome="note", text=f"{text}, undecided: the interval contains the limit {shown}")


def _change_text(row: CrossRow) -> str:
    """Return the change of the time, such as `+12.5% [+9.4%, +15.5%]`."""
    if not row.ratio:
        return "no number"
    text = format_percent(1.0 / row.ratio - 1.0, signed=True)
    if row.interval is None:
        return text
    ends = (1.0 / row.interval.high - 1.0, 1.0 / row.interval.low - 1.0)
    low, high = (format_percent(end, signed=True) for end in ends)
    return f"{text} [{low}, {high}]"
