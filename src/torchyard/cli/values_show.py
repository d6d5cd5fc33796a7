"""`torchyard values show`: a profile again, in any format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    printable,
    write_file,
)

if TYPE_CHECKING:
    from torchyard.core.values import ValueProfile

__all__ = ["show"]

FORMATS = ("text", "markdown", "html", "json", "dot", "graph-json")

_HELP = """
\b
Examples:
  torchyard values show                                   the latest profile
  torchyard values show latest --format html --output waste.html
  torchyard values show ./profile --format dot | dot -Tsvg > flow.svg

Show a profile: `latest`, a folder, or a file.
"""


@click.command(help=_HELP)
@click.argument("profile", default="latest")
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="text", help="Text when left out."
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write here instead of to stdout.",
)
@common_options
def show(profile: str, form: str, output: Path | None, as_json: bool) -> None:
    """Show a profile again."""
    from torchyard.core.records import encode
    from torchyard.values.profile_file import find_profile, read_profile

    if output is not None:
        check_writable(output, option="--output")
    found = read_profile(find_profile(profile))
    if as_json:
        print_json({"profile": encode(found)})
        return
    text = _text(found, form)
    if output is not None:
        write_file(output, text, option="--output")
    else:
        print_data(text if form == "html" else printable(text))


def _text(profile: ValueProfile, form: str) -> str:
    from torchyard.reports.flow_dot import flow_dot, flow_json
    from torchyard.reports.values_html import values_html
    from torchyard.reports.values_json import values_json
    from torchyard.reports.values_markdown import values_markdown
    from torchyard.reports.values_text import values_text

    forms: dict[str, Callable[[ValueProfile], str]] = {
        "text": values_text,
        "markdown": values_markdown,
        "html": values_html,
        "json": values_json,
        "dot": flow_dot,
        "graph-json": flow_json,
    }
    return forms[form](profile)
