"""Measure rounds of a workload: each revision is a target, and those of a round run in one launch."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from torchyard.bench.launch import LaunchProcesses, VariantFailed, draw_launch, threads_of
from torchyard.bench.preparation import (
    PreparationState,
    check_accuracy,
    compile_variant,
    measure_metrics,
    warm_up,
)
from torchyard.bench.rounds import run_rounds
from torchyard.bisect.failures import FAILED, PASSED
from torchyard.bisect.model import Request, Revision, RevisionFailed, Round, SearchFolder
from torchyard.bisect.places import Invocation, Places
from torchyard.bisect.program_rounds import ProgramRounds
from torchyard.core.block import Block, GuardReading
from torchyard.core.comparison import AccuracyStatus
from torchyard.core.study import FILE_SUITE, Study, Variant, split_user_file
from torchyard.machine.guards.gpu_guard import GpuGuard
from torchyard.stats.pairs import MIN_CLEAN_PAIRS

TIMING_S: Final = 1.0
"""Timed blocks of one launch."""
MIN_ROUNDS: Final = 5
REFERENCE: Final = "-reference"
"""Suffix of the variant that computes the reference of the accuracy check."""


def variant_of(study: Study, name: str, place: Invocation) -> Variant:
    """Return the variant of a revision: the baseline of the study, in the target of its place."""
    own, workload = study.baseline, study.workloads[0]
    variables = {key: value for key, value in place.variables.items() if value is not None}
    file = ""
    if place.repository is not None:
        variables.setdefault("PYTHONPATH", str(place.folder))
        if workload.suite == FILE_SUITE:
            path, attribute = split_user_file(workload.name)
            inside = place.folder / Path(path).relative_to(place.repository)
            file = f"{inside}:{attribute}" if attribute else str(inside)
    target = replace(
        own.target,
        name=name,
        python=place.replacements.get("python", own.target.python),
        variables=tuple({**dict(own.target.variables), **variables}.items()),
    )
    return replace(own, name=name, target=target, file=file)


class WorkloadRounds(ProgramRounds):
    """Runs the workload of a request in the target of each revision."""

    def __init__(
        self,
        request: Request,
        study: Study,
        places: Places,
        folder: SearchFolder,
        *,
        limit_s: float,
        good: str,
        signatures: bool = False,
    ) -> None:
        """`good` is the name of the good end; its results are the reference of eager variants.

        `signatures` says whether signatures are computed before the first timing of a revision.
        """
        super().__init__(request, places, folder, limit_s=limit_s)
        self.study = study
        self._workload = self.study.workloads[0]
        self._settings = replace(self.study.settings, check_accuracy=False, step_limit_s=limit_s)
        self._good = good
        self._signs = signatures and request.metric == "time"
        self._variants: dict[str, Variant] = {}
        self._prepared = PreparationState()
        self._gpu = GpuGuard(self._workload.device)

    def measure(self, revisions: Sequence[Revision], number: int) -> Round:
        """Measure all revisions; targets that are not ready are prepared before."""
        variants = [self.variant(one.commit) for one in revisions]
        self._chance.shuffle(variants)
        started_s = time.monotonic()
        known_signatures = self._folder.state.signatures
        signatures = {
            one.name: self._signature(one)
            for one in variants
            if self._signs and one.name not in known_signatures
        }
        if self._metric == "time":
            blocks = self._timed(variants, number)
        else:
            value_of = {
                "memory": self._memory,
                "compile-time": self._compile_time,
                "accuracy": self._wrong,
                "failure": self._failed,
            }[self._metric]
            blocks = tuple(
                _block(one.name, value_of(one), number, place) for place, one in enumerate(variants)
            )
        took_s = time.monotonic() - started_s
        return Round(blocks=blocks, took_s=took_s, signatures=signatures)

    def variant(self, name: str) -> Variant:
        """Return the variant of a revision, whose target is ready."""
        if name not in self._variants:
            self._variants[name] = variant_of(self.study, name, self._place(name))
        return self._variants[name]

    @contextmanager
    def _launch(self, variants: Sequence[Variant]) -> Iterator[LaunchProcesses]:
        """Start new processes with empty caches; a failure is that of a revision."""
        with TemporaryDirectory(prefix="torchyard-bisect-") as folder:
            logs = self._folder.folder / "logs" / "launch"
            shutil.rmtree(logs, ignore_errors=True)
            logs.mkdir(parents=True)
            try:
                with LaunchProcesses(
                    self._workload,
                    variants,
                    self._settings,
                    draw=draw_launch(self._chance),
                    log_folder=logs,
                    scratch=Path(folder),
                ) as processes:
                    yield processes
            except VariantFailed as failed:
                name = failed.failure.variant.removesuffix(REFERENCE)
                text = f"{failed.failure.phase}: {failed.failure.message}"
                raise RevisionFailed(name, text) from failed

    def _timed(self, variants: Sequence[Variant], number: int) -> tuple[Block, ...]:
        """Return one block per revision: the median over the clean blocks of a launch.

        With one thread on the CPU it is the shortest CPU time, which excludes waiting for a core: other
        programs can only add to it.
        """
        rounds: list[list[Block]] = []
        with self._launch(variants) as processes:
            for variant in variants:
                compile_variant(processes, variant)
            for variant in variants:
                warm_up(processes, variant, self._prepared)
            run_rounds(
                processes,
                self._prepared,
                launch=number,
                seconds=TIMING_S,
                min_rounds=MIN_ROUNDS,
                chance=self._chance,
                gpu=self._gpu,
                watch=self._watch.guards,
                on_round=rounds.append,
            )
        clean = [one for one in rounds if not any(block.dirty for block in one)]
        used = clean if len(clean) >= MIN_CLEAN_PAIRS else rounds
        blocks = []
        for place, variant in enumerate(variants):
            if self._workload.device == "cpu" and threads_of(variant, self._settings) == 1:
                own = [block for one in rounds for block in one if block.variant == variant.name]
                cpu_ns = min(
                    (block.guard.cpu_ns or 0) / (block.inner * len(block.samples_ns))
                    for block in own
                )
                blocks.append(_block(variant.name, max(cpu_ns, 1.0), number, place))
                continue
            own = [block for one in used for block in one if block.variant == variant.name]
            time_ns = median(block.median_ns for block in own)
            reasons = () if used is clean else tuple({r for block in own for r in block.dirty})
            blocks.append(replace(_block(variant.name, time_ns, number, place), dirty=reasons))
        return tuple(blocks)

    def _memory(self, variant: Variant) -> float:
        """Return the peak memory of an iteration."""
        with self._launch([variant]) as processes:
            prepared = PreparationState()
            measure_metrics(processes, variant, prepared)
        metrics = prepared.metrics[variant.name]
        if not metrics.peak_memory_bytes:
            why = dict(metrics.unavailable).get("peak_memory_bytes", "no memory is used")
            raise RevisionFailed(variant.name, f"--metric memory: {why}")
        return float(metrics.peak_memory_bytes)

    def _signature(self, variant: Variant) -> dict[str, str]:
        """Return digests of operators, generated code, graph breaks and peak memory; empty if it fails."""
        try:
            with self._launch([variant]) as processes:
                prepared = PreparationState()
                measure_metrics(processes, variant, prepared)
                rows = processes.ask(
                    variant, "operators", phase="metrics", variant=variant.name, iterations=1
                )["rows"]
                code = generated_code(processes.cache)
        except RevisionFailed:
            return {}  # timing fails, too, or needs no profiler
        metrics = prepared.metrics[variant.name]
        values = {
            "operators": sorted([str(row["name"]), int(row["calls"])] for row in rows),
            "generated code": code,
            "graph breaks": [metrics.graphs, sorted(map(list, metrics.graph_breaks))],
            "peak bytes": metrics.peak_memory_bytes,
        }
        return {
            name: hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
            for name, value in values.items()
            if value
        }

    def _compile_time(self, variant: Variant) -> float:
        """Return the time of the first call, with empty caches, less that of an iteration."""
        with self._launch([variant]) as processes:
            prepared = PreparationState()
            warm_up(processes, variant, prepared)
        compile_s = prepared.first_calls_s[variant.name][0]
        return max(1.0, compile_s * 1e9 - prepared.iteration_ns[variant.name])

    def _wrong(self, variant: Variant) -> float:
        """Check the results against eager code of the target; of eager code, against the good end."""
        baseline = replace(
            variant, name=variant.name + REFERENCE, backend="eager", precision="float32", options=()
        )
        if (variant.backend, variant.precision) == ("eager", "float32"):
            baseline = replace(self.variant(self._good), name=self._good + REFERENCE)
        prepared = PreparationState()
        with self._launch([baseline, variant]) as processes, TemporaryDirectory() as folder:
            check_accuracy(
                processes, baseline, variant, Path(folder) / "reference.pt", prepared, last=True
            )
        accuracy = prepared.accuracy[variant.name]
        if accuracy.status is AccuracyStatus.FAIL:
            return FAILED
        if not accuracy.right:
            raise RevisionFailed(variant.name, f"--metric accuracy: {accuracy.status.value}")
        return PASSED

    def _failed(self, variant: Variant) -> float:
        """Whether the workload cannot be built, compiled or called."""
        try:
            with self._launch([variant]) as processes:
                compile_variant(processes, variant)
        except RevisionFailed as failure:
            if failure.why.startswith("start:"):
                raise
            return FAILED
        return PASSED


_COMMENT: Final = re.compile(r"^\s*(#|//).*$", re.MULTILINE)


def generated_code(cache: Path) -> list[str]:
    """Return the generated files of a launch without comments and paths, in an order that does not depend on names."""
    texts = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in cache.rglob("*")
        if path.suffix in {".py", ".cpp", ".cu"} and path.is_file()
    ]
    texts = [_COMMENT.sub("", text).replace(str(cache), "") for text in texts]
    return sorted(hashlib.sha256(text.encode()).hexdigest() for text in texts)


def _block(name: str, value: float, number: int, position: int) -> Block:
    return Block(
        launch=number,
        round=0,
        position=position,
        variant=name,
        seat=0,
        inner=1,
        samples_ns=(value,),
        started_ns=0,
        wall_ns=0,
        guard=GuardReading(),
        whole_process=True,
    )
