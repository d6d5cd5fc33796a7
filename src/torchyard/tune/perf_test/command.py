"""`torchyard perf-test`: measure a matrix product and an inference."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

from torchyard.bench.commands.options import LIMIT_OPTIONS, PLACE_OPTIONS
from torchyard.cli.options import FOLDER, Count, SectionedCommand, all_options, section
from torchyard.cli.output import common_options, print_message, print_result

if TYPE_CHECKING:
    from torchyard.core.study import Study, Variant
    from torchyard.tune.perf_test.measurement import PerfTest


_TEXT_WIDTH = 120
_HELP = """
\b
Examples:
  torchyard perf-test
      a 1000x1000 product and a three-layer perceptron, eager against inductor
  torchyard perf-test --preload tcmalloc=libtcmalloc.so.4
      with and without tcmalloc
  torchyard perf-test --tuned FOLDER --size 2000 --batch-size 64
      with the winner of `torchyard tune`
  torchyard perf-test --device cuda --precision bfloat16 --size 8192 --json

Measure a square matrix product and the inference of a 4096-4096-11008-10 perceptron (with the table of
torch.profiler) under the current and other settings. Without other settings, eager is compared with
inductor.
"""

_what, _run, _when = section("What to run"), section("What to compare"), section("When to stop")
_how, _out = section("How to measure"), section("Where results go")

_OPTIONS = (
    _what("--size", metavar="N", default="1000", show_default=True, help="Size of the matrices."),
    _what(
        "--batch-size",
        metavar="N",
        default="256",
        show_default=True,
        help="Batch size of the inference.",
    ),
    _what("--device", metavar="DEVICE", default="cpu", show_default=True, help="cpu, cuda, ..."),
    _what(
        "--precision",
        type=click.Choice(("float32", "float16", "bfloat16", "amp")),
        default="float32",
        show_default=True,
    ),
    _run(
        "--tuned",
        type=FOLDER,
        metavar="FOLDER",
        help="Race folder whose winner is compared with the current settings.",
    ),
    *PLACE_OPTIONS,
    _when(
        "--time",
        metavar="DURATION",
        default="30s",
        show_default=True,
        help="Measuring time of each workload.",
    ),
    _how("--threads", metavar="N", help="PyTorch threads. [default: one per core]"),
    _how(
        "--seed",
        metavar="N",
        help="Seed of inputs, weights and the order of pairs. [default: 1337]",
    ),
    _how(
        "--iterations",
        type=Count(1, 1_000_000),
        default=100,
        show_default=True,
        help="Iterations to profile.",
    ),
    *LIMIT_OPTIONS,
    _out(
        "--run-dir",
        type=FOLDER,
        metavar="FOLDER",
        help="Store the run here instead of in the results directory.",
    ),
    _out("-q", "--quiet", is_flag=True, help="No progress on stderr."),
)


@click.command(cls=SectionedCommand, help=_HELP)
@all_options(_OPTIONS)
@common_options
def perf_test(as_json: bool, **options: Any) -> int:
    """Run both workloads."""
    from torchyard.bench.commands.execution import exit_code_of
    from torchyard.bench.target_checks import check_devices
    from torchyard.tune.perf_test.report import perf_text

    study = _study(options)
    check_devices([study])
    result = _measure(study, options)
    width = shutil.get_terminal_size(fallback=(_TEXT_WIDTH, 0)).columns
    print_result({"perf_test": result}, perf_text(result, width=width), as_json=as_json)
    if not options["quiet"]:
        print_message(f"run folder: {result.run}")
    return exit_code_of(result.comparisons)


def _measure(study: Study, options: dict[str, Any]) -> PerfTest:
    from torchyard.cli.progress import ComparisonCollector, show_progress
    from torchyard.results.directory import new_run_folder, runs_home
    from torchyard.tune.perf_test.measurement import run_perf_test

    with show_progress(ComparisonCollector(), quiet=options["quiet"]) as listener:
        return run_perf_test(
            study,
            folder=options["run_dir"] or new_run_folder(runs_home()),
            command=list(sys.argv),
            iterations=options["iterations"],
            listener=listener,
        )


def _study(options: dict[str, Any]) -> Study:
    """Return the study: two workloads, current and other settings."""
    from dataclasses import replace

    from torchyard.bench.commands.options import request_of_study_options
    from torchyard.bench.request import WorkloadChoice
    from torchyard.bench.study_assembly import assemble
    from torchyard.core.number_checks import CHECKS
    from torchyard.errors import UsageError

    size = CHECKS["batch_size"].read(options["size"], where="--size")
    batch = CHECKS["batch_size"].read(options["batch_size"], where="--batch-size")
    has_environments = bool(options["environments"] or options["preloads"])
    if has_environments and options["tuned"] is not None:
        raise UsageError("both --tuned and an environment are given", hint="use only one of them")
    request = replace(
        request_of_study_options({**options, "batch_size": None}),  # the product has no batch
        name="perf-test",
        precision=options["precision"],
        workloads=(
            WorkloadChoice(
                where="--size", suite="kernels", name="matmul", parameters=(("size", size),)
            ),
            WorkloadChoice(where="--batch-size", suite="kernels", name="mlp", batch_size=batch),
        ),
    )
    study = assemble(request, here=sys.executable)
    if not has_environments and options["tuned"] is None:
        return study
    current = replace(study.baseline, name="current")
    return replace(study, baseline=current, candidates=_others(study, current, options))


def _others(study: Study, current: Variant, options: dict[str, Any]) -> tuple[Variant, ...]:
    from torchyard.errors import NothingToDo
    from torchyard.tune.model import read_race
    from torchyard.tune.perf_test.measurement import tuned_variant

    if options["tuned"] is not None:
        race = read_race(options["tuned"])
        if race.winner is None:
            raise NothingToDo(
                f"the race in {options['tuned']} has no winner",
                why="the default is best, or the race is not finished",
                hint="omit --tuned, or use another race",
            )
        return (tuned_variant(current, race.winner),)
    return study.candidates
