"""Run an audit: measure identical code against itself, with the load monitor running.

Uses the measurement of `torchyard bench` as it is, so that its result is what a comparison would
encounter: the two sides differ in nothing but their process. Spreads, drift and disturbances are
derived from blocks and monitor samples, which are joined by time.
"""

from __future__ import annotations

import math
import os
import random
import sys
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

from torchyard.audit.model import (
    Audit,
    AuditLaunch,
    AuditSetup,
    BlockPoint,
    Disturbance,
    Drift,
    effects_of,
    log_levels_of,
    spreads_of,
)
from torchyard.audit.variation import (
    MINUTES,
    deviation,
    find_drift,
    resolvable_in,
    spread_between,
    spread_within,
)
from torchyard.bench.session import WorkloadSession
from torchyard.core.block import Block
from torchyard.core.comparison import Comparison
from torchyard.core.cpu_lists import cpu_list
from torchyard.core.events import Listener, ignore_events
from torchyard.core.study import (
    Budget,
    Environment,
    MeasureSettings,
    Study,
    Target,
    Variant,
    Workload,
)
from torchyard.core.units import format_count
from torchyard.errors import MissingTool, UsageError, WorkerFailed
from torchyard.machine.facts import read_facts
from torchyard.machine.knob import Machine
from torchyard.machine.load_monitor import KINDS, LoadMonitor, LoadSample, NoiseSource, advice_for
from torchyard.machine.model import UNAVAILABLE
from torchyard.machine.system.cores import available_cores
from torchyard.process.ending import MISSING_TARGET
from torchyard.process.tree import sweep_orphans
from torchyard.stats.pairs import PairedLaunches, pair_blocks

MOST_SHOWN: Final = 8
LEAST_SHARE: Final = 0.05
"""A source above its threshold in fewer blocks, and below it on average, is not reported."""
FEWEST_BLOCKS: Final = 8
"""Blocks with and without a source, at least, to estimate how much longer blocks took."""


def find_disturbances(
    blocks: Sequence[Block], samples: Sequence[LoadSample]
) -> tuple[Disturbance, ...]:
    """Return the noise sources, largest multiple of their threshold first."""
    if not blocks or not samples:
        return ()
    block_amounts = _amounts_by_block(blocks, samples)
    excess = _excess(blocks)
    ranked: list[tuple[float, Disturbance]] = []
    for source in sorted({source for amounts in block_amounts for source in amounts}):
        kind = KINDS[source.kind]
        amounts = [by_source.get(source, 0.0) for by_source in block_amounts]
        mean = sum(amounts) / len(amounts)
        affected = [amount > kind.limit for amount in amounts]
        share = sum(affected) / len(affected)
        if share < LEAST_SHARE and mean <= kind.limit:
            continue
        disturbance = Disturbance(
            kind=source.kind,
            what=source.what,
            amount=mean,
            unit=kind.unit,
            share_of_blocks=share,
            slower=_slower(excess, affected),
            advice=advice_for(source),
        )
        ranked.append((mean / kind.limit, disturbance))
    ranked.sort(key=lambda item: -item[0])
    return tuple(disturbance for _, disturbance in ranked[:MOST_SHOWN])


def _amounts_by_block(
    blocks: Sequence[Block], samples: Sequence[LoadSample]
) -> list[dict[NoiseSource, float]]:
    """Return the amount of every source for each block, averaged over the time of the block."""
    starts = [sample.started_ns for sample in samples]
    amounts_by_block: list[dict[NoiseSource, float]] = []
    for block in blocks:
        ended_ns = block.started_ns + block.wall_ns
        amounts: dict[NoiseSource, float] = defaultdict(float)
        first = max(0, bisect_right(starts, block.started_ns) - 1)
        for sample in samples[first:]:
            if sample.started_ns >= ended_ns:
                break
            shared_ns = min(ended_ns, sample.ended_ns) - max(block.started_ns, sample.started_ns)
            if shared_ns > 0:
                for source, amount in sample.amounts.items():
                    amounts[source] += amount * shared_ns / max(1, block.wall_ns)
        amounts_by_block.append(dict(amounts))
    return amounts_by_block


def _excess(blocks: Sequence[Block]) -> list[float]:
    """Return the log time of each block, relative to the median of its own process."""
    logs = [math.log(block.median_ns) for block in blocks]
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for block, log in zip(blocks, logs, strict=True):
        groups[block.launch, block.variant].append(log)
    middles = {key: median(values) for key, values in groups.items()}
    return [
        log - middles[block.launch, block.variant] for block, log in zip(blocks, logs, strict=True)
    ]


def _slower(excess: Sequence[float], affected: Sequence[bool]) -> float | None:
    disturbed = [value for value, is_affected in zip(excess, affected, strict=True) if is_affected]
    quiet = [value for value, is_affected in zip(excess, affected, strict=True) if not is_affected]
    if min(len(disturbed), len(quiet)) < FEWEST_BLOCKS:
        return None
    return math.expm1(median(disturbed) - median(quiet))


MOST_POINTS: Final = 600
"""Blocks in the chart; more would overlap."""
BENCH_LAUNCHES: Final = 60
"""Default maximum of `torchyard bench --launches`."""


@dataclass(frozen=True, kw_only=True)
class AuditData(AuditSetup):
    """Everything that an audit measured."""

    sides: tuple[str, str]
    blocks: tuple[Block, ...]
    launches: tuple[Mapping[str, Any], ...]
    """Records of the session: `launch`, `start_s`, `timing.wall_s`."""
    comparison: Comparison
    samples: tuple[LoadSample, ...] = ()
    monitor_cost: float = 0.0
    unavailable: Mapping[str, str] = field(default_factory=dict)


def audit_of(data: AuditData) -> Audit:
    """Return the audit of the measured data."""
    paired = pair_blocks(data.blocks, *data.sides)
    launches = _launches(data, paired)
    between = spread_between(effects_of(launches))
    launch_s = _launch_s(data)
    estimate = data.comparison.estimate
    dirty = [block for block in data.blocks if block.dirty]
    chosen = _usable(data.blocks)
    every = max(1, -(-len(data.blocks) // MOST_POINTS))
    resolvable = (
        tuple(resolvable_in(minutes, between, launch_s=launch_s) for minutes in MINUTES)
        if launch_s
        else ()
    )
    return Audit(
        **{item.name: getattr(data, item.name) for item in fields(AuditSetup)},
        measured_s=launches[-1].ended_s if launches else 0.0,
        time_ns=median(block.median_ns for block in chosen) if chosen else None,
        launches=launches,
        pairs=paired.pairs,
        blocks=len(data.blocks),
        dirty_blocks=len(dirty),
        dirty=tuple(Counter(why for block in dirty for why in block.dirty).most_common()),
        within=spread_within(spreads_of(launches)),
        between=between,
        unpaired=spread_between(log_levels_of(launches)),
        drift=_drift(launches, chosen),
        verdict=data.comparison.state,
        ratio=None if estimate is None or not estimate.launches else estimate.speedup,
        ratio_interval=None if estimate is None else estimate.interval,
        resolvable=resolvable,
        assumptions=_assumptions(data, launches, launch_s),
        disturbances=find_disturbances(data.blocks, data.samples),
        watched=(
            ("load samples", str(len(data.samples))),
            ("cost of sampling", f"{data.monitor_cost:.1%} of a core"),
            *((name, UNAVAILABLE + why) for name, why in data.unavailable.items()),
        ),
        series=tuple(
            BlockPoint(
                at_s=_since_first_s(data.blocks, block),
                launch=block.launch,
                side=data.sides.index(block.variant),
                time_ns=block.median_ns,
                dirty=bool(block.dirty),
            )
            for block in data.blocks[::every]
        ),
        series_every=every,
        notes=(*data.comparison.untrusted, *data.comparison.notes),
    )


def _launches(data: AuditData, paired: PairedLaunches) -> tuple[AuditLaunch, ...]:
    """Return the launches in which both sides have a block, in order."""
    by_launch: dict[int, dict[str, list[Block]]] = defaultdict(lambda: defaultdict(list))
    for block in data.blocks:
        by_launch[block.launch][block.variant].append(block)
    starts = {record["launch"]: float(record["start_s"]) for record in data.launches}
    complete = [
        number
        for number in sorted(by_launch)
        if all(by_launch[number][side] for side in data.sides)
    ]
    launches: list[AuditLaunch] = []
    for number, pairs in zip(complete, paired.medians, strict=True):
        blocks = [block for side in data.sides for block in by_launch[number][side]]
        levels = [
            median(block.median_ns for block in _usable(by_launch[number][side]))
            for side in data.sides
        ]
        launches.append(
            AuditLaunch(
                began_s=min(_since_first_s(data.blocks, block) for block in blocks),
                ended_s=max(
                    _since_first_s(data.blocks, block) + block.wall_ns / 1e9 for block in blocks
                ),
                start_s=starts.get(number, 0.0),
                levels_ns=(levels[0], levels[1]),
                effect=median(pairs) if pairs else None,
                spread=deviation(pairs),
                pairs=len(pairs),
                dirty_blocks=sum(bool(block.dirty) for block in blocks),
                blocks=len(blocks),
            )
        )
    return tuple(launches)


def _usable(blocks: Sequence[Block]) -> Sequence[Block]:
    """Return the clean blocks, or all blocks if none is clean."""
    return [block for block in blocks if not block.dirty] or blocks


def _since_first_s(blocks: Sequence[Block], block: Block) -> float:
    """Return the start of a block since the first one; all processes share one clock."""
    return (block.started_ns - blocks[0].started_ns) / 1e9


def _launch_s(data: AuditData) -> float:
    """Return the cost of a launch with its start; the first start also calibrates, so it is skipped."""
    if not data.launches:
        return 0.0
    starts = [float(record["start_s"]) for record in data.launches]
    measuring = [float(record["timing"]["wall_s"]) for record in data.launches]
    return median(starts[1:] or starts) + sum(measuring) / len(measuring)


def _drift(launches: Sequence[AuditLaunch], blocks: Sequence[Block]) -> Drift | None:
    if not blocks:
        return None
    first_ns = min(block.started_ns for block in blocks)
    return find_drift(
        [(one.began_s + one.ended_s) / 120.0 for one in launches],
        [sum(math.log(level) for level in one.levels_ns) / 2.0 for one in launches],
        block_minutes=[(block.started_ns - first_ns) / 60e9 for block in blocks],
        block_levels=[math.log(block.median_ns) for block in blocks],
    )


def _assumptions(
    data: AuditData, launches: Sequence[AuditLaunch], launch_s: float
) -> tuple[str, ...]:
    if not launches or not launch_s:
        return ()
    pairs = median(one.pairs for one in launches)
    threads = format_count(data.threads, "thread")
    most_launches = int(60 * MINUTES[-1] / launch_s)
    assumptions = [
        f"launches as in this audit: {launch_s:.1f} s each, start included, with {pairs:.0f} pairs",
        "80% power, 5% false positives, one analysis at the end, independent launches",
        "variants in separate processes, as two builds need; a shared process resolves more",
        f"a workload as steady as {data.kernel} with {threads}, and unchanged noise",
    ]
    if most_launches > BENCH_LAUNCHES:
        assumptions.append(
            f"as many launches as fit: {MINUTES[-1]} minutes need `torchyard bench --launches "
            f"{most_launches}`; the default maximum is {BENCH_LAUNCHES}"
        )
    return tuple(assumptions)


KERNEL: Final = Workload(suite="kernels", name="layered-mlp", parameters=(("layers", 10),))
"""Takes 1.3 ms with one thread on a Neoverse N1. Has 2 MB of weights, so that caches and pages
matter as they do in larger programs."""
ONE: Final = "one"
OTHER: Final = "other"
LONGEST_LAUNCH_S: Final = 2.0
"""Short launches lose little precision, because processes differ more than pairs within a process;
about nine pairs fit."""
SHORTEST_LAUNCH_S: Final = 1.0
TARGET_LAUNCHES: Final = 15
MIN_LAUNCHES: Final = 3
"""Launches that are completed even if they take twice the time."""
MOST_LAUNCHES: Final = 1000


@dataclass(frozen=True, kw_only=True)
class AuditPlan:
    """What to audit."""

    target: Target = field(default_factory=lambda: Target(name="here", python=sys.executable))
    seconds: float = 60.0
    threads: int | None = None
    """None: one for each available core, as in `torchyard bench`."""
    cores: tuple[int, ...] = ()
    """CPUs to pin to; empty: not pinned."""
    label: str = ""
    seed: int = 1337


class AuditRun:
    """One audit; `audit` can be called at any time, also after an interrupt."""

    def __init__(self, plan: AuditPlan, *, listener: Listener = ignore_events) -> None:
        self._plan = plan
        self._listener = listener
        self._machine = Machine()
        self._recorder = _MemoryRecorder()
        self._cores = plan.cores or _own_cores()
        self._monitor = LoadMonitor(self._machine, cores=self._cores)
        self._session: WorkloadSession | None = None
        self._threads = plan.threads or 0
        self._facts: dict[str, str] = {}
        self._started = ""

    def run(self) -> Audit:
        """Measure for the planned time; raises if the kernel cannot run."""
        sweep_orphans()
        self._facts = read_facts(self._machine.files.root)
        self._started = datetime.now(UTC).isoformat(timespec="seconds")
        with (
            _pinned(self._plan.cores),
            tempfile.TemporaryDirectory(prefix="torchyard-audit-") as folder,
            self._monitor,
        ):
            self._threads = self._plan.threads or available_cores()
            study = _study(self._plan, self._threads)
            self._session = WorkloadSession(
                study,
                KERNEL,
                recorder=self._recorder,
                log_folder=Path(folder) / "logs",
                scratch=Path(folder) / "scratch",
                listener=self._listener,
                chance=random.Random(self._plan.seed),
            )
            (comparison,) = self._session.run()
        _raise_failure(comparison, self._plan.target)
        return self._audit(comparison, interrupted=False)

    def audit(self) -> Audit | None:
        """Return the audit of what was measured so far; None before the first pair."""
        if self._session is None or not self._recorder.blocks:
            return None
        (comparison,) = self._session.comparisons()
        if comparison.failure is not None or not comparison.estimate:
            return None
        return self._audit(comparison, interrupted=True)

    def _audit(self, comparison: Comparison, *, interrupted: bool) -> Audit:
        hello = self._recorder.target
        versions = [(name, str(hello[name])) for name in ("python", "torch") if name in hello]
        return audit_of(
            AuditData(
                started=self._started,
                asked_s=self._plan.seconds,
                interrupted=interrupted,
                label=self._plan.label,
                machine=tuple(self._facts.items()),
                target=(("interpreter", self._plan.target.python), *versions),
                kernel=KERNEL.label,
                threads=self._threads,
                cores=self._cores,
                sides=(ONE, OTHER),
                blocks=tuple(self._recorder.blocks),
                launches=tuple(self._recorder.launches),
                comparison=comparison,
                samples=self._monitor.samples,
                monitor_cost=self._monitor.cost_share,
                unavailable=self._monitor.unavailable,
            )
        )


class _MemoryRecorder:
    """Records a session in memory."""

    def __init__(self) -> None:
        self.target: Mapping[str, object] = {}
        self.launches: list[Mapping[str, Any]] = []
        self.blocks: list[Block] = []

    def add_target(self, name: str, facts: Mapping[str, object]) -> None:  # noqa: ARG002
        self.target = facts

    def add_launch(self, record: Mapping[str, Any]) -> None:
        self.launches.append(record)

    def add_blocks(self, workload: Workload, blocks: Sequence[Block]) -> None:  # noqa: ARG002
        self.blocks.extend(blocks)


def _study(plan: AuditPlan, threads: int) -> Study:
    one = Variant(name=ONE, target=plan.target)
    # A different environment name is enough to get a separate process.
    other = Variant(name=OTHER, target=plan.target, environment=Environment(name="again"))
    launch_s = min(LONGEST_LAUNCH_S, max(SHORTEST_LAUNCH_S, plan.seconds / TARGET_LAUNCHES))
    return Study(
        name="audit",
        baseline=one,
        candidates=(other,),
        workloads=(KERNEL,),
        budget=Budget(
            time_s=plan.seconds,
            precision_goal=0.0,
            launch_s=launch_s,
            min_launches=MIN_LAUNCHES,
            max_launches=MOST_LAUNCHES,
        ),
        settings=MeasureSettings(threads=threads, seed=plan.seed, check_accuracy=False),
    )


def _raise_failure(comparison: Comparison, target: Target) -> None:
    failure = comparison.failure
    if failure is None:
        return
    if failure.kind in MISSING_TARGET:
        raise MissingTool(
            f"an audit needs an interpreter with torch; {target.python} has none",
            why=failure.message,
            hint=f"install it (`{target.python} -m pip install torch`), or use another "
            "interpreter: --target PYTHON or --target build:NAME",
        )
    raise WorkerFailed(
        f"the audit kernel failed ({failure.kind}, {failure.phase}): {failure.message}",
        why=failure.log_tail.strip().rpartition("\n")[2],
        hint=failure.hint,
    )


def _own_cores() -> tuple[int, ...]:
    """Return the affinity of this process; empty if it may run on all CPUs."""
    own_cpus = os.sched_getaffinity(0)
    return tuple(sorted(own_cpus)) if len(own_cpus) < (os.cpu_count() or 1) else ()


@contextmanager
def _pinned(cores: tuple[int, ...]) -> Iterator[None]:
    """Pin every thread of this process; its children inherit the affinity."""
    if not cores:
        yield
        return
    before: dict[int, set[int]] = {}
    try:
        for thread in map(int, os.listdir("/proc/self/task")):  # noqa: PTH208  # names only
            try:
                before[thread] = os.sched_getaffinity(thread)
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:
                continue
            except OSError as error:
                raise UsageError(
                    f"--cores: this process may not run on {cpu_list(cores)}",
                    why=error.strerror or str(error),
                    hint="use CPUs that are online and in the cpuset of this process",
                ) from error
        yield
    finally:
        for thread, allowed in before.items():
            with suppress(OSError):
                os.sched_setaffinity(thread, allowed)
