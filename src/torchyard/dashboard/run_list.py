"""The list of runs: what the page and its data show. Asks the archive, renders nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torchyard.core.comparison import Verdict
from torchyard.core.records import encode
from torchyard.core.stored import RunEntry
from torchyard.dashboard.archive import Archive
from torchyard.dashboard.paging import Paging, page_of
from torchyard.dashboard.queries import PAGE_SIZE, RunColumn, RunsRequest

__all__ = ["FIELDS", "run_record", "run_table", "runs_data"]

FIELDS: Final = (
    ("study", "Study", "text, * and ?"),
    ("workload", "Workload", "kernels/*"),
    ("candidate", "Candidate", "inductor*"),
    ("revision", "Revision", ""),
    ("machine", "Machine", ""),
    ("since", "From", ""),
    ("until", "To", ""),
)
"""Name, label and an example of each filter."""

_KEYS: Final[dict[RunColumn, Callable[[RunEntry], Any]]] = {
    "started": lambda run: run.started,
    "study": lambda run: run.study.lower(),
    "machine": lambda run: run.machine.lower(),
    "torch": lambda run: run.torch.lower(),
    "revision": lambda run: run.revision,
    "comparisons": lambda run: run.comparisons,
    "slower": lambda run: dict(run.verdicts).get(Verdict.SLOWER, 0),
}


def run_table(
    archive: Archive, request: RunsRequest, *, size: int = PAGE_SIZE
) -> tuple[list[RunEntry], Paging]:
    """One page of the runs that were asked for."""
    found = archive.runs(request.wanted)
    if request.sort != "started" or not request.falling:
        # Newest first within equals, whichever way the column goes.
        found.sort(key=_KEYS[request.sort], reverse=request.falling)
    shown, paging = page_of(found, request.page, size=size)
    return list(shown), paging


def runs_data(archive: Archive, request: RunsRequest) -> dict[str, Any]:
    """The same as plain values."""
    shown, paging = run_table(archive, request)
    return {
        "total": paging.total,
        "page": paging.page,
        "pages": paging.pages,
        "runs": [run_record(entry) for entry in shown],
    }


def run_record(entry: RunEntry) -> dict[str, Any]:
    """One run as plain values; where it lies on the disk is nobody's business."""
    record: dict[str, Any] = encode(entry)
    del record["folder"]
    record["verdicts"] = {str(verdict): count for verdict, count in entry.verdicts}
    return record
