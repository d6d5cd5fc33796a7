"""The command `torchyard perf-test`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.bench.commands.options import LIMIT_OPTIONS, PLACE_OPTIONS
from torchyard.cli.options import Count, SectionedCommand, all_options, section
from torchyard.cli.output import common_options, print_data, print_json, printable, talk

if TYPE_CHECKING:
    from torchyard.core.study import Study, Variant
    from torchyard.tune.perf_test.model import PerfTest

__all__ = ["perf_test"]

_HELP = """
\b
Examples:
  torchyard perf-test --preload tcmalloc=libtcmalloc.so.4
      a 1000x1000 product and a three-layer perceptron, with and without tcmalloc
  torchyard perf-test --tuned FOLDER --size 2000 --batch-size 64
      with the winner of `torchyard tune`
  torchyard perf-test --device cuda --precision bfloat16 --size 8192 --json

Measure a square matrix product (operations per second, and which share of the machine's measured peak
that is) and the inference of a perceptron 4096-4096-11008-10 (with the operators that its time goes
to), under the settings as they are and under others, in turn. Without other settings the current
ones are measured against themselves.
"""

_what, _run, _when = section("What to run"), section("What to compare"), section("When to stop")
_how, _out = section("How to measure"), section("Where results go")

_OPTIONS = (
    _what("--size", metavar="N", default="1000", show_default=True, help="Of the matrices."),
    _what("--batch-size", metavar="N", default="16", show_default=True, help="Of the inference."),
    _what("--device", metavar="DEVICE", default="cpu", show_default=True, help="cpu, cuda, ..."),
    _what(
        "--precision",
        type=click.Choice(("float32", "float16", "bfloat16", "amp")),
        default="float32",
        show_default=True,
    ),
    _run(
        "--tuned",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="The race whose winner is compared with the current settings.",
    ),
    *PLACE_OPTIONS,
    _when("--time", metavar="DURATION", default="30s", show_default=True, help="Of each workload."),
    _how("--threads", metavar="N", help="Threads of torch; one for each core when left out."),
    _how("--seed", metavar="N", help="Seed of inputs, weights and the order of pairs; 1337."),
    _how(
        "--iterations",
        type=Count(1, 1_000_000),
        default=20,
        show_default=True,
        help="That the profiler looks at.",
    ),
    *LIMIT_OPTIONS,
    _out(
        "--run-dir",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="FOLDER",
        help="Keep the run here instead of in the runs' home.",
    ),
    _out("-q", "--quiet", is_flag=True, help="No progress on stderr."),
)


@click.command(cls=SectionedCommand, help=_HELP)
@all_options(_OPTIONS)
@common_options
def perf_test(as_json: bool, **options: Any) -> int:
    """Run both tests."""
    from torchyard.bench.commands.execution import exit_code_of
    from torchyard.bench.target_checks import check_devices
    from torchyard.core.records import encode
    from torchyard.tune.perf_test.report import perf_text

    study = _study(options)
    check_devices([study])
    found = _measure(study, options)
    if as_json:
        print_json({"perf_test": encode(found)})
    else:
        print_data(printable(perf_text(found)))
    if not options["quiet"]:
        talk(f"run folder: {found.run}")
    return exit_code_of(found.comparisons)


def _measure(study: Study, options: dict[str, Any]) -> PerfTest:
    from torchyard.cli.progress import Heard, show_progress
    from torchyard.results.directory import new_run_folder, runs_home
    from torchyard.tune.perf_test.measurement import run_perf_test

    with show_progress(Heard(), quiet=options["quiet"]) as listener:
        return run_perf_test(
            study,
            folder=options["run_dir"] or new_run_folder(runs_home()),
            command=list(sys.argv),
            iterations=options["iterations"],
            listener=listener,
        )


def _study(options: dict[str, Any]) -> Study:
    """Two workloads, and two settings."""
    from dataclasses import replace

    from torchyard.bench.commands.options import request_of_study_options
    from torchyard.bench.request import WorkloadChoice
    from torchyard.bench.study_assembly import assemble
    from torchyard.core.number_checks import CHECKS
    from torchyard.errors import UsageError

    size = CHECKS["batch_size"].read(options["size"], where="--size")
    batch = CHECKS["batch_size"].read(options["batch_size"], where="--batch-size")
    given = bool(options["environments"] or options["preloads"])
    if given and options["tuned"] is not None:
        raise UsageError(
            "both --tuned and an environment are given", hint="compare one of them at a time"
        )
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
    current = replace(study.baseline, name="current")
    return replace(study, baseline=current, candidates=_others(study, current, given, options))


def _others(
    study: Study, current: Variant, given: bool, options: dict[str, Any]
) -> tuple[Variant, ...]:
    from dataclasses import replace

    from torchyard.errors import NothingToDo
    from torchyard.tune.folder import read_race
    from torchyard.tune.perf_test.measurement import tuned_variant

    if options["tuned"] is not None:
        race = read_race(options["tuned"])
        if race.winner is None:
            raise NothingToDo(
                f"the race in {options['tuned']} has no winner",
                why="the default was best, or the race is not over",
                hint="leave out --tuned, or name another race",
            )
        return (tuned_variant(current, race.winner),)
    return study.candidates if given else (replace(current, name="again"),)
