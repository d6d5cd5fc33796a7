"""`torchyard values show`: a profile again, in any format."""

from __future__ import annotations

from pathlib import Path

import click

from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    printable,
    write_file,
)

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


def _text(profile: object, form: str) -> str:
    from torchyard.core.values import ValueProfile
    from torchyard.reports import flow_dot, values_html, values_json, values_markdown, values_text

    if not isinstance(profile, ValueProfile):
        raise TypeError(profile)
    if form == "markdown":
        return values_markdown.values_markdown(profile)
    if form == "html":
        return values_html.values_html(profile)
    if form == "json":
        return values_json.values_json(profile)
    if form == "dot":
        return flow_dot.flow_dot(profile)
    if form == "graph-json":
        return flow_dot.flow_json(profile)
    return values_text.values_text(profile)
