"""Shared click options: sections, bounded number types, report format and destination.

Every number type has an upper bound and rejects nan and infinity.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from torchyard.cli.output import print_data, print_message, write_file
from torchyard.cli.project_file import ProjectDefaults
from torchyard.core.number_checks import max_threads

F = TypeVar("F", bound=Callable[..., Any])


class SectionedOption(click.Option):
    """An option with the heading of its section in the help."""

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

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write which defaults the project file sets."""
        super().format_epilog(ctx, formatter)
        if isinstance(ctx.default_map, ProjectDefaults) and ctx.default_map:
            formatter.write_paragraph()
            formatter.write_text(ctx.default_map.text())


def section(heading: str) -> Callable[..., Callable[[F], F]]:
    """`click.option` for options of one section."""

    def option(*names: str, **attributes: Any) -> Callable[[F], F]:
        return click.option(*names, cls=SectionedOption, section=heading, **attributes)

    return option


def given_options(
    ctx: click.Context, options: Mapping[str, Any], *, but: Collection[str] = ()
) -> list[str]:
    """Return the options given on the command line (`--mode`, ...), except those in `but`."""
    options, _ = without_defaults(ctx, options)
    names = [name for name, value in options.items() if value not in (None, (), False)]
    option_names = {one.name: max(one.opts, key=len) for one in ctx.command.params}
    return [option_names[name] for name in names if name not in but]


def without_defaults(
    ctx: click.Context, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those that were given, and those of the environment and the project file.

    Both have all names of options; an option that the other one has is None, or an empty tuple.
    """
    empty = {str(one.name): () if one.multiple else None for one in ctx.command.params}
    sources = click.core.ParameterSource
    outside = {
        name
        for name in empty
        if ctx.get_parameter_source(name) in (sources.ENVIRONMENT, sources.DEFAULT_MAP)
    }
    explicit = {name: empty[name] if name in outside else value for name, value in options.items()}
    defaults = {
        name: options[name] if name in outside else empty[name] for name in empty if name in options
    }
    return explicit, defaults


def note_options_behind(program: Sequence[str]) -> None:
    """Print a note if arguments of a program (after its name) are options of the current command."""
    own = {name for option in click.get_current_context().command.params for name in option.opts}
    passed = [word for word in program[1:] if word.partition("=")[0] in own - {"--help", "-h"}]
    if passed:
        print_message(
            f"note: {' '.join(passed)} is passed to {program[0]}; options of Torchyard come before it"
        )


def all_options(options: Sequence[Callable[[Any], Any]]) -> Callable[[F], F]:
    """Return a decorator that adds several options to a command, listed in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


MAX_COUNT: Final = 1_000_000_000
"""Upper bound of counts without another limit."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?")


class Count(click.IntRange):
    """A whole number from `low` to `most`, in ASCII digits."""

    def __init__(self, low: int = 0, most: int = MAX_COUNT) -> None:
        super().__init__(min=low, max=most)

    def _describe_range(self) -> str:
        """Omit the general upper bound."""
        return f"x>={self.min}" if self.max == MAX_COUNT else super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reject digits other than ASCII, and underscores, which Python accepts."""
        if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,18}", value.strip()):
            self.fail(f"{value[:80]!r} is not a whole number", param, ctx)
        return super().convert(value, param, ctx)


class Threads(Count):
    """A number of threads that this machine can start."""

    def __init__(self) -> None:
        super().__init__(1, max_threads())

    def _describe_range(self) -> str:
        """Return a text that does not depend on the machine."""
        return "x>=1"


class Number(click.FloatRange):
    """A finite number from `low` to `most`, in ASCII digits."""

    def __init__(self, low: float, most: float) -> None:
        super().__init__(min=low, max=most)

    def _describe_range(self) -> str:
        """Omit the upper bound."""
        return f"x>={self.min}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Reject infinity, and nan, which passes range checks."""
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            self.fail(f"{value[:80]!r} is not a number", param, ctx)
        return super().convert(value, param, ctx)


FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)


def report_options(
    formats: Sequence[str],
    *,
    usual: str,
    left_out: str = "",
    option: Callable[..., Callable[[Any], Any]] = click.option,
) -> Callable[[F], F]:
    """Return --format and --output, and --share if `left_out` names what it removes."""
    options = [
        option(
            "--format",
            "format_name",
            type=click.Choice(formats),
            help=f"Output format. [default: from the suffix of --output, else {usual}]",
        ),
        option("--output", type=FILE, metavar="FILE", help="Output file. [default: stdout]"),
    ]
    if left_out:
        options.append(option("--share", is_flag=True, help=f"Redact {left_out}."))
    return all_options(options)


def chosen_format(
    format_name: str | None,
    output: Path | None,
    endings: Mapping[str, str],
    *,
    usual: str,
    as_json: bool,
) -> str:
    """Return the requested format, else that of the file extension, else the default."""
    from torchyard.errors import UsageError

    if as_json and format_name not in (None, "json"):
        raise UsageError(
            f"--json cannot be combined with --format {format_name}", hint="remove one of them"
        )
    if as_json or format_name is not None:
        return format_name or "json"
    return endings.get(output.suffix, usual) if output is not None else usual


def deliver(text: str, name: str, output: Path | None) -> None:
    """Print a report, or write it to a file and name the file on stderr."""
    if output is None:
        print_data(text)
    else:
        write_file(output, text, option="--output")
        print_message(f"{name}: {output}")
