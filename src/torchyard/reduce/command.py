"""`torchyard reduce`: reduce a comparison to a small script."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchyard.cli.options import FILE, Count, Threads
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_message,
    print_result,
    write_file,
)

if TYPE_CHECKING:
    from torchyard.core.comparison import Comparison
    from torchyard.core.study import MeasureSettings, Mode, Variant, Workload
    from torchyard.reduce.model import Group, Metric
    from torchyard.results.run_reader import Run

_HELP = """
\b
Examples:
  torchyard reduce latest --row 2 --output slow.py
      the second comparison of the latest run
  torchyard reduce --file model.py:Net --issue slow.md
      eager against inductor of your own model
  torchyard reduce --file kernels/layer-norm --time 2m --json
  torchyard reduce latest --row 2 --part 1
      start from the operators of part 1 of `torchyard why latest --row 2`
  torchyard reduce --file model.py:Net --metric wrong
      the operators whose compiled code has wrong results

Reduce a model that is slower, uses more memory or has wrong results when compiled to the smallest script
that still shows it, and needs only torch. The script is checked in new processes.

With --part, the search starts from one part of the stored result of `torchyard why`.

RUN is a run folder, the id of a run or a unique prefix of one, or `latest`. Measurements are kept until the next
search of the same comparison; --resume continues a search that was interrupted or killed.

\b
Exit codes:
  0  reduced, and the script shows the loss
  3  the candidate is not shown to be slower, to use more memory, or to be wrong
  6  the captured graph, the part or the script does not show the loss, or
     measurements contradict each other
"""


@click.command(help=_HELP)
@click.argument("run", default="latest", metavar="[RUN]")
@click.option(
    "--row",
    type=Count(1, 10**6),
    metavar="N",
    help="Number of the comparison in `torchyard report`.  [default: the largest slowdown]",
)
@click.option(
    "--part",
    type=Count(1, 10**6),
    metavar="K",
    help="Start from the operators of this part of `torchyard why`.  [default: all operators]",
)
@click.option("--file", metavar="FILE.py[:NAME]", help="A model, or a workload, instead of a run.")
@click.option(
    "--candidate",
    default="inductor",
    show_default=True,
    metavar="SPEC",
    help="With --file: the variant to compare with eager.",
)
@click.option("--threads", type=Threads(), metavar="N", help="With --file: PyTorch threads.")
@click.option(
    "--device", metavar="DEVICE", help="With --file: cpu, cuda, cuda:1, ...  [default: cpu]"
)
@click.option(
    "--mode",
    type=click.Choice(["inference", "training"]),
    help="With --file.  [default: inference]",
)
@click.option(
    "--metric",
    type=click.Choice(["time", "memory", "wrong"]),
    help="What the script shows.  [default: wrong for a row with wrong results, else time]",
)
@click.option("--resume", is_flag=True, help="Resume a search.")
@click.option(
    "--time", default="5m", show_default=True, metavar="DURATION", help="Time of the search."
)
@click.option(
    "--output",
    type=FILE,
    default="reduced.py",
    show_default=True,
    metavar="FILE",
    help="The script.",
)
@click.option(
    "--issue", type=FILE, metavar="FILE", help="Write Markdown text for an upstream issue."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@common_options
def reduce(
    run: str,
    row: int | None,
    part: int | None,
    file: str | None,
    candidate: str,
    threads: int | None,
    device: str | None,
    mode: Mode | None,
    metric: Metric | None,
    resume: bool,
    time: str,
    output: Path,
    issue: Path | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Reduce, write the script, and print the result."""
    from torchyard.bench.commands.options import checked_numbers
    from torchyard.core.comparison import Verdict
    from torchyard.core.variant_parts import PROFILED_DEVICES, check_device
    from torchyard.errors import Untrustworthy, UsageError
    from torchyard.reduce.group import load_group
    from torchyard.reduce.report import reduced_json, reduced_text, upstream_text
    from torchyard.reduce.session import reduce_comparison
    from torchyard.reduce.storage import RoundStore

    seconds = checked_numbers({"time": time}, "time")["time_s"]
    check_writable(output, option="--output")
    if issue is not None:
        check_writable(issue, option="--issue")
    if part is not None and (file is not None or metric in {"memory", "wrong"}):
        raise UsageError(
            "--part needs a run and --metric time",
            why="`torchyard why` attributes the time of a comparison of a run",
            hint="measure with `torchyard bench`, then run `torchyard why`",
        )
    group: Group | None = None
    wrong = False
    if file is None:
        stored, number = _row_of_run(run, row, metric)
        comparison = stored.comparisons[number - 1]
        workload, settings = comparison.workload, stored.study.settings
        baseline, other = (
            next(one for one in stored.study.variants if one.name == name)
            for name in (comparison.baseline, comparison.candidate)
        )
        if part is None:
            wrong = comparison.verdict is Verdict.WRONG
        else:
            group = load_group(stored, number, part)
    else:
        workload, baseline, other, settings = _of_file(file, candidate, threads, device, mode)
    check_device(workload.device, where="reduce", kinds=PROFILED_DEVICES)
    metric = metric or ("wrong" if wrong else "time")
    with RoundStore([workload, baseline, other, settings, metric, group], resume=resume) as store:
        result = reduce_comparison(
            workload,
            baseline,
            other,
            settings,
            seconds=seconds,
            name=output.name,
            metric=metric,
            part=group,
            store=store,
            listener=lambda text: None if quiet else print_message(text),
        )
    write_file(output, result.script, option="--output")
    if issue is not None:
        write_file(issue, upstream_text(result), option="--issue")
    print_result(reduced_json(result), reduced_text(result), as_json=as_json)
    if not quiet:
        print_message(f"script: {output}")
    return 0 if result.confirmed and not result.contradictory else Untrustworthy.exit_code


def _row_of_run(name: str, row: int | None, metric: Metric | None) -> tuple[Run, int]:
    """Return a run, and the number of the chosen comparison."""
    from torchyard.core.comparison import Verdict
    from torchyard.errors import NothingToDo, UsageError
    from torchyard.results.commands.options import find_run
    from torchyard.results.run_reader import read_run

    run = read_run(find_run(name))
    if row is not None and row > len(run.comparisons):
        raise UsageError(
            f"there is no row {row}",
            why=f"rows of the run: {len(run.comparisons)}",
            hint="`torchyard report` lists them",
        )

    def size(one: Comparison) -> float:
        """Return how much worse the candidate is."""
        if metric == "wrong":
            return float(one.verdict is Verdict.WRONG)
        if metric == "memory":
            sides = (one.baseline_metrics, one.candidate_metrics)
            before, after = (side.peak_memory_bytes or 0 for side in sides)
            return after / before - 1.0 if before else 0.0
        return 1.0 / one.estimate.speedup - 1.0 if one.estimate else 0.0

    if row is not None:
        return run, row
    chosen = max(run.comparisons, key=size)
    if size(chosen) <= 0.0:
        what = {"wrong": "wrong", "memory": "using more memory"}.get(metric or "time", "slower")
        raise NothingToDo(f"no candidate of the run is {what}", hint="choose another run")
    return run, run.comparisons.index(chosen) + 1


def _of_file(
    text: str, candidate: str, threads: int | None, device: str | None, mode: Mode | None
) -> tuple[Workload, Variant, Variant, MeasureSettings]:
    from torchyard.bench.commands.options import spec_of_option
    from torchyard.bench.request import Request
    from torchyard.bench.study_assembly import assemble
    from torchyard.bench.workload_text import choose_workload

    here = Path.cwd()
    study = assemble(
        Request(
            workloads=(choose_workload(spec_of_option(text, "--file", here)),),
            baseline=spec_of_option("eager", "the baseline", here),
            candidates=(spec_of_option(candidate, "--candidate", here),),
            device=device,
            modes=() if mode is None else (mode,),
            settings={} if threads is None else {"threads": threads},
        ),
        here=sys.executable,
    )
    return study.workloads[0], study.baseline, study.candidates[0], study.settings
