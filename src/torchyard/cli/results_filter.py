"""Options that choose runs or comparisons, alike in every command, and what they ask for."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from torchyard.cli.number_types import Count
from torchyard.cli.sections import section

if TYPE_CHECKING:
    from torchyard.core.stored import Wanted

__all__ = ["FILTER_NAMES", "VERDICTS", "filter_options", "moment_of", "wanted_of"]

F = TypeVar("F", bound=Callable[..., Any])

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
    from torchyard.core.stored import Wanted

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
