"""`torchyard perf-test`: measure a matrix product and an inference."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.bench.bench_run import run_bench
from torchyard.bench.commands.options import LIMIT_OPTIONS, PLACE_OPTIONS
from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch
from torchyard.bench.roofline.machine_peak import PeakRequest, peak_of_machine
from torchyard.cli.options import FOLDER, Count, SectionedCommand, all_options, section
from torchyard.cli.output import common_options, print_message, print_result
from torchyard.core.comparison import Comparison
from torchyard.core.events import Listener
from torchyard.core.records import decode
from torchyard.core.roofline import MachinePeak
from torchyard.core.short_names import with_short_workloads
from torchyard.core.study import Study, Variant, Workload
from torchyard.core.units import format_duration, format_flops
from torchyard.errors import TorchyardError
from torchyard.presentation.safe_text import aligned, one_line, shortened
from torchyard.tune.model import Contender

if TYPE_CHECKING:
    from torchyard.core.study import Study, Variant


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

Measure a square matrix product (FLOP/s and share of the machine's measured peak) and the inference of
a 4096-4096-11008-10 perceptron (with the table of torch.profiler), alternating between the current
and other settings. Without other settings, eager is compared with inductor.
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
    given = bool(options["environments"] or options["preloads"])
    if given and options["tuned"] is not None:
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
    if not given and options["tuned"] is None:
        return study
    current = replace(study.baseline, name="current")
    return replace(study, baseline=current, candidates=_others(study, current, options))


def _others(study: Study, current: Variant, options: dict[str, Any]) -> tuple[Variant, ...]:
    from torchyard.errors import NothingToDo
    from torchyard.tune.model import read_race

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


_MOST_OPERATORS = 12
_NUMBERS_WIDTH = 58
"""Width of the columns of an operator without its name, and of those of the GPU."""
_GPU_WIDTH = 31
_MIN_NAME_WIDTH = 20


def perf_text(test: PerfTest, *, width: int = 120) -> str:
    """Format a performance test as text; names of operators are shortened to the width."""
    test = replace(test, comparisons=with_short_workloads(test.comparisons))
    parts = [_rates(test)]
    parts += ["\n".join(textwrap.fill(line, width) for line in _verdicts(test))]
    parts += ["\n".join(f"{name}: {text}" for name, text in test.settings)]
    parts += [_operators(table, width) for table in test.tables]
    return "\n\n".join(parts) + "\n"


def _rates(test: PerfTest) -> str:
    rows: list[Sequence[str]] = [("workload", "settings", "time", "rate", "of peak")]
    for comparison in test.comparisons:
        for name, metrics in (
            (comparison.baseline, comparison.baseline_metrics),
            (comparison.candidate, comparison.candidate_metrics),
        ):
            time = "" if metrics.time_ns is None else format_duration(metrics.time_ns)
            rate = metrics.flops_per_second
            shown = "" if rate is None else format_flops(rate, per_second=True)
            share = f"{rate / test.peak.flops_per_second:.0%}" if rate and test.peak else ""
            rows.append((comparison.workload.label, name, time, shown, share))
    text = aligned(rows)
    if test.peak is None:
        return f"{text}\n\nshare of peak unavailable: {one_line(test.peak_why_not)}"
    peak = format_flops(test.peak.flops_per_second, per_second=True)
    return f"{text}\n\npeak of this machine: {peak}, measured {test.peak.measured}"


def _verdicts(test: PerfTest) -> list[str]:
    lines = []
    for one in test.comparisons:
        if one.failure is not None:
            lines.append(f"{one.workload.label}: {one.candidate} failed: {one.failure.message}")
        elif one.estimate is not None:
            interval = one.estimate.interval
            interval_text = (
                "" if interval is None else f" [{interval.low:.3f}, {interval.high:.3f}]"
            )
            number = f"{one.estimate.speedup:.3f}x{interval_text}"
            why = f" ({'; '.join(one.untrusted)})" if one.untrusted else ""
            lines.append(
                f"{one.workload.label}: {one.candidate} is "
                f"{number if one.trusted else f'({number})'} vs {one.baseline}: {one.state}{why}"
            )
    return [one_line(line) for line in lines]


def _operators(table: OperatorTable, width: int) -> str:
    """Return the columns of torch.profiler's table, and the total below it."""
    title = f"{table.workload}, {table.variant}: operators of {table.iterations} iterations"
    if table.why_not:
        return (
            f"{table.workload}, {table.variant}: operators unavailable: {one_line(table.why_not)}"
        )
    iterations = max(1, table.iterations)
    total = f"self CPU time total: {format_duration(table.total_ns)}"
    total += f" ({format_duration(table.total_ns / iterations)} per iteration)"
    if table.kernels:
        return f"{title}\n{_with_gpu_times(table, width)}\n{total}\n\n{_kernels(table, width)}"
    rows = [
        (_name(row, width - _NUMBERS_WIDTH), *_cpu(row, table))
        for row in table.operators[:_MOST_OPERATORS]
    ]
    return f"{title}\n{aligned([('operator', *_CPU_HEADS), *rows])}\n{total}"


_CPU_HEADS = ("calls", "self CPU", "self %", "CPU total", "total %", "CPU avg")


def _with_gpu_times(table: OperatorTable, width: int) -> str:
    """Return operators by GPU time of their kernels, then by self CPU time."""
    head = ("operator", *_CPU_HEADS, "self GPU", "self %", "GPU total")
    ordered = sorted(table.operators, key=lambda row: (-row.self_device_cost, -row.self_cost))
    rows = [
        (
            _name(row, width - _NUMBERS_WIDTH - _GPU_WIDTH),
            *_cpu(row, table),
            *_gpu(row, table),
            format_duration(row.total_device_cost),
        )
        for row in ordered[:_MOST_OPERATORS]
    ]
    return aligned([head, *rows])


def _kernels(table: OperatorTable, width: int) -> str:
    ordered = sorted(table.kernels, key=lambda row: -row.self_device_cost)
    rows = [
        (_name(row, width - _GPU_WIDTH), str(row.calls), *_gpu(row, table))
        for row in ordered[:_MOST_OPERATORS]
    ]
    return aligned([("kernel", "calls", "GPU", "share"), *rows])


def _name(row: OperatorRow, width: int) -> str:
    return shortened(one_line(row.name), max(_MIN_NAME_WIDTH, width))


def _cpu(row: OperatorRow, table: OperatorTable) -> tuple[str, ...]:
    """Return the cells of `_CPU_HEADS`; shares are those of the total self CPU time."""
    whole = table.total_ns or 1.0
    return (
        str(row.calls),
        format_duration(row.self_cost),
        f"{row.self_cost / whole:.1%}",
        format_duration(row.total_cost),
        f"{row.total_cost / whole:.1%}",
        format_duration(row.total_cost / max(1, row.calls)),
    )


def _gpu(row: OperatorRow, table: OperatorTable) -> tuple[str, str]:
    spent = row.self_device_cost
    return format_duration(spent), f"{spent / (table.device_ns or 1.0):.1%}"


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """An operator or kernel, over all iterations."""

    name: str
    calls: int
    on_device: bool = False
    """Whether it is a kernel or copy; its time is also in the row of the operator that launched it."""
    self_cost: float
    """CPU time in ns, without nested operators."""
    total_cost: float
    self_device_cost: float = 0.0
    """GPU time in ns."""
    total_device_cost: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """Time of one variant by operator."""

    workload: str
    variant: str
    iterations: int
    rows: tuple[OperatorRow, ...]
    """Most expensive first."""
    why_not: str = ""
    """Why there are no rows."""

    @property
    def operators(self) -> tuple[OperatorRow, ...]:
        """Rows of operators on the CPU."""
        return tuple(row for row in self.rows if not row.on_device)

    @property
    def kernels(self) -> tuple[OperatorRow, ...]:
        """Rows of kernels on the GPU, most expensive first."""
        return tuple(row for row in self.rows if row.on_device)

    @property
    def total_ns(self) -> float:
        """Total self CPU time."""
        return sum(row.self_cost for row in self.operators)

    @property
    def device_ns(self) -> float:
        """Total GPU time."""
        return sum(row.self_device_cost for row in self.kernels)


@dataclass(frozen=True, kw_only=True)
class PerfTest:
    """Result of a performance test."""

    comparisons: tuple[Comparison, ...]
    """The product first, then the inference."""
    tables: tuple[OperatorTable, ...]
    peak: MachinePeak | None
    peak_why_not: str = ""
    run: str = ""
    """The run folder."""
    settings: tuple[tuple[str, str], ...] = ()
    """Name of each variant and a description of its settings."""


WARM_S: Final = 3.0


def run_perf_test(
    study: Study, *, folder: Path, command: Sequence[str], iterations: int, listener: Listener
) -> PerfTest:
    """Measure both workloads of the study, then profile the operators of the last one."""
    peak, why_not = _peak(study, listener)
    rows = run_bench(study, folder=folder, command=command, listener=listener)
    tables = operator_tables(study, study.workloads[-1], iterations=iterations)
    return PerfTest(
        comparisons=tuple(rows),
        tables=tuple(tables),
        peak=peak,
        peak_why_not=why_not,
        run=str(folder),
        settings=tuple((variant.name, settings_of(variant)) for variant in study.variants),
    )


def settings_of(variant: Variant) -> str:
    """Describe how a variant differs from plain `python program.py`."""
    environment = variant.environment
    parts = [f"{key}={value}" for key, value in environment.variables]
    parts += [f"preload {Path(library).name}" for library in environment.preload]
    if environment.threads is not None:
        parts.append(f"{environment.threads} threads")
    if variant.backend != "eager":
        parts.append(variant.backend)
    parts += [key if value is True else f"{key}={value}" for key, value in variant.options]
    return ", ".join(parts) or "unchanged"


def tuned_variant(current: Variant, winner: Contender) -> Variant:
    """Return the current variant with the settings of a race winner."""
    return replace(winner.variant(current), name="tuned")


def _peak(study: Study, listener: Listener) -> tuple[MachinePeak | None, str]:
    """Return the peak of the current settings, or why it is unavailable."""
    baseline = study.baseline
    request = PeakRequest(
        target=baseline.target,
        device=study.workloads[0].device,
        precision=baseline.precision,
        threads=baseline.environment.threads or study.settings.threads,
    )
    try:
        return peak_of_machine(request, listener=listener).peak, ""
    except TorchyardError as error:
        return None, error.what + (f": {error.why}" if error.why else "")


def operator_tables(study: Study, workload: Workload, *, iterations: int) -> list[OperatorTable]:
    """Return one table of profiled operators per variant, or why there is none.

    Measured in a launch of their own: a profiler slows down what it observes, so its times are used
    for shares only.
    """
    with tempfile.TemporaryDirectory(prefix="torchyard-operators-") as folder:
        return [
            _operator_table(study, workload, variant, Path(folder), iterations)
            for variant in study.variants
        ]


def _operator_table(
    study: Study, workload: Workload, variant: Variant, folder: Path, iterations: int
) -> OperatorTable:
    settings = study.settings
    table = OperatorTable(workload=workload.label, variant=variant.name, iterations=0, rows=())
    try:
        with LaunchProcesses(
            workload,
            (variant,),
            settings,
            draw=draw_launch(random.Random(settings.seed)),
            log_folder=folder,
            scratch=folder,
        ) as processes:
            processes.ask(variant, "warm", phase="warm-up", seconds=WARM_S, variant=variant.name)
            answer = processes.ask(
                variant, "operators", phase="profile", iterations=iterations, variant=variant.name
            )
    except VariantFailed as failed:
        return replace(table, why_not=failed.failure.message)
    rows = tuple(decode(OperatorRow, row, where="row", strict=False) for row in answer["rows"])
    return replace(table, iterations=int(answer["iterations"]), rows=rows)
