"""The click group of `torchyard` itself."""

from __future__ import annotations

from typing import Any, Final

import click

from torchyard import __version__
from torchyard.cli.commands import COMMANDS, HIDDEN_COMMANDS, root_help
from torchyard.cli.lazy_group import LazyGroup

__all__ = ["program"]


class RootGroup(LazyGroup):
    """Shows the page that is also printed without click."""

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        """From plain data."""
        return root_help().rstrip("\n")

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A command of the page, or one that only other commands know."""
        if args and args[0] in HIDDEN_COMMANDS:
            return args[0], self.get_command(ctx, args[0]), args[1:]
        return super().resolve_command(ctx, args)

    def _place(self, name: str) -> str | None:
        return super()._place(name) or HIDDEN_COMMANDS.get(name, (None,))[0]


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
    """Compare two ways to run PyTorch with statistics that hold on noisy machines."""
