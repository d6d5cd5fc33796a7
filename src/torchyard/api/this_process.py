"""Run a launch of `bench` in this process, for callables that another process cannot import."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from torchyard.bench.launch import LaunchProcesses, VariantFailed
from torchyard.bench.session import WorkloadSession
from torchyard.core.comparison import Comparison, Failure
from torchyard.core.events import ignore_events
from torchyard.core.study import Budget, MeasureSettings, Study, Variant, Workload
from torchyard.machine.facts import read_facts
from torchyard.results.run_writer import RunWriter

if TYPE_CHECKING:
    from torchyard.worker.bench.this_process import ThisProcessService


FEWEST_BLOCKS: Final = 24
"""Blocks are shorter than usual if fewer than this number would fit into the time."""


class _ThisProcess(LaunchProcesses):
    """The "processes" of a launch that are this process; exceptions of callables propagate."""

    def __init__(
        self,
        workload: Workload,
        variants: Sequence[Variant],
        settings: MeasureSettings,
        *,
        service: ThisProcessService,
        **options: Any,
    ) -> None:
        super().__init__(workload, variants, settings, **options)
        self._service = service

    def __enter__(self) -> Self:
        for key, variants in self._groups.items():
            self.hellos[key] = self._service.hello()
            self.built[key] = self._build_process(variants, None)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def ask(
        self,
        variant: Variant,
        verb: str,
        /,
        *,
        phase: str,
        limit_s: float | None = None,
        **fields: object,
    ) -> dict[str, Any]:
        """Answer the request here. There is no time limit: nothing could end the call."""
        del limit_s

        def answer() -> dict[str, Any]:
            answered: dict[str, Any] = getattr(self._service, verb)(**fields)
            return answered

        if verb != "measure":
            return self._timeline.ask(verb, variant.name, answer)
        try:
            return self._timeline.ask(verb, variant.name, answer)
        except Exception as error:  # metrics are optional
            failure = Failure(kind="raised", phase=phase, variant=variant.name, message=str(error))
            raise VariantFailed(failure, process_alive=True) from error


def local_settings(service: ThisProcessService, time_s: float) -> MeasureSettings:
    """Return the settings for this process: its own number of threads, and no data relocation."""
    return MeasureSettings(
        block_s=min(MeasureSettings.block_s, time_s / FEWEST_BLOCKS),
        threads=int(service.hello()["threads"]),
        reseat="off",
        start="fresh",
    )


def compare_here(
    service: ThisProcessService,
    workload: Workload,
    baseline: Variant,
    candidate: Variant,
    *,
    time_s: float,
    note: str,
    run: Path | None,
) -> Comparison:
    """Compare two variants in one launch that is this process; record it in the folder `run`."""
    study = Study(
        name="compare",
        baseline=baseline,
        candidates=(candidate,),
        workloads=(workload,),
        budget=Budget(time_s=time_s, min_launches=1, max_launches=1),
        settings=local_settings(service, time_s),
    )
    with tempfile.TemporaryDirectory(prefix="torchyard-") as name:
        folder = Path(name)
        writer = RunWriter.create(
            run or folder / "run",
            study=study,
            command=["torchyard.compare"],
            machine=read_facts(),
        )
        with _finished(writer), service.preserving():
            session = WorkloadSession(
                study,
                workload,
                recorder=writer,
                log_folder=folder / "logs",
                scratch=folder / "scratch",
                listener=ignore_events,
                chance=random.Random(),
                processes_of=partial(_ThisProcess, service=service),
            )
            result = session.run()[0]
            result = replace(result, notes=(*result.notes, note))
            writer.add_comparison(result)
            return result


@contextmanager
def _finished(writer: RunWriter) -> Iterator[None]:
    """Record how the block ended."""
    state = "failed"
    try:
        yield
        state = "finished"
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    finally:
        writer.finish(state)
