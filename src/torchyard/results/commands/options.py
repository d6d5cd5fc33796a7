"""Options and lookups shared by commands on kept runs.

Filters that select runs or comparisons, options shared by `compare` and `gate`, the up-to-date
store with progress on stderr, and `find_run`: `latest`, a folder, a run id, or the beginning of
one.
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

from torchyard.cli.options import Count, section
from torchyard.cli.output import talk
from torchyard.errors import NothingToDo


def find_run(text: str) -> Path:
    """The folder of the run; raises UsageError when there is none, or more than one begins so."""
    from torchyard.results.directory import latest_run, runs_home

    home = runs_home()
    if text == "latest":
        found = latest_run(home)
        if found is None:
            raise NothingToDo(
                "there is no run yet",
                why=f"looked in {home}",
                hint="make one with `torchyard bench`, or name a run's folder",
            )
        return found
    as_path = Path(text).expanduser()
    if text and as_path.is_dir():
        return as_path
    if text not in {"", ".", ".."} and "/" not in text and (home / text).is_dir():
        return home / text
    # Only the beginning of an id is left, and only the store knows which runs there are.
    from torchyard.results.index.store import Store

    with Store.open() as store:
        store.refresh()
        return Path(store.run(text).folder)


F = TypeVar("F", bound=Callable[..., Any])


def session_option(command: F) -> F:
    """`--session-spread`."""
    return click.option(
        "--session-spread",
        metavar="PERCENT",
        help="What two sessions of the same code are taken to differ by; 0.5%.",
    )(command)


def percent(text: str | None, option: str, default: float) -> float:
    """The fraction that was given, or the default."""
    from torchyard.core.units import parse_fraction
    from torchyard.errors import UsageError

    if text is None:
        return default
    try:
        return parse_fraction(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error.what}", hint=error.hint) from error


if TYPE_CHECKING:
    from torchyard.results.model import Wanted


# Written out because `core` must not be loaded for `--help`; a test holds them to the type there.
VERDICTS: Final = ("faster", "slower", "same", "undecided", "untrusted", "wrong", "failed")
FILTER_NAMES: Final = (
    *("run", "study", "state", "workload", "suite", "mode", "device", "baseline", "candidate"),
    *("verdicts", "machine", "revision", "since", "until", "limit"),
)
"""Like the fields of `Wanted`."""

_AGO: Final = re.compile(r"([0-9]{1,9})\s*(m|h|d|w)")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

_which = section("Which ones (texts may hold * and ?)")

_OPTIONS: Final = (
    _which("--run", metavar="ID", help="Id of a run, or its beginning, such as 20250131."),
    _which("--study", metavar="TEXT", help="Name of the study."),
    _which("--state", metavar="TEXT", help="running, finished, interrupted or failed."),
    _which(
        "--workload",
        metavar="TEXT",
        help="Label as in the table, or without mode and parameters: models/gpt.",
    ),
    _which("--suite", metavar="TEXT", help="Suite of the workload."),
    _which("--mode", metavar="TEXT", help="inference or training."),
    _which("--device", metavar="TEXT", help="Device of the workload, such as cuda:*."),
    _which("--baseline", metavar="TEXT", help="Name of the variant compared with."),
    _which("--candidate", metavar="TEXT", help="Name of the variant judged."),
    _which(
        "--verdict",
        "verdicts",
        multiple=True,
        type=click.Choice(VERDICTS),
        help="Give it again for more than one.",
    ),
    _which("--machine", metavar="TEXT", help="Short name of the hardware, as in the table."),
    _which("--revision", metavar="TEXT", help="What was measured; 7 letters of a commit do."),
    _which("--since", metavar="WHEN", help="2025-01-31, 2025-01-31T12:00Z, or 12h, 7d, 2w ago."),
    _which("--until", metavar="WHEN", help="Before that moment."),
)


def filter_options(limit: int | None) -> Callable[[F], F]:
    """Every filter, and `--limit` with that default; None means no limit."""
    said = f"Newest first; {limit}" if limit is not None else "Newest first; all"
    last = _which(
        "--limit",
        type=Count(0),
        default=limit,
        metavar="N",
        help=f"{said} when left out" + (", 0 for all." if limit is not None else "."),
    )

    def decorate(command: F) -> F:
        for option in reversed((*_OPTIONS, last)):
            command = option(command)
        return command

    return decorate


def wanted_of(options: dict[str, Any]) -> Wanted:
    """What the options ask for."""
    from torchyard.core.comparison import Verdict
    from torchyard.results.model import Wanted

    chosen = {name: options[name] for name in FILTER_NAMES if options[name]}
    if "verdicts" in chosen:
        chosen["verdicts"] = tuple(Verdict(name) for name in chosen["verdicts"])
    for name in ("since", "until"):
        if name in chosen:
            chosen[name] = moment_of(chosen[name], option=f"--{name}")
    return Wanted(**chosen)


def moment_of(text: str, *, option: str) -> str:
    """A moment from a date, a moment or a time ago."""
    from torchyard.errors import UsageError

    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            distance = timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            moment = datetime.now(UTC) - distance
        else:
            moment = datetime.fromisoformat(text.strip())
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{option}: {text!r} is not a moment",
            hint="write it like 2025-01-31, 2025-01-31T12:00:00Z, 12h, 7d or 2w",
        ) from error
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


if TYPE_CHECKING:
    from torchyard.results.index.store import Store


_QUIET_S: Final = 1.0
"""Work shorter than this shows no progress."""
_LINE_EVERY_S: Final = 10.0


@contextmanager
def fresh_store() -> Iterator[Store]:
    """The store of the runs' home, up to date with its folders."""
    from torchyard.results.index.store import Store

    with Store.open() as store:
        refreshed = store.refresh(counted("reading run folders"))
        for warning in refreshed.warnings:
            talk(f"warning: {warning}")
        yield store


def counted(what: str) -> Callable[[int, int], None]:
    """Progress on stderr: one line that changes on a terminal, a line now and then elsewhere."""
    began = time.monotonic()
    said = began if sys.stderr.isatty() else began + _LINE_EVERY_S - _QUIET_S

    def count(number: int, total: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - began < _QUIET_S:
            return
        if sys.stderr.isatty():
            end = "\n" if number >= total else ""
            sys.stderr.write(f"\r\x1b[K{what}: {number} of {total}{end}")
            sys.stderr.flush()
        elif now - said >= _LINE_EVERY_S:
            said = now
            talk(f"{what}: {number} of {total}")

    return count
