"""`torchyard bisect`: find the revision that changed the time of a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.options import FOLDER
from torchyard.cli.output import common_options, print_message, print_result

if TYPE_CHECKING:
    from torchyard.bisect.model import Outcome, Request
    from torchyard.bisect.revisions import Repository
    from torchyard.core.study import Budget

_HELP = """
\b
Examples:
  torchyard bisect --good v1.0 --bad main --command "python bench.py"
  torchyard bisect --repo ~/project --good v1.0 --setup "make -j8"
                   --command "./bench --size 100" --time 30m
  torchyard bisect --good HEAD~50 --command "python bench.py"
                   --metric printed --json

Find the revision that changed the time of a program. Each revision is checked out into a git worktree
of its own; the working tree of the repository is not touched. Good and bad are compared first. Then
each round runs good, bad and one revision between them in random order, and updates the probability of
every revision. The search ends when one revision has 95 %, or when the time is used up.

Measurements are kept. The same command resumes after an interrupt, a kill, or with a longer --time.

\b
Exit codes:
  0  one revision was found, or several changes
  3  good and bad are the same within the margin
  5  the good or the bad revision cannot be measured
  6  good and bad are not shown to differ, or several candidates remain
"""


@click.command(help=_HELP)
@click.option("--repo", type=FOLDER, default=".", show_default=True, help="A git repository.")
@click.option("--good", required=True, metavar="REV", help="A revision before the change.")
@click.option(
    "--bad", default="HEAD", show_default=True, metavar="REV", help="A revision after the change."
)
@click.option("--command", required=True, metavar="TEXT", help="The program; runs without a shell.")
@click.option("--setup", default="", metavar="TEXT", help="Runs once in each checkout.")
@click.option(
    "--metric",
    type=click.Choice(["wall", "printed"]),
    default="wall",
    show_default=True,
    help="Wall time of the program, or the line `torchyard: SECONDS` that it prints.",
)
@click.option(
    "--time", default="10m", show_default=True, metavar="DURATION", help="Measuring time in all."
)
@click.option(
    "--margin",
    default="1%",
    show_default=True,
    metavar="PERCENT",
    help="Differences below this count as the same.",
)
@click.option(
    "--step-limit",
    default="600s",
    show_default=True,
    metavar="DURATION",
    help="Time limit of one run, and of the setup of one revision.",
)
@click.option(
    "--folder",
    type=FOLDER,
    metavar="FOLDER",
    help="Where measurements are kept.  [default: in the results directory]",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@common_options
def bisect(
    repo: Path, folder: Path | None, quiet: bool, as_json: bool, **options: Any
) -> int | None:
    """Search, and print the result."""
    from torchyard.bench.commands.options import checked_numbers
    from torchyard.bisect.model import Request
    from torchyard.bisect.report import outcome_json, outcome_text
    from torchyard.bisect.revisions import open_repository
    from torchyard.bisect.search import search_budget
    from torchyard.errors import Untrustworthy

    numbers = checked_numbers(options, "time", "margin", "step_limit")
    repository = open_repository(repo)
    request = Request(
        repo=str(repository.top / repository.prefix),
        good=repository.commit(options["good"], option="--good"),
        bad=repository.commit(options["bad"], option="--bad"),
        command=options["command"],
        setup=options["setup"],
        metric=options["metric"],
    )
    outcome = _search(
        request,
        repository,
        folder or request.default_folder,
        budget=search_budget(time_s=numbers["time_s"], margin=numbers["margin"]),
        limit_s=numbers["step_limit_s"],
        quiet=quiet,
    )
    print_result(outcome_json(outcome), outcome_text(outcome), as_json=as_json)
    return None if outcome.ending in {"culprit", "several"} else Untrustworthy.exit_code


def _search(
    request: Request,
    repository: Repository,
    folder: Path,
    *,
    budget: Budget,
    limit_s: float,
    quiet: bool,
) -> Outcome:
    """Search in the folder; worktrees are removed when a change is found."""
    from torchyard.bisect.model import open_folder
    from torchyard.bisect.program_rounds import ProgramRounds
    from torchyard.bisect.report import progress_text
    from torchyard.bisect.search import Search

    revisions = repository.revisions(request.good, request.bad)
    with open_folder(folder, request) as search_folder:
        state = search_folder.state
        if not quiet:
            print_message(f"{len(revisions)} revisions, measurements in {search_folder.folder}")
            if state.rounds:
                print_message(f"resumed after {len(state.rounds)} rounds")
        with ProgramRounds(request, repository, search_folder, limit_s=limit_s) as rounds:
            outcome = Search(
                revisions,
                state,
                measure=rounds.measure,
                record=search_folder.append,
                budget=budget,
                listener=lambda text, posterior: (
                    None if quiet else print_message(progress_text(text, posterior))
                ),
            ).run()
        if outcome.ending in {"culprit", "several"}:
            for commit in state.ready:
                repository.remove(search_folder.worktree(commit))
    return outcome
