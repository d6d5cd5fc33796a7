"""`torchyard compare --over-time`: what every run found of one workload."""

from __future__ import annotations

__all__ = ["history_of"]


def history_of(workload: str, format_name: str) -> str:
    """The history of every series that fits, as text in that format."""
    from torchyard.core.stored import Wanted
    from torchyard.errors import NothingToDo, UsageError
    from torchyard.reports.compare_history import HISTORY_FORMATS
    from torchyard.results.index.store import Store

    if format_name not in HISTORY_FORMATS:
        raise UsageError(
            f"--over-time has no form {format_name}",
            hint=f"choose one of {', '.join(HISTORY_FORMATS)}",
        )
    with Store.open() as store:
        store.refresh()
        # A name without its mode means all modes: labels are `kernels/matmul inference`.
        found = store.series(Wanted(workload=workload)) or store.series(
            Wanted(workload=f"{workload} *")
        )
        history = [(series, store.points(series)) for series in found]
    if not history:
        raise NothingToDo(
            f"no run has a number of {workload!r}",
            why=f"looked in {store.home}",
            hint="`torchyard results list` shows the runs; a workload is written like kernels/matmul",
        )
    return HISTORY_FORMATS[format_name](history)
