"""`torchyard bisect`: find the revision, release or setting that changed a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.options import FILE, FOLDER, Threads
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_json,
    print_message,
    print_result,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torchyard.bisect.delta import SettingsOutcome
    from torchyard.bisect.model import Outcome, Request, Revision, SearchFolder
    from torchyard.bisect.posterior import Posterior
    from torchyard.bisect.workload_rounds import WorkloadRounds
    from torchyard.core.study import Budget, Scalar
    from torchyard.why.model import Attribution

_WIDTH = 80

_HELP = """
\b
Examples:
  torchyard bisect --good v1.0 --bad main --command "python bench.py"
  torchyard bisect --repo ~/project --good v1.0 --setup "make -j8"
                   --command "./bench --size 100" --time 30m
  torchyard bisect --releases torch:2.1..2.6 --workload kernels/softmax --why
  torchyard bisect --releases numpy:1.26..2.2
                   --command "{python} bench.py" --html result.html
  torchyard bisect --good v1.0 --recipe generic --command "{prefix}/bin/bench"
  torchyard bisect --releases msgpack:0.5..1.0 --recipe generic
                   --set variant=python --command "{python} bench.py"
  torchyard bisect --settings "OMP_NUM_THREADS=1"
                   "OMP_NUM_THREADS=2 KMP_BLOCKTIME=0" --command ./bench

Find the revision of a git repository (--good, --bad), the release of a package (--releases) or the
settings (--settings) that changed a program (--command) or a workload (--workload). The same command
resumes after an interrupt, a kill, or with a longer --time.

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
    help="Versions of a package, each installed by pip.",
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
    help="Interpreter of their environments, or of the checkouts (a relative path is inside them).  [default: the one that runs Torchyard]",
)
@click.option(
    "--with",
    "packages",
    multiple=True,
    metavar="REQUIREMENT",
    help="With --releases: a further package, such as numpy<2; may be repeated.",
)
@click.option(
    "--recipe",
    metavar="NAME|FILE",
    help="Build each revision, or each version from source.",
)
@click.option(
    "--set",
    "build_settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="With --recipe: a build option or a recipe key, such as variant=python; may be repeated.",
)
@click.option(
    "--command",
    default="",
    metavar="TEXT",
    help="The program; no shell. {python} is the interpreter of the environment or build, {prefix} the prefix of the build.",
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
    help="Wall time, the printed line `torchyard: SECONDS`, peak memory, nonzero exit code (125: skip); with --workload also compile time from empty caches, and wrong results.",
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
    help="With --workload: attribute the change to operators.",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "slurm"]),
    default="local",
    show_default=True,
    help="Measure rounds here, or each in a Slurm job.",
)
@click.option(
    "--slurm",
    multiple=True,
    metavar="OPTION=VALUE",
    help="With --executor slurm: partition, account, qos, gpus, cpus, memory, exclusive, time; slurm-NAME for any other sbatch option.",
)
@click.option(
    "--flat-prior",
    is_flag=True,
    help="Ignore signatures of the workload and files that commits touch.",
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
    flat_prior: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> int | None:
    """Search, and print the result."""
    from torchyard.bench.commands.options import checked_numbers
    from torchyard.bisect.assembly import request_of_options, slurm_options
    from torchyard.bisect.model import open_folder
    from torchyard.bisect.report import issue_text, outcome_json, outcome_page, outcome_text
    from torchyard.bisect.search import search_budget
    from torchyard.errors import Untrustworthy

    numbers = checked_numbers(options, "time", "margin", "step_limit")
    why_page = None if html is None or not why else html.with_name(f"{html.stem}-why.html")
    for path, option in ((html, "--html"), (why_page, "--html"), (issue, "--issue")):
        if path is not None:
            check_writable(path, option=option)
    slurm = slurm_options(options)
    request, revisions = request_of_options(options, why=why)
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
            slurm=slurm,
            why=why,
            flat_prior=flat_prior,
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
    slurm: Sequence[tuple[str, Scalar]] | None,
    why: bool,
    flat_prior: bool,
    quiet: bool,
) -> tuple[Outcome | SettingsOutcome, Attribution | None]:
    """Search in the folder; worktrees are removed when a change is found."""
    from contextlib import ExitStack

    from torchyard.bisect.assembly import places_of, rounds_of, unlikely_of
    from torchyard.bisect.delta import DeltaSearch
    from torchyard.bisect.ends import Experiment
    from torchyard.bisect.report import progress_text
    from torchyard.bisect.search import Search
    from torchyard.bisect.workload_rounds import WorkloadRounds

    def listen(text: str, posterior: Posterior | None) -> None:
        if not quiet:
            print_message(progress_text(text, posterior))

    places = places_of(request, folder, quiet=quiet)
    differing = sum(one.good != one.bad for one in request.settings)
    attribution = None
    with ExitStack() as stack:
        rounds = stack.enter_context(
            rounds_of(request, places, folder, limit_s=limit_s, signatures=not flat_prior)
        )
        measure = rounds.measure
        if slurm is not None:
            from torchyard.bisect.slurm_rounds import SlurmRounds

            measure = stack.enter_context(SlurmRounds(folder, slurm, limit_s=limit_s)).measure
        experiment = Experiment(
            state=folder.state,
            measure=measure,
            record=folder.append,
            budget=budget,
            listener=listen,
            failures=request.failures,
            noun=request.noun,
            quantity=request.quantity,
            unlikely=frozenset() if flat_prior else unlikely_of(request),
            flat_prior=flat_prior,
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


_ROUND_HELP = """
\b
Examples:
  torchyard bisect-round FOLDER round-0007

Measure one round of the search in FOLDER, in this process. Jobs of `torchyard bisect` run this.
"""


@click.command("bisect-round", help=_ROUND_HELP, hidden=True)
@click.argument("folder", type=FOLDER)
@click.argument("name")
@common_options
def bisect_round(folder: Path, name: str, as_json: bool) -> int:
    """Measure a round of a search whose driver holds the lock of its folder."""
    from torchyard.bisect.assembly import places_of, rounds_of
    from torchyard.bisect.model import SearchFolder, read_request
    from torchyard.bisect.slurm_rounds import request_of_round, run_round

    request, part = read_request(folder), request_of_round(folder, name)
    search_folder = SearchFolder(folder.absolute())
    try:
        places = places_of(request, search_folder, quiet=True)
        with rounds_of(request, places, search_folder, limit_s=part.limit_s) as rounds:
            run_round(folder, name, part, rounds.measure)
    finally:
        search_folder.close()
    if as_json:
        print_json({"round": name})
    return 0


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
