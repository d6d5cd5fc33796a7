"""The result of a profiler: cost rows, counters and files; stored as `tool-profile.json`.

One shape for every tool, so that reports need to know none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.errors import UsageError
from torchyard.results.directory import find_profile_file, home_folder, read_profile_file

FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class ShapeCost:
    """Cost of an operator for one set of input shapes."""

    shapes: str
    calls: int
    self_cost: float


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """Cost of an operator, kernel or function in the profile's unit."""

    name: str
    where: str = ""
    """File or library, if the tool reports it."""
    calls: int | None = None
    on_device: bool = False
    """A kernel or memory copy in an operator profile; its operator's row contains the time, too."""
    self_cost: float = 0.0
    """Cost without callees."""
    total_cost: float | None = None
    self_device_cost: float = 0.0
    total_device_cost: float = 0.0
    memory_bytes: int = 0
    """Allocated minus freed bytes, callees included."""
    device_memory_bytes: int = 0
    shapes: tuple[ShapeCost, ...] = ()
    """The most expensive shapes."""

    @property
    def all_self_cost(self) -> float:
        """CPU and device self cost together; the sort key of rows."""
        return self.self_cost + self.self_device_cost


def sum_of_costs(rows: Iterable[CostRow]) -> float:
    """Return the sum of all self costs; device time in rows of kernels and of their operators counts once."""
    rows = tuple(rows)
    attributed = sum(row.self_device_cost for row in rows if not row.on_device)
    executed = sum(row.self_device_cost for row in rows if row.on_device)
    return sum(row.self_cost for row in rows) + max(attributed, executed)


@dataclass(frozen=True, kw_only=True)
class CounterValue:
    """A counter over the whole run."""

    name: str
    value: float | None
    """None if the counter is not supported on this machine."""
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class StackCost:
    """A stack, outermost frame first, and the cost of its innermost frame."""

    frames: tuple[str, ...]
    cost: float


@dataclass(frozen=True, kw_only=True)
class KeptFile:
    """A file stored beside the profile."""

    name: str
    """Relative to the profile's folder."""
    about: str


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Data read from a tool's output files."""

    tool_version: str = ""
    """In a result of `Tool.collect`: set if only the target can report it."""
    state: str = ""
    """finished, crashed or interrupted; empty if the output files do not show it."""
    unit: str = "ns"
    """Unit of costs: ns, instructions, or an event name."""
    row_kind: str = "operator"
    """What a row stands for: operator, kernel or function."""
    rows: tuple[CostRow, ...] = ()
    recorded_ns: float = 0.0
    steps: int = 0
    recorded_steps: int = 0
    peak_memory_bytes: int = 0
    """Peak resident memory of the process."""
    peak_device_bytes: int = 0
    counters: tuple[CounterValue, ...] = ()
    stacks: tuple[StackCost, ...] = ()
    files: tuple[KeptFile, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ToolProfile(Collected):
    """One run of a program under a profiler."""

    tool: str
    format: int = FORMAT
    program: tuple[str, ...] = ()
    python: str = ""
    started: str = ""
    state: str = "finished"
    exit_code: int = 0
    command: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    """Environment variables added for the tool's process."""
    shell: str = ""
    """The command as one shell line."""
    rows_left_out: int = 0
    total_cost: float = 0.0
    """Self costs of all rows, including those left out."""


TOOL_PROFILE_FILE: Final = "tool-profile.json"


def tool_profiles_home() -> Path:
    """Return the default directory of tool profiles."""
    return home_folder() / "profiles"


def find_tool_profile(text: str) -> Path:
    """Return the file of a stored profile, given `latest`, a folder or the file itself."""
    hint = "create one with `torchyard profile SCRIPT`"
    return find_profile_file(
        text,
        home=tool_profiles_home(),
        file_name=TOOL_PROFILE_FILE,
        none_yet=UsageError("no stored profile", hint=hint),
    )


def read_tool_profile(path: Path) -> ToolProfile:
    """Read a stored profile; raise ResultsDamaged if it is corrupt or in a newer format."""
    return read_profile_file(ToolProfile, path, newest=FORMAT)
