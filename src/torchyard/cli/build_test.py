"""`torchyard build test`: a test file of the project, with every test accounted for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from torchyard.cli.build_progress import time_text
from torchyard.cli.number_types import Number
from torchyard.cli.output import common_options, print_data, print_json, printable, talk

if TYPE_CHECKING:
    from torchyard.core.build_record import TestAccount

__all__ = ["test"]

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
    from torchyard.core.records import encode
    from torchyard.errors import GateFailed
    from torchyard.workflow.build_test import run_build_tests

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
