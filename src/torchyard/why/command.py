"""`torchyard why`: attribute the difference of a comparison to source operators."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchyard.cli.options import FILE, FOLDER, Count, Number
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    print_message,
    printable,
    write_file,
)

if TYPE_CHECKING:
    from torchyard.core.comparison import Comparison
    from torchyard.results.run_reader import Run

_TEXT_WIDTH = 100
MEASURING_S = 20.0
"""Measuring time of all launches by default."""
MIN_ABLATION_S = 60.0
"""Least measuring time of the comparisons of `--compiler`."""

_HELP = """
\b
Examples:
  torchyard why
      why the latest run has the result it has
  torchyard why latest --row 2 --html why.html
      the second comparison of the run, with a page
  torchyard why latest --compiler
      also change one decision of the compiler at a time
  torchyard why build/run --launches 10 --json

Find out why two variants differ. Further launches profile operators and kernels. The table lists how
much each module, source line and kernel contributes to the difference, with 95 % confidence intervals.
On a GPU, parts are GPU time, and the rest is idle gaps. The result is saved in the run folder after
every launch.

RUN is a run folder, the id of a run or a unique prefix of one, or `latest`.

Exit code 6: the machine was too noisy; the numbers must not be used.
"""


@click.command(help=_HELP)
@click.argument("run", default="latest", metavar="[RUN]")
@click.option(
    "--row",
    type=Count(1, 10**6),
    metavar="N",
    help="Number of the comparison in `torchyard report`.  [default: the largest difference]",
)
@click.option(
    "--launches", type=Count(2, 100), default=6, show_default=True, help="Number of launches."
)
@click.option(
    "--seconds",
    type=Number(1.0, 1e6),
    help="Measuring time of all launches.  [default: half of --time; 20 at most without it]",
)
@click.option(
    "--time",
    metavar="DURATION",
    help="No launch starts that would end later; at least two do.  [default: the duration of the run]",
)
@click.option("--compiler", is_flag=True, help="Change decisions of Inductor one at a time.")
@click.option(
    "--html",
    type=FILE,
    metavar="FILE",
    help="Write a self-contained HTML page with a waterfall chart and a flame graph.",
)
@click.option(
    "--traces",
    type=FOLDER,
    metavar="FOLDER",
    help="Write a Chrome trace of one block of each variant.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@common_options
def why(
    run: str,
    row: int | None,
    launches: int,
    seconds: float | None,
    time: str | None,
    compiler: bool,
    html: Path | None,
    traces: Path | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Measure and show an attribution."""
    from torchyard.cli.progress import ComparisonCollector, show_progress
    from torchyard.core.records import encode
    from torchyard.errors import Untrustworthy
    from torchyard.results.commands.options import find_run
    from torchyard.results.run_reader import read_run
    from torchyard.why.analysis import explain_comparison
    from torchyard.why.model import new_ablation_folder, save
    from torchyard.why.report import attribution_text

    if html is not None:
        check_writable(html, option="--html")
    if traces is not None:
        for name in ("baseline.json", "candidate.json"):
            check_writable(traces / name, option="--traces")
    stored = read_run(find_run(run))
    number, comparison = _choose(stored, row)
    if compiler:
        from torchyard.why.ablation import check_candidate

        check_candidate(
            next(one for one in stored.study.variants if one.name == comparison.candidate)
        )
    budget_s = _budget_s(stored, time)
    if seconds is None:
        seconds = budget_s / 2.0 if time is not None else min(MEASURING_S, budget_s / 2.0)
    with show_progress(ComparisonCollector(), quiet=quiet) as listener:
        result = explain_comparison(
            stored.study,
            comparison,
            launches=launches,
            seconds=seconds,
            budget_s=budget_s,
            traces=traces,
            folder=stored.folder / "why",
            listener=listener,
            keep=lambda one: save(one, stored.folder, number),
        )
        if compiler:
            from torchyard.why.ablation import ablate

            ablations = ablate(
                stored.study,
                comparison,
                result,
                seconds=max(MIN_ABLATION_S, 2.0 * seconds),
                folder=new_ablation_folder(stored.folder, number),
                command=sys.argv,
                listener=listener,
            )
            result = replace(result, ablations=ablations)
    path = save(result, stored.folder, number)
    if as_json:
        print_json({"attribution": encode(result), "row": number, "saved": str(path)})
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _TEXT_WIDTH
        print_data(printable(attribution_text(result, width=max(60, width))))
    if html is not None:
        from torchyard.why.page import attribution_page

        write_file(html, attribution_page(result), option="--html")
        if not quiet:
            print_message(f"html: {html}")
    if not quiet:
        if traces is not None:
            print_message(f"traces: {traces}")
        print_message(f"saved: {path}")
    return Untrustworthy.exit_code if result.untrusted else 0


def _budget_s(run: Run, time: str | None) -> float:
    """Return the wall time of the analysis: given, else that of the run, if it is known."""
    import math
    from datetime import datetime

    from torchyard.core.units import parse_duration_s

    if time is not None:
        return parse_duration_s(time)
    try:
        started, finished = (
            datetime.fromisoformat(str(run.info.get(key))) for key in ("started", "finished")
        )
    except ValueError:
        return math.inf
    return max(0.0, (finished - started).total_seconds())


def _choose(run: Run, row: int | None) -> tuple[int, Comparison]:
    """Return number and comparison: the largest difference that is decided, else the largest one."""
    import math

    from torchyard.core.comparison import Verdict
    from torchyard.errors import NothingToDo, UsageError

    if row is not None:
        if row > len(run.comparisons):
            raise UsageError(
                f"there is no row {row}",
                why=f"rows of the run: {len(run.comparisons)}",
                hint="`torchyard report` lists them",
            )
        return row, run.comparisons[row - 1]

    def size(pair: tuple[int, Comparison]) -> float:
        estimate = pair[1].estimate
        if estimate is None or not 0.0 < estimate.speedup < math.inf:
            return -1.0
        return abs(math.log(estimate.speedup))

    rows = [pair for pair in enumerate(run.comparisons, start=1) if size(pair) >= 0.0]
    decided = {Verdict.FASTER, Verdict.SLOWER}
    rows = [pair for pair in rows if pair[1].state in decided] or rows
    if not rows:
        raise NothingToDo(
            "the run has no comparison with a result",
            why="a difference that was not measured cannot be explained",
            hint="`torchyard report` shows why its comparisons failed",
        )
    return max(rows, key=size)
