"""Shared click options: sections, bounded number types, report format and destination.

Every number type has an upper bound and rejects nan and infinity.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from torchyard.cli.output import print_data, talk, write_file
from torchyard.core.number_checks import most_threads

F = TypeVar("F", bound=Callable[..., Any])


class SectionedOption(click.Option):
    """An option that says under which heading it stands."""

    def __init__(self, *names: Any, section: str = "", **attributes: Any) -> None:
        super().__init__(*names, **attributes)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help lists options by section, in the order of first appearance."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one definition list per section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            # Newer versions of click give arguments a record, too.
            if record is not None and isinstance(parameter, click.Option):
                sections.setdefault(getattr(parameter, "section", "") or "Other", []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def section(heading: str) -> Callable[..., Callable[[F], F]]:
    """`click.option` for options of one section."""

    def option(*names: str, **attributes: Any) -> Callable[[F], F]:
        return click.option(*names, cls=SectionedOption, section=heading, **attributes)

    return option


def given_options(
    ctx: click.Context, options: Mapping[str, Any], *, but: Collection[str] = ()
) -> list[str]:
    """`--mode`, ...: what was said on the command line, but for some parameters."""
    given = [name for name, value in options.items() if value not in (None, (), False)]
    words = {one.name: max(one.opts, key=len) for one in ctx.command.params}
    return [words[name] for name in given if name not in but]


def all_options(options: Sequence[Callable[[Any], Any]]) -> Callable[[F], F]:
    """A decorator that gives a command many options, listed in this order."""

    def give(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return give


MOST: Final = 1_000_000_000
"""For counts that nothing else limits: more than any machine can do or show."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?")


class Count(click.IntRange):
    """A whole number from `low` to `most`, in ASCII digits."""

    def __init__(self, low: int = 0, most: int = MOST) -> None:
        super().__init__(min=low, max=most)

    def _describe_range(self) -> str:
        """Leave out a bound that nobody reaches."""
        return f"x>={self.min}" if self.max == MOST else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse what only Python calls a number."""
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,18}", value.strip()):
            self.fail(f"{value[:80]!r} is not a whole number", param, ctx)
        return super().convert(value, param, ctx)


class Threads(Count):
    """A number of threads that this machine can start."""

    def __init__(self) -> None:
        super().__init__(1, most_threads())

    def _describe_range(self) -> str:
        """The same text on every machine."""
        return "x>=1"


class Number(click.FloatRange):
    """A finite number from `low` to `most`, in ASCII digits."""

    def __init__(self, low: float, most: float) -> None:
        super().__init__(min=low, max=most)

    def _describe_range(self) -> str:
        """Leave out the upper bound: nobody reaches it."""
        return f"x>={self.min}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse nan, which is within every range, and infinity."""
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            self.fail(f"{value[:80]!r} is not a number", param, ctx)
        return super().convert(value, param, ctx)


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
