"""Label and format the values of a GPU: each field of a reading says how it is shown as a fact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from typing import Any

from torchyard.machine.gpu.compute_processes import GpuProcess
from torchyard.machine.model import Fact


def shown_as(label: str, form: str | Callable[[Any], str] = "{}") -> Any:
    """Return a dataclass field of type `Answer` that is shown under this label.

    `form` is a format such as `{} MHz`, or a function.
    """
    return field(metadata={"label": label, "form": form if callable(form) else form.format})


def facts_of_fields(section: str, reading: Any) -> list[Fact]:
    """Return the facts of a reading, in the order of its fields."""
    facts: list[Fact] = []
    for item in fields(reading):
        if item.metadata:
            label, answer = item.metadata["label"], getattr(reading, item.name)
            if answer.value is None:
                facts.append(Fact(section=section, name=label, unavailable=answer.because))
            else:
                value = item.metadata["form"](answer.value)
                facts.append(Fact(section=section, name=label, value=value))
    return facts


def on_off(state: bool) -> str:
    """Format a switch."""
    return "on" if state else "off"


def gib(size_bytes: int) -> str:
    """Format an amount of memory."""
    return f"{size_bytes / 2**30:.1f} GiB"


def clock_range(clocks: tuple[int, ...]) -> str:
    """Format a list of clocks by its ends."""
    if len(clocks) == 1:
        return f"{clocks[0]} MHz"
    return f"{len(clocks)} from {min(clocks)} to {max(clocks)} MHz" if clocks else "none"


def process_list(processes: tuple[GpuProcess, ...]) -> str:
    """Format processes with their kind, memory and owner."""
    return ", ".join(_process(process) for process in processes) or "none"


def _process(process: GpuProcess) -> str:
    memory = "" if process.memory_bytes is None else f", {gib(process.memory_bytes)}"
    whose = {"ours": ", ours", "other": "", "unknown": ", not visible from here"}[process.owner]
    name = f" {process.name}" if process.name else ""
    return f"{process.pid}{name} ({process.kind}{memory}{whose})"
