"""`torchyard bisect`: find the revision, release or setting that changed a program."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.options import FILE, FOLDER
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_message,
    print_result,
    write_file,
)

if TYPE_CHECKING:
    from torchyard.bisect.delta import SettingsOutcome
    from torchyard.bisect.model import Outcome, Request, Revision, SearchFolder
    from torchyard.bisect.places import Places
    from torchyard.core.study import Budget

_HELP = """
\b
Examples:
  torchyard bisect --good v1.0 --bad main --command "python bench.py"
  torchyard bisect --repo ~/project --good v1.0 --setup "make -j8"
                   --command "./bench --size 100" --time 30m
  torchyard bisect --releases numpy:1.26..2.2
                   --command "{python} bench.py" --html result.html
  torchyard bisect --settings "OMP_NUM_THREADS=1"
                   "OMP_NUM_THREADS=2 KMP_BLOCKTIME=0" --command ./bench

Find the revision of a git repository (--good, --bad), the release of a package (--releases) or the
settings (--settings) that changed the time, memory or exit code of a program. Good and bad are compared
first. For revisions and releases, each round runs good, bad and one between them in random order, and
updates the probability of every revision; the search ends when one has 95 %. For settings, delta debugging
finds the smallest set of settings that keeps the difference.

Measurements are kept. The same command resumes after an interrupt, a kill, or with a longer --time.

\b
Exit codes:
  0  the culprit was found, or several changes
  3  good and bad are the same within the margin
  5  the good or the bad end cannot be measured
  6  good and bad are not shown to differ, or several candidates remain
"""


@click.command(help=_HELP)
@click.option("--repo", type=FOLDER, default=".", show_default=True, help="A git repository.")
@click.option("--good", metavar="REV", help="A revision before the change.")
@click.option("--bad", metavar="REV", help="A revision after the change.  [default: HEAD]")
@click.option(
    "--releases",
    metavar="PACKAGE:FIRST..LAST",
    help="Versions of a package, each installed by pip into an environment of its own.",
)
@click.option(
    "--settings",
    nargs=2,
    metavar="GOOD BAD",
    help="Two settings: a TOML file, NAME=VALUE words, or build:NAME.",
)
@click.option(
    "--python",
    type=FILE,
    metavar="FILE",
    help="Interpreter of these environments.  [default: the one that runs Torchyard]",
)
@click.option(
    "--command",
    required=True,
    metavar="TEXT",
    help="The program; runs without a shell. {python} is the interpreter of the environment.",
)
@click.option(
    "--setup", default="", metavar="TEXT", help="Runs once in each checkout or environment."
)
@click.option(
    "--metric",
    type=click.Choice(["time", "printed", "memory", "failure"]),
    default="time",
    show_default=True,
    help="Wall time, the line `torchyard: SECONDS` that the program prints, peak resident memory, "
    "or a nonzero exit code (125: skip).",
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
    help="Time limit of one run, and of one setup.",
)
@click.option(
    "--folder",
    type=FOLDER,
    metavar="FOLDER",
    help="Where measurements are kept.  [default: in the results directory]",
)
@click.option("--html", type=FILE, metavar="FILE", help="Write a self-contained HTML page.")
@click.option(
    "--issue", type=FILE, metavar="FILE", help="Write Markdown text for an upstream issue."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@common_options
def bisect(
    folder: Path | None,
    html: Path | None,
    issue: Path | None,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int | None:
    """Search, and print the result."""
    from torchyard.bench.commands.options import checked_numbers
    from torchyard.bisect.issue import issue_text
    from torchyard.bisect.model import open_folder
    from torchyard.bisect.page import outcome_page
    from torchyard.bisect.report import outcome_json, outcome_text
    from torchyard.bisect.search import search_budget
    from torchyard.errors import Untrustworthy

    numbers = checked_numbers(options, "time", "margin", "step_limit")
    for path, option in ((html, "--html"), (issue, "--issue")):
        if path is not None:
            check_writable(path, option=option)
    request, revisions = _request(options)
    budget = search_budget(time_s=numbers["time_s"], margin=numbers["margin"])
    with open_folder(folder or request.default_folder, request) as search_folder:
        if not quiet:
            _print_start(request, revisions, search_folder)
        outcome = _search(
            request,
            revisions,
            search_folder,
            budget=budget,
            limit_s=numbers["step_limit_s"],
            quiet=quiet,
        )
    print_result(outcome_json(request, outcome), outcome_text(request, outcome), as_json=as_json)
    if html is not None:
        write_file(html, outcome_page(request, outcome), option="--html")
    if issue is not None:
        write_file(issue, issue_text(request, outcome), option="--issue")
    return None if outcome.found else Untrustworthy.exit_code


def _request(options: dict[str, Any]) -> tuple[Request, list[Revision]]:
    """Return the request and the revisions or releases to search."""
    from torchyard.bisect.environments import available_versions, parse_releases
    from torchyard.bisect.model import Request, Revision
    from torchyard.bisect.revisions import open_repository
    from torchyard.bisect.settings import read_settings
    from torchyard.errors import NothingToDo, UsageError

    axes = [name for name in ("good", "releases", "settings") if options[name]]
    if len(axes) != 1:
        raise UsageError(
            "give one of --good, --releases and --settings",
            why="they search revisions, releases and settings",
            hint="`torchyard bisect --help` shows an example of each",
        )
    python = str((options["python"] or Path(sys.executable)).absolute())
    shared = {key: options[key] for key in ("command", "setup", "metric")}
    if options["settings"]:
        settings = read_settings(*options["settings"])
        packages = any(one.kind == "package" for one in settings)
        if options["setup"] and not packages:
            raise UsageError("--setup has no environment to run in", hint="use it with [packages]")
        return Request(settings=settings, python=python if packages else "", **shared), []
    if options["releases"]:
        package, text = parse_releases(options["releases"])
        versions = available_versions(python, package, text)
        if len(versions) < 2:  # noqa: PLR2004
            raise NothingToDo(
                f"--releases: {len(versions)} versions of {package} in {text}",
                hint="`pip index versions` lists versions",
            )
        releases = f"{package}:{','.join(versions)}"
        request = Request(releases=releases, python=python, **shared)
        return request, [Revision(commit=one, subject=package) for one in versions]
    repository = open_repository(options["repo"])
    request = Request(
        repo=str(repository.top / repository.prefix),
        good=repository.commit(options["good"], option="--good"),
        bad=repository.commit(options["bad"] or "HEAD", option="--bad"),
        **shared,
    )
    return request, repository.revisions(request.good, request.bad)


def _places(request: Request, folder: SearchFolder) -> Places:
    from torchyard.bisect.environments import PackageEnvironments
    from torchyard.bisect.places import GitPlaces, ReleasePlaces, SettingPlaces
    from torchyard.bisect.revisions import open_repository

    environments = PackageEnvironments(python=request.python, setup=request.setup)
    if request.settings:
        return SettingPlaces(settings=request.settings, environments=environments)
    if request.releases:
        return ReleasePlaces(package=request.releases.partition(":")[0], environments=environments)
    return GitPlaces(repository=open_repository(Path(request.repo)), folder=folder)


def _print_start(request: Request, revisions: list[Revision], folder: SearchFolder) -> None:
    from torchyard.core.units import format_count

    count = len(revisions) or sum(one.good != one.bad for one in request.settings)
    print_message(f"{format_count(count, request.noun)}, measurements in {folder.folder}")
    if folder.state.rounds:
        print_message(f"resumed after {len(folder.state.rounds)} rounds")


def _search(
    request: Request,
    revisions: list[Revision],
    folder: SearchFolder,
    *,
    budget: Budget,
    limit_s: float,
    quiet: bool,
) -> Outcome | SettingsOutcome:
    """Search in the folder; worktrees are removed when a change is found."""
    from torchyard.bisect.delta import DeltaSearch
    from torchyard.bisect.program_rounds import ProgramRounds
    from torchyard.bisect.report import progress_text
    from torchyard.bisect.search import Search

    def listen(text: str, posterior: Any = None) -> None:
        if not quiet:
            print_message(progress_text(text, posterior))

    places = _places(request, folder)
    failures = request.metric == "failure"
    outcome: Outcome | SettingsOutcome
    with ProgramRounds(request, places, folder, limit_s=limit_s) as rounds:
        if request.settings:
            outcome = DeltaSearch(
                sum(one.good != one.bad for one in request.settings),
                folder.state,
                measure=rounds.measure,
                record=folder.append,
                budget=budget,
                listener=listen,
                failures=failures,
                quantity=request.quantity,
            ).run()
        else:
            outcome = Search(
                revisions,
                folder.state,
                measure=rounds.measure,
                record=folder.append,
                budget=budget,
                listener=listen,
                failures=failures,
                noun=request.noun,
                quantity=request.quantity,
            ).run()
    if outcome.found:
        places.remove()
    return outcome
