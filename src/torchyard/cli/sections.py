"""Options under headings, for a command that has many."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import click

__all__ = ["SectionedCommand", "all_options", "given_options", "section"]

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
