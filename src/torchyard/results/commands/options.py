"""Options and lookups shared by commands on stored runs.

Filters that select runs or comparisons, options shared by `compare` and `gate`, the up-to-date
store with progress on stderr, and `find_run`, which accepts `latest`, a folder, a run id, or a
unique prefix of one.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from torchyard.cli.options import Count, all_options, section
from torchyard.cli.output import print_message
from torchyard.errors import UsageError

if TYPE_CHECKING:
    from torchyard.results.index.store import Store
    from torchyard.results.model import RunFilter


def find_run(text: str) -> Path:
    """Return the folder of a run; raise UsageError if there is none or the prefix is ambiguous."""
    from torchyard.results.directory import latest_run, runs_home

    home = runs_home()
    as_path = Path(text).expanduser()
    if text == "latest":
        if (folder := latest_run(home)) is not None:
            return folder
    elif text and as_path.is_dir():
        return as_path
    elif text not in {"", ".", ".."} and "/" not in text and (home / text).is_dir():
        return home / text
    # Otherwise it is a prefix of an id, which only the store can resolve, or there is no run.
    from torchyard.results.index.store import Store

    with Store.open() as store:
        store.refresh()
        return Path(store.run(text).folder)


F = TypeVar("F", bound=Callable[..., Any])


session_option: Final = click.option(
    "--session-spread",
    metavar="PERCENT",
    help="Assumed variation between sessions of the same code. [default: 0.5%]",
)


def percent(text: str | None, option: str, default: float) -> float:
    """Parse a percentage option, or return the default."""
    from torchyard.core.units import parse_fraction

    if text is None:
        return default
    try:
        return parse_fraction(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error.what}", hint=error.hint) from error


# Repeated here because `--help` must not load `core`; a test compares the two.
VERDICTS: Final = ("faster", "slower", "same", "undecided", "untrusted", "wrong", "failed")

_AGO: Final = re.compile(r"([0-9]{1,9})\s*(m|h|d|w)")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_which = section("Filters (texts may contain * and ?)")

_OPTIONS: Final = (
    _which("--run", metavar="ID", help="Run id or prefix, such as 20250131."),
    _which("--study", metavar="TEXT", help="Name of the study."),
    _which("--state", metavar="TEXT", help="running, finished, interrupted or failed."),
    _which(
        "--workload",
        metavar="TEXT",
        help="Label, with or without mode and parameters: models/gpt.",
    ),
    _which("--suite", metavar="TEXT", help="Suite of the workload."),
    _which("--mode", metavar="TEXT", help="inference or training."),
    _which("--device", metavar="TEXT", help="Device of the workload, such as cuda:*."),
    _which("--baseline", metavar="TEXT", help="Name of the baseline variant."),
    _which("--candidate", metavar="TEXT", help="Name of the candidate variant."),
    _which(
        "--verdict",
        "verdicts",
        multiple=True,
        type=click.Choice(VERDICTS),
        help="Verdict of the comparison; repeatable.",
    ),
    _which("--machine", metavar="TEXT", help="Machine name, as in the table."),
    _which(
        "--revision", metavar="TEXT", help="Measured revision; 7 letters of a commit are enough."
    ),
    _which(
        "--since",
        metavar="WHEN",
        help="Started at or after: 2025-01-31, 2025-01-31T12:00Z, or 12h, 7d, 2w ago.",
    ),
    _which("--until", metavar="WHEN", help="Started before that time."),
)


def filter_options(limit: int | None) -> Callable[[F], F]:
    """Add all filters, and `--limit` with that default; None means no limit."""
    default = f"; 0 for all. [default: {limit}]" if limit is not None else ". [default: all]"
    limit_option = _which(
        "--limit",
        type=Count(0),
        default=limit,
        metavar="N",
        help=f"Maximum number, newest first{default}",
    )
    return all_options((*_OPTIONS, limit_option))


def wanted_of(options: dict[str, Any]) -> RunFilter:
    """Return the filter of the options."""
    from dataclasses import fields

    from torchyard.core.comparison import Verdict
    from torchyard.results.model import RunFilter

    names = [item.name for item in fields(RunFilter)]
    chosen = {name: options[name] for name in names if options[name]}
    if "verdicts" in chosen:
        chosen["verdicts"] = tuple(Verdict(name) for name in chosen["verdicts"])
    for name in ("since", "until"):
        if name in chosen:
            chosen[name] = moment_of(chosen[name], option=f"--{name}")
    return RunFilter(**chosen)


def moment_of(text: str, *, option: str) -> str:
    """Parse a date, a time, or a duration before now."""
    from torchyard.results.directory import format_utc, parse_utc

    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            moment = datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            moment = parse_utc(text.strip())
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{option}: {text!r} is not a date or time",
            hint="use 2025-01-31, 2025-01-31T12:00:00Z, 12h, 7d or 2w",
        ) from error
    return format_utc(moment, "milliseconds")


_QUIET_S: Final = 1.0
"""Work shorter than this shows no progress."""
_LINE_EVERY_S: Final = 10.0


@contextmanager
def fresh_store() -> Iterator[Store]:
    """Open the store of the results directory and refresh it."""
    from torchyard.results.index.store import Store

    with Store.open() as store:
        refreshed = store.refresh(counted("reading run folders"))
        for warning in refreshed.warnings:
            print_message(f"warning: {warning}")
        yield store


def counted(what: str) -> Callable[[int, int], None]:
    """Return a progress callback for stderr: an updated line on a terminal, else occasional lines."""
    began = time.monotonic()
    printed = began if sys.stderr.isatty() else began + _LINE_EVERY_S - _QUIET_S

    def count(number: int, total: int) -> None:
        nonlocal printed
        now = time.monotonic()
        if now - began < _QUIET_S:
            return
        if sys.stderr.isatty():
            end = "\n" if number >= total else ""
            sys.stderr.write(f"\r\x1b[K{what}: {number} of {total}{end}")
            sys.stderr.flush()
        elif now - printed >= _LINE_EVERY_S:
            printed = now
            print_message(f"{what}: {number} of {total}")

    return count
