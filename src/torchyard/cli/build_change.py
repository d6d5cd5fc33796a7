"""`torchyard build update|rebuild|clean`: change a build that is there."""

from __future__ import annotations

import click

from torchyard.cli.output import common_options, print_data, print_json, printable

__all__ = ["clean", "rebuild", "update"]

_UPDATE_HELP = """
\b
Examples:
  torchyard build update dev-stack-main
  torchyard build update dev-stack-main --component torchvision

Bring the sources of a build to the newest (the tip of their branch, or what a folder holds now)
and build again: only what changed is compiled.
"""

_REBUILD_HELP = """
\b
Examples:
  torchyard build rebuild pytorch-2.6.0-trimmed
  torchyard build rebuild dev-stack-main --component pytorch --dependents

After you edited files in a build's working copy: compile only what changed, install it, check it.
"""

_CLEAN_HELP = """
\b
Examples:
  torchyard build clean pytorch-2.6.0-trimmed                 objects only
  torchyard build clean dev-stack-main --component pytorch --level tree
  torchyard build clean old --level all                       the whole build

Remove what a build made. The level `tree` also removes the working copy with everything that was
generated into it (hipified sources, too); the next build makes it anew from the fetched source.
"""


@click.command("update", help=_UPDATE_HELP)
@click.argument("build")
@click.option("--component", "components", multiple=True, help="Only this component.")
@click.option("--discard", is_flag=True, help="Throw own commits and edits in working copies away.")
@click.option("--jobs", default="auto", metavar="N|auto", help="Compiles at once.")
@click.option("--quiet", is_flag=True, help="No progress.")
@common_options
def update(
    build: str,
    components: tuple[str, ...],
    discard: bool,
    jobs: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Update and build."""
    from torchyard.cli.build_progress import show_build_progress
    from torchyard.workflow.build_change import update_build

    with show_build_progress(quiet=quiet) as listener:
        outcome = update_build(build, components, jobs=jobs, discard=discard, listener=listener)
    _end(outcome, as_json)


@click.command("rebuild", help=_REBUILD_HELP)
@click.argument("build")
@click.option("--component", default="", help="Component that was edited; the last one without.")
@click.option("--dependents", is_flag=True, help="Build what needs it again, too.")
@click.option("--configure", is_flag=True, help="Configure again first.")
@click.option("--jobs", default="auto", metavar="N|auto", help="Compiles at once.")
@click.option("--quiet", is_flag=True, help="No progress.")
@common_options
def rebuild(
    build: str,
    component: str,
    dependents: bool,
    configure: bool,
    jobs: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Compile what changed."""
    from torchyard.cli.build_progress import show_build_progress
    from torchyard.workflow.build_change import rebuild_component

    with show_build_progress(quiet=quiet) as listener:
        outcome = rebuild_component(
            build,
            component,
            dependents=dependents,
            from_configure=configure,
            jobs=jobs,
            listener=listener,
        )
    _end(outcome, as_json)


@click.command("clean", help=_CLEAN_HELP)
@click.argument("build")
@click.option("--component", "components", multiple=True, help="Only this component.")
@click.option(
    "--level",
    type=click.Choice(["objects", "tree", "all"]),
    default="objects",
    help="How much to remove.",
)
@common_options
def clean(build: str, components: tuple[str, ...], level: str, as_json: bool) -> None:
    """Remove what a build made."""
    from torchyard.workflow.build_change import clean_build

    removed = clean_build(build, components, level)
    if as_json:
        print_json({"removed": [str(path) for path in removed]})
    else:
        lines = [f"removed {path}" for path in removed]
        print_data(printable("\n".join(lines) or "nothing to remove"))


def _end(outcome: object, as_json: bool) -> None:
    from torchyard.cli.build_text import outcome_json, outcome_text
    from torchyard.workflow.build_run import BuildOutcome

    assert isinstance(outcome, BuildOutcome)  # noqa: S101  # a type that is imported lazily
    if outcome.errors:
        raise outcome.errors[0]
    if as_json:
        print_json(outcome_json(outcome))
    else:
        print_data(outcome_text(outcome))
