"""The batch size of a cell, where a sweep searches for the largest: once, for all attempts."""

from __future__ import annotations

from torchyard.core.batch_search import BatchTry
from torchyard.core.events import Event, Listener
from torchyard.core.sweep import Cell, CellBatch
from torchyard.errors import WorkerFailed
from torchyard.results.sweep_folder import SweepFolder
from torchyard.workflow.batch_search import with_largest_batches

__all__ = ["with_batch"]


def with_batch(folder: SweepFolder, cell: Cell, listener: Listener) -> tuple[Cell, tuple[str, ...]]:
    """The cell with the largest batch that fits, and what is to be noted of it.

    One whose workload names a size stays as it is, and so does one that has no batch.
    """
    kept = folder.batch(cell.id)
    if kept.over:
        return folder.status(cell.id).cell, (kept.text,)
    (workload,) = cell.study.workloads
    if workload.batch_size is not None:
        return cell, ()

    def told(one: BatchTry) -> None:
        said = "fits" if one.fits else one.reason or "does not fit"
        text = f"searching: batch size {one.batch_size}, {one.variant}: {said}"
        folder.keep_batch(cell.id, CellBatch(text=text))
        listener(Event(kind="phase", text=text, workload=workload.label))

    try:
        study, notes = with_largest_batches(cell.study, told=told)
    except WorkerFailed as error:
        # No size would mend it; the run says what is wrong, as it does without a search.
        return cell, (f"batch size not searched: {error.what}",)
    size = study.workloads[0].batch_size
    text = "; ".join(notes)
    folder.keep_batch(cell.id, CellBatch(over=True, batch_size=size, text=text))
    return folder.status(cell.id).cell, (text,)
