"""Measure for an attribution: in each launch, timed and instrumented blocks alternate; then memory."""

from __future__ import annotations

import math
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch, threads_of
from torchyard.bench.launch_templates import LaunchTemplates, may_fork
from torchyard.bench.preparation import PreparationState, compile_variant, measure_metrics, warm_up
from torchyard.bench.roofline.machine_peak import find_peak, machine_of
from torchyard.bench.roofline.report import peak_command
from torchyard.core.comparison import VariantMetrics
from torchyard.core.events import Event, Listener
from torchyard.core.roofline import MachinePeak
from torchyard.core.short_names import short_label
from torchyard.core.study import COMMAND_SUITE, SCRIPT_SUITE, MeasureSettings, Variant, Workload
from torchyard.core.variant_parts import PROFILED_DEVICES, check_device
from torchyard.errors import UsageError
from torchyard.machine.facts import read_facts
from torchyard.machine.guards import block_check
from torchyard.process.templates import TemplatePool
from torchyard.why.attribution import part_name
from torchyard.why.model import (
    MeasuredRound,
    MeasuredSide,
    MemorySite,
    OperatorRow,
    Part,
    Source,
    Work,
)
from torchyard.why.software import Software
from torchyard.worker.wire import phase_of


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Bytes that the operator or kernel `name` allocated and that were live at the peak."""

    name: str
    sources: tuple[Source, ...]
    size_bytes: int

    @classmethod
    def of(cls, fields: list[Any]) -> Allocation:
        """Return the allocation of a worker's answer."""
        name, sources, size_bytes = fields
        return cls(name=name, sources=tuple(map(Source.of, sources)), size_bytes=size_bytes)


def memory_sites(
    parts: Sequence[Part], baseline: Sequence[Allocation], candidate: Sequence[Allocation]
) -> tuple[MemorySite, ...]:
    """Return the sites of both sides, largest difference first.

    Operators of one part are one site, because a kernel that fuses them has only one result.
    """
    names = {source: part.name for part in parts for source in part.sources}
    sizes: dict[str, list[int]] = {}
    sources: dict[str, set[Source]] = {}
    for side, allocations in enumerate((baseline, candidate)):
        for one in allocations:
            part_names = [names[source] for source in one.sources if source in names]
            name = part_names[0] if part_names else _own_name(one)
            sizes.setdefault(name, [0, 0])[side] += one.size_bytes
            sources.setdefault(name, set()).update(one.sources)
    sites = [
        MemorySite(
            name=name,
            sources=tuple(sorted(sources[name])),
            baseline_bytes=own[0],
            candidate_bytes=own[1],
        )
        for name, own in sizes.items()
    ]
    return tuple(
        sorted(sites, key=lambda one: (-abs(one.difference_bytes), -one.baseline_bytes, one.name))
    )


def _own_name(one: Allocation) -> str:
    if one.sources:
        return part_name("operators", one.sources)
    return f"{one.name} without a known source" if one.name else part_name("unattributed", ())


FEWEST_LAUNCHES: Final = 2
FEWEST_ROUNDS: Final = 4
BLOCK_S: Final = 0.1
"""Duration of an instrumented block."""
MOST_ITERATIONS: Final = 10
"""Each iteration may take new memory, see `worker/why/instrumented_block.py`."""
MOST_CODE: Final = 12
"""Kernels whose generated code is read."""
GENERATED: Final = ("cpp_", "triton_")
RESERVE_BYTES: Final = 1 << 30
"""Memory of each process on the CPU."""
LONGEST: Final = 1.25
"""Samples longer than this multiple of the median are left out, as in instrumented blocks."""


@dataclass(kw_only=True)
class Measurement:
    """What the launches so far returned."""

    rounds: list[MeasuredRound] = field(default_factory=list)
    work: dict[str, dict[Source, Work]] = field(default_factory=dict)
    """Work of eager code by variant."""
    peaks: dict[str, MachinePeak] = field(default_factory=dict)
    """Measured peak of the device by variant, where one is stored."""
    peak_command: str = ""
    """Command that measures a peak that is not stored."""
    memory: dict[str, tuple[Allocation, ...]] = field(default_factory=dict)
    software: dict[str, Software] = field(default_factory=dict)
    """Empty if both variants run in the same process."""
    metrics: dict[str, VariantMetrics] = field(default_factory=dict)
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    """Compile time in seconds by variant and phase."""
    code: dict[str, str] = field(default_factory=dict)
    """Generated code of kernels of the candidate."""
    notes: list[str] = field(default_factory=list)


class AttributionSession:
    """Measures one comparison; `measurement` can be read at any time, also after an interrupt."""

    def __init__(
        self,
        workload: Workload,
        baseline: Variant,
        candidate: Variant,
        settings: MeasureSettings,
        *,
        launches: int,
        seconds: float,
        folder: Path,
        listener: Listener,
        budget_s: float = math.inf,
        traces: Path | None = None,
        on_launch: Callable[[], None] = lambda: None,
    ) -> None:
        """`seconds` is the measuring time of all launches; `folder` receives logs and compiled code.

        After two launches, no further one starts that would end after `budget_s`. `traces` is a folder
        for a Chrome trace of one block of each side. `on_launch` is called after each launch.
        """
        if workload.suite in {COMMAND_SUITE, SCRIPT_SUITE}:
            kind = "whole programs" if workload.suite == COMMAND_SUITE else "training scripts"
            raise UsageError(
                f"why does not support {kind}",
                why="only operators of PyTorch modules and functions are attributed",
                hint="use `torchyard profile` for a profile of each program",
            )
        check_device(workload.device, where="why", kinds=PROFILED_DEVICES)
        if workload.ranks > 1:
            raise UsageError(
                "why does not support several ranks",
                why="a profile covers one process",
                hint="compare the same variants without ddp or fsdp2 and with one rank",
            )
        for variant in (baseline, candidate):
            if variant.environment.instances > 1:
                raise UsageError(
                    "why does not support several instances",
                    why="a profile covers one process",
                    hint="compare the same settings with one instance",
                )
        self._workload = workload
        self._variants = (baseline, candidate)
        self._settings = settings
        self._launches = launches
        self._seconds = seconds / launches
        self._budget_s = budget_s
        self._traces = traces
        self._folder = folder
        self._listener = listener
        self._on_launch = on_launch
        self._chance = random.Random(f"why/{settings.seed}")
        self._prepared = PreparationState()
        self._traced: set[Path] = set()
        self._templates: LaunchTemplates | None = None
        self.measurement = Measurement()

    def run(self) -> Measurement:
        """Measure all launches."""
        scratch = self._folder / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        pool = TemplatePool()
        forks = sys.platform == "linux" and may_fork(self._settings, self._variants)
        self._templates = LaunchTemplates(pool, self._settings) if forks else None
        try:
            begin_s = time.monotonic()
            for number in range(self._launches):
                started_s = time.monotonic()
                self._launch(number, scratch)
                self._on_launch()
                now_s = time.monotonic()
                if number + 1 >= FEWEST_LAUNCHES and (
                    now_s - begin_s + (now_s - started_s) > self._budget_s
                ):
                    break
        finally:
            pool.close()
            shutil.rmtree(scratch, ignore_errors=True)
        return self.measurement

    def _launch(self, number: int, scratch: Path) -> None:
        self._say(f"launch {number + 1} of {self._launches}: starting", number)
        logs = self._folder / "logs" / f"launch-{number:03d}"
        logs.mkdir(parents=True, exist_ok=True)
        with LaunchProcesses(
            self._workload,
            self._variants,
            self._settings,
            draw=draw_launch(self._chance),
            log_folder=logs,
            scratch=scratch,
            templates=self._templates,
            number=number,
        ) as processes:
            for variant in processes.one_variant_per_process():
                reserve_bytes = RESERVE_BYTES if self._workload.device == "cpu" else 0
                self._ask(processes, variant, "observe", reserve_bytes=reserve_bytes)
            for variant in self._variants:
                self._say(f"launch {number + 1} of {self._launches}: compiling", number)
                compile_variant(processes, variant)
                if number == 0:  # later launches find the compiled code in the cache
                    self._read_phases(processes, variant)
            for variant in self._variants:
                warm_up(processes, variant, self._prepared)
                if number == 0:
                    measure_metrics(processes, variant, self._prepared)
                self._record_sources(processes, variant)
            self.measurement.metrics = dict(self._prepared.metrics)
            self._say(f"launch {number + 1} of {self._launches}: measuring", number)
            started_s = time.monotonic()
            rounds = 0
            while rounds < FEWEST_ROUNDS or time.monotonic() - started_s < self._seconds:
                self._round(processes, number)
                rounds += 1
            if number == 0:
                self._read_code(processes)
                self._read_facts(processes)

    def _iterations(self, variant: Variant) -> int:
        iteration_ns = max(self._prepared.iteration_ns[variant.name], 1.0)
        return max(3, min(MOST_ITERATIONS, round(BLOCK_S * 1e9 / iteration_ns)))

    def _read_phases(self, processes: LaunchProcesses, variant: Variant) -> None:
        answer = self._ask(processes, variant, "compile_phases")
        self.measurement.phases[variant.name] = {
            str(name): float(duration_s) for name, duration_s in answer["phases"]
        }

    def _read_code(self, processes: LaunchProcesses) -> None:
        """Read the generated code of the longest kernels of the candidate."""
        candidate = self._variants[1]
        durations: dict[str, float] = {}
        for one in self.measurement.rounds:
            for row in one.candidate.rows:
                if row.name.startswith(GENERATED):
                    durations[row.name] = durations.get(row.name, 0.0) + row.duration_ns
        names = sorted(durations, key=lambda name: -durations[name])[:MOST_CODE]
        if names:
            answer = self._ask(processes, candidate, "kernel_code", names=names)
            self.measurement.code = {str(name): str(text) for name, text in answer["code"]}

    def _read_facts(self, processes: LaunchProcesses) -> None:
        """Read memory, software and the measured peak of both variants, once."""
        facts, device = read_facts(), self._workload.device
        for variant in self._variants:
            hello = processes.hellos[variant.process_key]
            threads = threads_of(variant, self._settings) if device == "cpu" else 0
            machine, torch_version = machine_of(facts, hello, device), str(hello.get("torch", ""))
            peak = find_peak(
                machine, device, variant.precision, threads, torch_version=torch_version
            )
            if peak is not None:
                self.measurement.peaks[variant.name] = peak
            else:
                self.measurement.peak_command = peak_command(device, variant.precision, threads)
            answer = self._ask_or_note(processes, variant, "memory-sites")
            self.measurement.memory[variant.name] = tuple(
                Allocation.of(fields) for fields in answer.get("sites", ())
            )
            if processes.several_processes:
                answer = self._ask_or_note(processes, variant, "software")
                if answer:
                    self.measurement.software[variant.name] = Software.of(answer, variant.target)

    def _ask_or_note(
        self, processes: LaunchProcesses, variant: Variant, verb: str
    ) -> dict[str, Any]:
        """Ask for something that the result can do without; a failure becomes a note."""
        try:
            return self._ask(processes, variant, verb, variant=variant.name)
        except VariantFailed as failed:
            if not failed.process_alive:
                raise
            note = f"{variant.name}: {phase_of(verb)} is unavailable: {failed.failure.message}"
            self.measurement.notes.append(note)
            return {}

    def _trace_of(self, variant: Variant) -> str:
        """Return the path of the trace of this block; empty if there is one, or none is wanted."""
        if self._traces is None:
            return ""
        side = "baseline" if variant is self._variants[0] else "candidate"
        path = self._traces.absolute() / f"{side}.json"
        if path in self._traced:
            return ""
        self._traced.add(path)
        return str(path)

    def _record_sources(self, processes: LaunchProcesses, variant: Variant) -> None:
        answer = self._ask(processes, variant, "sources", variant=variant.name)
        for fields, flops, moved_bytes in answer["work"]:
            work = Work(flops=float(flops), moved_bytes=float(moved_bytes))
            self.measurement.work.setdefault(variant.name, {})[Source.of(fields)] = work
        why_not = str(answer["kernels_why_not"])
        note = f"{variant.name}: kernels are not related to source operators: {why_not}"
        if why_not and note not in self.measurement.notes:
            self.measurement.notes.append(note)

    def _round(self, processes: LaunchProcesses, launch: int) -> None:
        """Measure both variants; the order of variants and of the kinds of block is random."""
        blocks = [(variant, inside) for variant in self._variants for inside in (False, True)]
        self._chance.shuffle(blocks)
        plain: dict[str, float] = {}
        answers: dict[str, dict[str, Any]] = {}
        disturbed = False
        for variant, inside in blocks:
            if inside:
                iterations = self._iterations(variant)
                answers[variant.name] = self._ask(
                    processes,
                    variant,
                    "instrumented",
                    variant=variant.name,
                    iterations=iterations,
                    trace=self._trace_of(variant),
                )
                disturbed = disturbed or bool(answers[variant.name]["faulting"])
            else:
                plain[variant.name], dirty = self._time(processes, variant)
                disturbed = disturbed or dirty
        sides = [
            MeasuredSide(
                plain_ns=plain[variant.name],
                instrumented_ns=float(answers[variant.name]["iteration_ns"]),
                events=float(answers[variant.name]["events"]),
                rows=tuple(_row(fields) for fields in answers[variant.name]["rows"]),
            )
            for variant in self._variants
        ]
        self.measurement.rounds.append(
            MeasuredRound(launch=launch, baseline=sides[0], candidate=sides[1], disturbed=disturbed)
        )

    def _time(self, processes: LaunchProcesses, variant: Variant) -> tuple[float, bool]:
        plan = self._prepared.plans[variant.name]
        answer = self._ask(
            processes,
            variant,
            "block",
            variant=variant.name,
            inner=plan.inner,
            samples=plan.samples,
            prime=max(1, plan.prime),
            settle=processes.several_processes,
            flush_l2=self._settings.flush_l2,
        )
        samples = [float(sample) for sample in answer["samples_ns"]]
        dirty = block_check.judge(
            block_check.reading_from(answer["readings"], {}),
            wall_ns=int(answer["wall_ns"]),
            samples=len(samples),
            threads=threads_of(variant, self._settings),
        )
        limit_ns = LONGEST * median(samples)
        return fmean(one for one in samples if one <= limit_ns), bool(dirty)

    def _ask(
        self, processes: LaunchProcesses, asked: Variant, verb: str, /, **fields: Any
    ) -> dict[str, Any]:
        return processes.ask(asked, verb, phase="timing", **fields)

    def _say(self, text: str, number: int) -> None:
        self._listener(
            Event(
                kind="phase",
                text=text,
                workload=short_label(self._workload),
                fraction=number / self._launches,
            )
        )


def _row(fields: list[Any]) -> OperatorRow:
    name, sources, duration_ns, calls, nested, moved_bytes = fields
    return OperatorRow(
        name=str(name),
        sources=tuple(Source.of(one) for one in sources),
        duration_ns=float(duration_ns),
        calls=float(calls),
        nested=float(nested),
        moved_bytes=float(moved_bytes),
    )
