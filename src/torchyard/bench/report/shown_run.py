"""A run as people see it: user files have short names. Changes nothing on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchyard.core.block import Block
from torchyard.core.short_names import short_labels, with_short_workloads
from torchyard.core.study import Workload
from torchyard.results.run_reader import Run


@dataclass(frozen=True, kw_only=True)
class _ShownRun(Run):
    """A run whose samples have the labels that are shown."""

    original: Run
    labels: Mapping[str, str]

    def blocks(self, workload: Workload | None = None) -> Iterator[tuple[str, Block]]:
        for label, block in self.original.blocks():
            shown = self.labels.get(label, label)
            if workload is None or shown == workload.label:
                yield shown, block

    def launches(self) -> list[dict[str, Any]]:
        return self.original.launches()


def shown_run(run: Run) -> Run:
    """Return the run with short names of user files; the study keeps their paths."""
    labels = short_labels([one.workload for one in run.comparisons])
    if all(label == shown for label, shown in labels.items()):
        return run
    return _ShownRun(
        folder=run.folder,
        id=run.id,
        state=run.state,
        info=run.info,
        study=run.study,
        comparisons=with_short_workloads(run.comparisons),
        torn_lines=run.torn_lines,
        original=run,
        labels=labels,
    )
