"""What all reports have in common: which format, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from torchyard.cli.output import print_data, talk, write_file
from torchyard.cli.sections import all_options

__all__ = ["chosen_format", "deliver", "report_options"]

F = TypeVar("F", bound=Callable[..., Any])


def report_options(formats: Sequence[str], *, usual: str, left_out: str) -> Callable[[F], F]:
    """--format, --output and --share; `left_out` is what --share takes away."""
    return all_options(
        (
            click.option(
                "--format",
                "format_name",
                type=click.Choice(formats),
                help=f"{usual} when left out, or what the ending of --output says.",
            ),
            click.option(
                "--output",
                type=click.Path(dir_okay=False, path_type=Path),
                metavar="FILE",
                help="Write to a file instead of stdout.",
            ),
            click.option("--share", is_flag=True, help=f"Leave out {left_out}."),
        )
    )


def chosen_format(
    format_name: str | None,
    output: Path | None,
    endings: Mapping[str, str],
    *,
    usual: str,
    as_json: bool,
) -> str:
    """What was said, else what the file's ending says."""
    from torchyard.errors import UsageError

    if as_json and format_name not in (None, "json"):
        raise UsageError(f"--json and --format {format_name} exclude each other", hint="keep one")
    if as_json or format_name is not None:
        return format_name or "json"
    return endings.get(output.suffix, usual) if output is not None else usual


def deliver(text: str, name: str, output: Path | None) -> None:
    """To stdout, or to a file that is named on stderr."""
    if output is None:
        print_data(text)
    else:
        write_file(output, text, option="--output")
        talk(f"{name}: {output}")
