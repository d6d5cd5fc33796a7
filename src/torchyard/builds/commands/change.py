"""`torchyard build update|rebuild|clean|test`: work on an existing build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from torchyard.builds.commands.progress_display import time_text
from torchyard.cli.options import Number
from torchyard.cli.output import common_options, print_data, print_json, printable, talk

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
    from torchyard.builds.commands.progress_display import show_build_progress
    from torchyard.builds.running.existing_build import update_build

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
    from torchyard.builds.commands.progress_display import show_build_progress
    from torchyard.builds.running.existing_build import rebuild_component

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
    from torchyard.builds.running.existing_build import clean_build

    removed = clean_build(build, components, level)
    if as_json:
        print_json({"removed": [str(path) for path in removed]})
    else:
        lines = [f"removed {path}" for path in removed]
        print_data(printable("\n".join(lines) or "nothing to remove"))


def _end(outcome: object, as_json: bool) -> None:
    from torchyard.builds.commands.run import outcome_json, outcome_text
    from torchyard.builds.running.build import BuildOutcome

    assert isinstance(outcome, BuildOutcome)  # noqa: S101  # a type that is imported lazily
    if outcome.errors:
        raise outcome.errors[0]
    if as_json:
        print_json(outcome_json(outcome))
    else:
        print_data(outcome_text(outcome))


if TYPE_CHECKING:
    from torchyard.builds.record import TestAccount


_HELP = """
\b
Examples:
  torchyard build test pytorch-2.6.0-trimmed test/test_nn.py
  torchyard build test pytorch-2.6.0-trimmed --json         the files that the recipe names

Run test files of the project in the finished target, outside its source tree. Failures that the
recipe knows are told apart from new ones; a crash of the interpreter costs one test, not the run.
Ends with exit code 7 when something failed that is not known.
"""


@click.command("test", help=_HELP)
@click.argument("build")
@click.argument("files", nargs=-1)
@click.option("--component", default="", help="Whose tests; the last component's without.")
@click.option(
    "--limit",
    "limit_s",
    type=Number(1.0, 1e7),
    default=21600.0,
    show_default=True,
    help="Seconds for each file.",
)
@common_options
def test(build: str, files: tuple[str, ...], component: str, limit_s: float, as_json: bool) -> int:
    """Run tests and account for them."""
    from torchyard.builds.running.existing_build import run_build_tests
    from torchyard.core.records import encode
    from torchyard.errors import GateFailed

    accounts = run_build_tests(
        build,
        files,
        component=component,
        limit_s=limit_s,
        listener=lambda event: talk(event.text),
    )
    if as_json:
        print_json({"tests": [encode(account) for account in accounts]})
    else:
        print_data(printable("\n".join(_text(account) for account in accounts)))
    return 0 if all(account.good for account in accounts) else GateFailed.exit_code


def _text(account: TestAccount) -> str:
    lines = [
        (
            f"{account.path}: {account.passed} passed, {account.failed} failed "
            f"({len(account.known_failures)} known), {account.errors} errors, "
            f"{account.skipped} skipped, {account.not_run} not run, {time_text(account.duration_s)}"
        )
    ]
    for word, names in (
        ("new failure", account.new_failures),
        ("known failure", account.known_failures),
        ("known, passes now", account.mended),
        ("crashed in", account.crashed_in),
    ):
        lines += [f"  {word}: {name}" for name in names]
    if account.timed_out:
        lines.append("  the time limit ended it")
    if account.log:
        lines.append(f"  log: {account.log}")
    return "\n".join(lines)
