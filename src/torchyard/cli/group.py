"""Click groups that import a command only when it is used, and the root group of `torchyard`.

A table maps a command name to (location of the click command, one-line summary), so that the help
of a group loads none of its commands.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from torchyard import __version__
from torchyard.cli.commands import COMMANDS, HIDDEN_COMMANDS, root_help
from torchyard.cli.output import print_message
from torchyard.cli.project_file import ProjectDefaults
from torchyard.errors import TorchyardError, UsageError

CommandTable = dict[str, tuple[str, str]]


def variable_of(words: Sequence[str], option: click.Option) -> str:
    """Return the environment variable of an option: `TORCHYARD_BENCH_TIME` of `torchyard bench --time`."""
    name = max(option.opts, key=len).lstrip("-")
    return "_".join([*words, name]).replace("-", "_").upper()


class LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    def __init__(self, *arguments: Any, table: CommandTable, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; set its defaults of the environment and the project file."""
        location = self._location(cmd_name)
        if location is None:
            return None
        module, _, attribute = location.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{location} is not a command")
        # Options of a default command, such as `sweep run`, have variables with the name of the group.
        words = [*ctx.command_path.split(), *([cmd_name] if cmd_name in self.table else [])]
        for option in command.params if words[:1] == ["torchyard"] else ():
            if isinstance(option, click.Option):
                option.envvar = variable_of(words, option)
        defaults = ctx.default_map
        if isinstance(defaults, ProjectDefaults):
            defaults[cmd_name] = defaults.of_command(cmd_name, command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command; the error for an unknown name suggests the nearest one."""
        if args and args[0] not in self.table and not args[0].startswith("-"):
            from torchyard.core.records import nearest_hint

            raise UsageError(
                f"there is no command {args[0]!r}",
                hint=nearest_hint(args[0], list(self.table), what="command"),
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the summaries, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in self.table.items()])

    def _location(self, name: str) -> str | None:
        return self.table[name][0] if name in self.table else None


class RunningGroup(LazyGroup):
    """A group with a default command: if the first word is no command, all go to `run`."""

    default_command: Final = "run"

    def __init__(self, *arguments: Any, run: str, run_help: str, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self._run = run
        self._run_help = run_help

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command of the table, or `run` with all words."""
        if args and (args[0] in self.table or args[0] == "run"):
            return args[0], self.get_command(ctx, args[0]), args[1:]
        return "run", self.get_command(ctx, "run"), args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pass leading options other than --help to `run`."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, and a reference to the options of `run`."""
        super().format_commands(ctx, formatter)
        formatter.write_paragraph()
        formatter.write_text(self._run_help)

    def _location(self, name: str) -> str | None:
        return super()._location(name) or self._run


class RootGroup(LazyGroup):
    """The root group, with the help text that is also printed without click."""

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        """Return the text of `commands.root_help`."""
        return root_help().rstrip("\n")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a listed or a hidden command."""
        if args and args[0] in HIDDEN_COMMANDS:
            return args[0], self.get_command(ctx, args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def _location(self, name: str) -> str | None:
        return super()._location(name) or HIDDEN_COMMANDS.get(name, (None,))[0]


def explain_run(folder: Path, row: int | None, *, quiet: bool, as_json: bool) -> None:
    """Run `torchyard why` after another command, whose package must not import it.

    With `as_json`, stdout belongs to the result of that command. An analysis that fails is reported and
    does not change its exit code.
    """
    arguments = ["why", str(folder), *(["--row", str(row)] if row is not None else [])]
    defaults = click.get_current_context().find_root().default_map
    output = io.StringIO() if as_json else sys.stdout
    try:
        with (
            redirect_stdout(output),
            program.make_context(
                "torchyard", [*arguments, *(["-q"] if quiet else [])], default_map=defaults
            ) as context,
        ):
            program.invoke(context)
    except TorchyardError as error:
        print_message(f"why: {error.what}")


_SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}


@click.group(
    cls=RootGroup,
    table=COMMANDS,
    name="torchyard",
    context_settings=_SETTINGS,
    no_args_is_help=True,
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
@click.version_option(__version__, prog_name="torchyard", message="%(prog)s %(version)s")
def program() -> None:
    """Compare two ways to run PyTorch, with statistics that account for noise."""
