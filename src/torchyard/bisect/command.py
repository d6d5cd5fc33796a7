"""`torchyard bisect`: find the revision, release or setting that changed a program."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.options import FILE, FOLDER, Threads
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_message,
    print_result,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchyard.bisect.delta import SettingsOutcome
    from torchyard.bisect.model import Outcome, Request, Revision, SearchFolder, Setting
    from torchyard.bisect.places import Places
    from torchyard.bisect.posterior import Posterior
    from torchyard.bisect.workload_rounds import WorkloadRounds
    from torchyard.core.study import Budget, Study
    from torchyard.why.model import Attribution

_WIDTH = 80
_WORKLOAD_METRICS = ("compile-time", "accuracy")

_HELP = """
\b
Examples:
  torchyard bisect --good v1.0 --bad main --command "python bench.py"
  torchyard bisect --repo ~/project --good v1.0 --setup "make -j8"
                   --command "./bench --size 100" --time 30m
  torchyard bisect --releases torch:2.1..2.6 --workload kernels/softmax --why
  torchyard bisect --releases numpy:1.26..2.2
                   --command "{python} bench.py" --html result.html
  torchyard bisect --settings "OMP_NUM_THREADS=1"
                   "OMP_NUM_THREADS=2 KMP_BLOCKTIME=0" --command ./bench

Find the revision of a git repository (--good, --bad), the release of a package (--releases) or the
settings (--settings) that changed a program (--command) or a workload (--workload). Good and bad are
compared first. For revisions and releases, each round runs good, bad and one between them in random
order, and updates the probability of every revision; the search ends when one has 95 %. For settings,
delta debugging finds the smallest set of settings that keeps the difference.

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
    help="Interpreter of these environments, or of the checkouts, where a relative path is inside the "
    "checkout.  [default: the one that runs Torchyard]",
)
@click.option(
    "--with",
    "packages",
    multiple=True,
    metavar="REQUIREMENT",
    help="With --releases: a further package, such as numpy<2; may be repeated.",
)
@click.option(
    "--command",
    default="",
    metavar="TEXT",
    help="The program; runs without a shell. {python} is the interpreter of the environment.",
)
@click.option(
    "--workload",
    metavar="SUITE/NAME|FILE.py[:NAME]",
    help="A workload instead of a program, as in `torchyard bench`.",
)
@click.option(
    "--variant",
    metavar="SPEC",
    help="With --workload: how it runs, such as inductor or eager+bfloat16.  [default: eager]",
)
@click.option(
    "--mode",
    type=click.Choice(["inference", "training"]),
    help="With --workload.  [default: inference]",
)
@click.option("--threads", type=Threads(), metavar="N", help="With --workload: PyTorch threads.")
@click.option(
    "--setup", default="", metavar="TEXT", help="Runs once in each checkout or environment."
)
@click.option(
    "--metric",
    type=click.Choice(["time", "printed", "memory", "compile-time", "accuracy", "failure"]),
    default="time",
    show_default=True,
    help="Wall time, the line `torchyard: SECONDS` that the program prints, peak memory, or a nonzero exit "
    "code (125: skip). Only with --workload: compile time from empty caches, and wrong results.",
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
@click.option(
    "--why",
    is_flag=True,
    help="With --workload: attribute the change to operators, as `torchyard why` does.",
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
    why: bool,
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
    why_page = None if html is None or not why else html.with_name(f"{html.stem}-why.html")
    for path, option in ((html, "--html"), (why_page, "--html"), (issue, "--issue")):
        if path is not None:
            check_writable(path, option=option)
    request, revisions = _request(options, why=why)
    budget = search_budget(time_s=numbers["time_s"], margin=numbers["margin"])
    with open_folder(folder or request.default_folder, request) as search_folder:
        if not quiet:
            _print_start(request, revisions, search_folder)
        outcome, attribution = _search(
            request,
            revisions,
            search_folder,
            budget=budget,
            limit_s=numbers["step_limit_s"],
            why=why,
            quiet=quiet,
        )
    text = outcome_text(request, outcome)
    document = outcome_json(request, outcome)
    if attribution is not None:
        from torchyard.core.records import encode
        from torchyard.why.page import attribution_page
        from torchyard.why.report import attribution_text

        text += "\n" + attribution_text(attribution, width=_WIDTH)
        document["why"] = encode(attribution)
        if why_page is not None:
            write_file(why_page, attribution_page(attribution), option="--html")
    print_result(document, text, as_json=as_json)
    if html is not None:
        page = outcome_page(
            request, outcome, attribution, "" if why_page is None else why_page.name
        )
        write_file(html, page, option="--html")
    if issue is not None:
        write_file(issue, issue_text(request, outcome, attribution), option="--issue")
    return None if outcome.found else Untrustworthy.exit_code


def _request(options: dict[str, Any], *, why: bool) -> tuple[Request, list[Revision]]:
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
    shared["study"] = _study(options, why=why)
    if options["packages"] and not options["releases"]:
        raise UsageError("--with has no effect", hint="it applies to --releases")
    if options["settings"]:
        settings = read_settings(*options["settings"])
        packages = any(one.kind == "package" for one in settings)
        if options["setup"] and not packages:
            raise UsageError("--setup has no environment to run in", hint="use it with [packages]")
        if shared["study"] is not None:
            _check_settings(settings)
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
        request = Request(
            releases=releases, packages=tuple(options["packages"]), python=python, **shared
        )
        return request, [Revision(commit=one, subject=package) for one in versions]
    repository = open_repository(options["repo"])
    request = Request(
        repo=str(repository.top / repository.prefix),
        good=repository.commit(options["good"], option="--good"),
        bad=repository.commit(options["bad"] or "HEAD", option="--bad"),
        python=str(options["python"] or ""),
        **shared,
    )
    return request, repository.revisions(request.good, request.bad)


def _study(options: dict[str, Any], *, why: bool) -> Study | None:
    """Return the study of --workload; None for a program."""
    from torchyard.bench.commands.options import spec_of_option
    from torchyard.bench.request import Request
    from torchyard.bench.study_assembly import assemble
    from torchyard.bench.workload_text import choose_workload
    from torchyard.errors import UsageError

    metric, text = options["metric"], options["workload"]
    if bool(options["command"]) == bool(text):
        raise UsageError("give one of --command and --workload", hint='such as --command "./bench"')
    if text is None:
        useless = [f"--{name}" for name in ("variant", "mode", "threads") if options[name]]
        useless += ["--why"] * why + [f"--metric {metric}"] * (metric in _WORKLOAD_METRICS)
        if useless:
            raise UsageError(
                f"{useless[0]} needs --workload",
                why="a program is run as it is",
                hint="use `--metric printed` or `--metric failure` for what the program measures itself",
            )
        return None
    if metric == "printed" or (why and metric != "time"):
        raise UsageError(
            f"--metric {metric} does not apply" + (" to --why" if why else " to --workload"),
            hint="use --metric time",
        )
    here = Path.cwd()
    study = assemble(
        Request(
            workloads=(choose_workload(spec_of_option(text, "--workload", here)),),
            baseline=spec_of_option(options["variant"] or "eager", "--variant", here),
            modes=(options["mode"],) if options["mode"] else (),
            settings={} if options["threads"] is None else {"threads": options["threads"]},
        ),
        here=sys.executable,
    )
    if metric == "compile-time" and study.baseline.backend == "eager":
        raise UsageError("eager code is not compiled", hint="add --variant inductor")
    return replace(study, candidates=(), workloads=study.workloads[:1])


def _check_settings(settings: Sequence[Setting]) -> None:
    """Raise unless the settings can be those of a target."""
    from torchyard.errors import UsageError

    for one in settings:
        if one.kind == "value":
            raise UsageError("--workload has no [values]", hint="use [variables] and [packages]")
        if None in (one.good, one.bad) and one.kind == "variable" and one.name in os.environ:
            raise UsageError(
                f"{one.name} is set, but one side of --settings does not set it",
                hint=f"`unset {one.name}`, or give it a value on both sides",
            )


def _places(request: Request, folder: SearchFolder) -> Places:
    from torchyard.bisect.environments import PackageEnvironments
    from torchyard.bisect.places import GitPlaces, ReleasePlaces, SettingPlaces
    from torchyard.bisect.revisions import open_repository

    environments = PackageEnvironments(python=request.python, setup=request.setup)
    if request.settings:
        return SettingPlaces(settings=request.settings, environments=environments)
    if request.releases:
        return ReleasePlaces(
            package=request.releases.partition(":")[0],
            others=request.packages,
            environments=environments,
        )
    return GitPlaces(
        repository=open_repository(Path(request.repo)), folder=folder, python=request.python
    )


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
    why: bool,
    quiet: bool,
) -> tuple[Outcome | SettingsOutcome, Attribution | None]:
    """Search in the folder; worktrees are removed when a change is found."""
    from torchyard.bisect.delta import DeltaSearch, set_name
    from torchyard.bisect.ends import Experiment
    from torchyard.bisect.program_rounds import ProgramRounds
    from torchyard.bisect.report import progress_text
    from torchyard.bisect.search import Search
    from torchyard.bisect.workload_rounds import WorkloadRounds

    def listen(text: str, posterior: Posterior | None) -> None:
        if not quiet:
            print_message(progress_text(text, posterior))

    places = _places(request, folder)
    differing = sum(one.good != one.bad for one in request.settings)
    good = revisions[0].commit if revisions else set_name(0, differing)
    attribution = None
    with (
        ProgramRounds(request, places, folder, limit_s=limit_s)
        if request.study is None
        else WorkloadRounds(request, request.study, places, folder, limit_s=limit_s, good=good)
    ) as rounds:
        experiment = Experiment(
            state=folder.state,
            measure=rounds.measure,
            record=folder.append,
            budget=budget,
            listener=listen,
            failures=request.failures,
            noun=request.noun,
            quantity=request.quantity,
        )
        outcome: Outcome | SettingsOutcome = (
            DeltaSearch(differing, experiment).run()
            if request.settings
            else Search(revisions, experiment).run()
        )
        if why and isinstance(rounds, WorkloadRounds):
            attribution = _explain(rounds, outcome, differing, folder, quiet=quiet)
    if outcome.found:
        places.remove()
    return outcome, attribution


def _explain(
    rounds: WorkloadRounds,
    outcome: Outcome | SettingsOutcome,
    differing: int,
    folder: SearchFolder,
    *,
    quiet: bool,
) -> Attribution | None:
    """Explain the change; a failure is reported and does not change the result of the search."""
    from torchyard.bisect.explanation import both_sides, explain_change
    from torchyard.cli.progress import ComparisonCollector, show_progress
    from torchyard.errors import TorchyardError

    sides = both_sides(outcome, differing)
    if sides is None:
        print_message("why: no culprit is named; there is nothing to explain")
        return None
    try:
        with show_progress(ComparisonCollector(), quiet=quiet) as listener:
            return explain_change(rounds, *sides, folder, listener)
    except TorchyardError as error:
        print_message(f"why: {error.what}")
        return None
