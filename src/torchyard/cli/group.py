"""The click group of `torchyard` itself."""

from __future__ import annotations

from typing import Any, Final

import click

from torchyard import __version__
from torchyard.cli.commands import COMMANDS, root_help
from torchyard.cli.lazy_group import LazyGroup

__all__ = ["program"]


class RootGroup(LazyGroup):
    """Shows the page that is also printed without click."""

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        """From plain data."""
        return root_help().rstrip("\n")


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
