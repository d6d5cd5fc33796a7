"""Run an audit: measure identical code against itself, with the load monitor running.

Uses the measurement of `torchyard bench` as it is, so that its result is what a comparison would
encounter: the two sides differ in nothing but their process.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from torchyard.audit.model import Audit
from torchyard.audit.noise_analysis import AuditData, audit_of
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
from torchyard.errors import MissingTool, UsageError, WorkerFailed
from torchyard.machine.facts.run_facts import read_facts
from torchyard.machine.knob import Machine
from torchyard.machine.monitor.load_monitor import LoadMonitor
from torchyard.machine.system.cores import available_cores
from torchyard.process.tree import sweep_orphans

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
        return audit_of(
            AuditData(
                started=self._started,
                asked_s=self._plan.seconds,
                interrupted=interrupted,
                label=self._plan.label,
                machine=tuple(self._facts.items()),
                target=_target_facts(self._plan.target, self._recorder.target),
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
    if failure.kind in ("no-torch", "no-python"):
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


def _target_facts(target: Target, hello: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    versions = ((name, str(hello[name])) for name in ("python", "torch") if name in hello)
    return (("interpreter", target.python), *versions)


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
