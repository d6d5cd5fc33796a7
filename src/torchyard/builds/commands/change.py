"""`torchyard build update|rebuild|clean|test`: work on an existing build."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from torchyard.builds.commands.progress_display import show_build_progress, time_text
from torchyard.builds.commands.run import print_outcome
from torchyard.cli.options import Number
from torchyard.cli.output import common_options, print_data, print_json, print_message, printable

if TYPE_CHECKING:
    from torchyard.builds.record import TestFileReport

_UPDATE_HELP = """
\b
Examples:
  torchyard build update dev-stack-main
  torchyard build update dev-stack-main --component torchvision

Update the sources of a build (to the tip of their branch, or the content of a local folder) and
compile what changed.
"""

_REBUILD_HELP = """
\b
Examples:
  torchyard build rebuild pytorch-2.6.0-trimmed
  torchyard build rebuild dev-stack-main --component pytorch --dependents

Compile, install and check edited files in the working copy of a build.
"""

_CLEAN_HELP = """
\b
Examples:
  torchyard build clean pytorch-2.6.0-trimmed                 object files only
  torchyard build clean dev-stack-main --component pytorch --level tree
  torchyard build clean old --level all                       the whole build

Remove files that a build created. The next build recreates a removed working copy from the fetched source.
"""


@click.command("update", help=_UPDATE_HELP)
@click.argument("build")
@click.option(
    "--component", "components", multiple=True, help="Update only this component (repeatable)."
)
@click.option(
    "--discard", is_flag=True, help="Discard local commits and edits in the working copies."
)
@click.option(
    "--jobs", default="auto", metavar="N|auto", show_default=True, help="Parallel compile jobs."
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
@common_options
def update(
    build: str,
    components: tuple[str, ...],
    discard: bool,
    jobs: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Update the sources of a build and rebuild it."""
    from torchyard.builds.running.existing_build import update_build

    with show_build_progress(quiet=quiet) as listener:
        outcome = update_build(build, components, jobs=jobs, discard=discard, listener=listener)
    print_outcome(outcome, as_json)


@click.command("rebuild", help=_REBUILD_HELP)
@click.argument("build")
@click.option("--component", default="", help="Edited component. [default: the last one]")
@click.option("--dependents", is_flag=True, help="Also rebuild the components that depend on it.")
@click.option("--configure", is_flag=True, help="Run the configure step again first.")
@click.option(
    "--jobs", default="auto", metavar="N|auto", show_default=True, help="Parallel compile jobs."
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
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
    """Rebuild an edited component."""
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
    print_outcome(outcome, as_json)


@click.command("clean", help=_CLEAN_HELP)
@click.argument("build")
@click.option(
    "--component", "components", multiple=True, help="Clean only this component (repeatable)."
)
@click.option(
    "--level",
    type=click.Choice(["objects", "tree", "all"]),
    default="objects",
    show_default=True,
    help="Object files, also the working copy with generated files (hipified sources), or the whole build.",
)
@common_options
def clean(build: str, components: tuple[str, ...], level: str, as_json: bool) -> None:
    """Remove files that a build created."""
    from torchyard.builds.running.existing_build import clean_build

    removed = clean_build(build, components, level)
    if as_json:
        print_json({"removed": [str(path) for path in removed]})
    else:
        lines = [f"removed {path}" for path in removed]
        print_data(printable("\n".join(lines) or "nothing to remove"))


_TEST_HELP = """
\b
Examples:
  torchyard build test pytorch-2.6.0-trimmed test/test_nn.py
  torchyard build test pytorch-2.6.0-trimmed --json         the files listed in the recipe

Run test files of the project in the finished target. Known failures, which the recipe lists, are
reported separately. Exits with code 7 if there are new failures.
"""


@click.command("test", help=_TEST_HELP)
@click.argument("build")
@click.argument("files", nargs=-1)
@click.option("--component", default="", help="Component to test. [default: the last one]")
@click.option(
    "--limit",
    "limit_s",
    type=Number(1.0, 1e7),
    default=21600.0,
    show_default=True,
    help="Time limit for each file, in seconds.",
)
@common_options
def test(build: str, files: tuple[str, ...], component: str, limit_s: float, as_json: bool) -> int:
    """Run test files of the project."""
    from torchyard.builds.running.existing_build import run_build_tests
    from torchyard.core.records import encode
    from torchyard.errors import GateFailed

    accounts = run_build_tests(
        build,
        files,
        component=component,
        limit_s=limit_s,
        listener=lambda event: print_message(event.text),
    )
    if as_json:
        print_json({"tests": [encode(account) for account in accounts]})
    else:
        print_data(printable("\n".join(_account_text(account) for account in accounts)))
    return 0 if all(account.good for account in accounts) else GateFailed.exit_code


def _account_text(account: TestFileReport) -> str:
    lines = [
        (
            f"{account.path}: {account.passed} passed, {account.failed} failed "
            f"({len(account.known_failures)} known), {account.errors} errors, "
            f"{account.skipped} skipped, {account.not_run} not run, {time_text(account.duration_s)}"
        )
    ]
    for label, names in (
        ("new failure", account.new_failures),
        ("known failure", account.known_failures),
        ("known failure that now passes", account.now_passing),
        ("crashed in", account.crashed_in),
    ):
        lines += [f"  {label}: {name}" for name in names]
    if account.timed_out:
        lines.append("  timed out")
    if account.log:
        lines.append(f"  log: {account.log}")
    return "\n".join(lines)
