"""Options that `compare` and `gate` share, and how they find a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["percent", "session_option"]

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
