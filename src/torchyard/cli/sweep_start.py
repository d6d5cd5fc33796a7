"""`torchyard sweep run`, also without the word: plan a sweep, show the plan, run it or go on with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.output import common_options, print_data, print_json, printable
from torchyard.cli.sections import SectionedCommand
from torchyard.cli.sweep_options import (
    sweep_options,
    sweep_request_of_options,
)

if TYPE_CHECKING:
    from torchyard.core.sweep import SweepPlan

__all__ = ["run"]

_HELP = """
\b
Examples:
  torchyard sweep --suites models --plan
  torchyard sweep --suites models,kernels --backends inductor,aot_eager --time 20s
  torchyard sweep nightly.toml --shard 1/4 --run-dir part-1
  torchyard sweep --suites models --null
  torchyard sweep --resume latest

Measure whole suites: each workload in each mode and precision is a cell, compared as `torchyard
bench` does, and each precision becomes a run that all reports read. Options override the study file.
Exit code 5 when every cell failed, 6 when one was measured on a busy machine, 130 after Ctrl-C.
"""


@click.command("run", cls=SectionedCommand, help=_HELP)
@click.argument(
    "study",
    required=False,
    metavar="[STUDY.toml]",
    type=click.Path(dir_okay=False, path_type=Path),
)
@sweep_options
@common_options
def run(study: Path | None, as_json: bool, **options: Any) -> int:
    """Plan and run, or go on."""
    plan, notes = _plan(study, options)
    from torchyard.cli.sweep_plan_text import sweep_plan_text
    from torchyard.core.records import encode
    from torchyard.workflow.sweep_estimate import estimate_sweep

    estimate = estimate_sweep(plan)
    if as_json:
        print_json({"plan": encode(plan), "estimate": encode(estimate), "notes": notes})
    else:
        print_data(printable(sweep_plan_text(plan, estimate, all_cells=True, notes=notes)))
    return 0


def _plan(study: Path | None, options: dict[str, Any]) -> tuple[SweepPlan, list[str]]:
    """The plan that file and options make, and what is to be said of it."""
    from torchyard.cli.bench import revision_of_option
    from torchyard.config.study_file import read_sweep_file
    from torchyard.config.sweep_request import SweepRequest, check_executor_options, merge_sweeps
    from torchyard.workflow.sweep_plan import idle_patterns, plan_sweep

    below = read_sweep_file(study) if study is not None else SweepRequest()
    above = sweep_request_of_options(options)
    request = merge_sweeps(below, above)
    check_executor_options(request, above)
    plan = plan_sweep(
        request,
        here=sys.executable,
        command=sys.argv,
        revision=revision_of_option(options["revision"]),
        notes=[note.strip() for note in options["notes"] if note.strip()],
    )
    idle = idle_patterns(request, here=sys.executable)
    return plan, [f"the pattern {pattern!r} fits no workload" for pattern in idle]
