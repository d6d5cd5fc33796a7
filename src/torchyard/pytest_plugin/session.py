"""The comparisons of a test: settings, limits, the line in the summary, and the saved baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, cast

import pytest

from torchyard.errors import TorchyardError, UsageError

if TYPE_CHECKING:
    from torchyard.api.result import Comparison
    from torchyard.pytest_plugin.limits import Check
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
        from torchyard.pytest_plugin import limits
        from torchyard.results.gate.model import read_limit

        limit = None
        if "limit" in self._settings:
            limit = read_limit(self._settings["limit"], where="limit")
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
            if repetition == retries or not limits.could_not_decide(comparison):
                break
            repetition += 1
        checks = [limits.check(comparison, limit)]
        saved_as = self._item.config.getoption("torchyard_compare")
        if saved_as and checks[0].outcome != "fail":
            runs = self._runs_of(saved_as)
            checks.append(
                limits.check_change(comparison, name, limit, saved_as=saved_as, runs=runs)
            )
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
        marker_settings = cast("Settings", marker.kwargs)
        settings = {**marker_settings, **settings}
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
