"""The result of a profiler: cost rows, counters and files; stored as `tool-profile.json`.

One shape for every tool, so that reports need to know none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.errors import UsageError
from torchyard.results.directory import home_folder
from torchyard.results.kept_profiles import find_kept, new_kept_folder, read_kept, write_kept

FORMAT: Final = 1


@dataclass(frozen=True, kw_only=True)
class ShapeCost:
    """One set of input shapes of an operator."""

    shapes: str
    calls: int
    self_cost: float


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """An operator, a kernel or a function, and what it cost in the profile's unit."""

    name: str
    where: str = ""
    """The file or library it is in, where the tool knows."""
    calls: int | None = None
    on_device: bool = False
    """A kernel or a copy, in a profile of operators: its time is also in the row of its operator."""
    self_cost: float = 0.0
    """Without what it called."""
    total_cost: float | None = None
    self_device_cost: float = 0.0
    total_device_cost: float = 0.0
    memory_bytes: int = 0
    """Allocated and not given back inside it and what it called."""
    device_memory_bytes: int = 0
    shapes: tuple[ShapeCost, ...] = ()
    """The costliest ones."""

    @property
    def all_self_cost(self) -> float:
        """By what rows are put in order: processor and device together."""
        return self.self_cost + self.self_device_cost


def sum_of_costs(rows: Iterable[CostRow]) -> float:
    """All self costs; what ran on a device is in the rows of kernels and of operators, and counts once."""
    rows = tuple(rows)
    begun = sum(row.self_device_cost for row in rows if not row.on_device)
    ran = sum(row.self_device_cost for row in rows if row.on_device)
    return sum(row.self_cost for row in rows) + max(begun, ran)


@dataclass(frozen=True, kw_only=True)
class CounterValue:
    """A number that was counted over the whole run."""

    name: str
    value: float | None
    """None when this machine cannot count it."""
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class StackCost:
    """A stack, outermost first, and what was spent in its last frame."""

    frames: tuple[str, ...]
    cost: float


@dataclass(frozen=True, kw_only=True)
class KeptFile:
    """A file that is kept beside the profile."""

    name: str
    """Relative to the profile's folder."""
    about: str


@dataclass(frozen=True, kw_only=True)
class ToolProfile:
    """One run of a program under a profiler."""

    tool: str
    format: int = FORMAT
    tool_version: str = ""
    program: tuple[str, ...] = ()
    python: str = ""
    started: str = ""
    state: str = "finished"
    """finished, crashed or interrupted."""
    exit_code: int = 0
    command: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    """What the tool's process was given besides the environment it was started in."""
    shell: str = ""
    """The same as one line for a shell."""
    unit: str = "ns"
    """Of costs: ns, instructions, or the name of an event."""
    row_kind: str = "operator"
    """What a row is: operator, kernel or function."""
    rows: tuple[CostRow, ...] = ()
    rows_left_out: int = 0
    total_cost: float = 0.0
    """Self costs of all rows, also of those left out."""
    recorded_ns: float = 0.0
    steps: int = 0
    recorded_steps: int = 0
    peak_memory_bytes: int = 0
    """Of the process, resident."""
    peak_device_bytes: int = 0
    counters: tuple[CounterValue, ...] = ()
    stacks: tuple[StackCost, ...] = ()
    files: tuple[KeptFile, ...] = ()
    notes: tuple[str, ...] = ()


TOOL_PROFILE_FILE: Final = "tool-profile.json"


def tool_profiles_home() -> Path:
    """The folder that profiles of tools go to when none is named."""
    return home_folder() / "profiles"


def new_tool_folder(folder: Path | None) -> Path:
    """An empty folder: the one that is named, or a new one at home."""
    return new_kept_folder(folder, home=tool_profiles_home())


def write_tool_profile(folder: Path, profile: ToolProfile) -> Path:
    """Keep it; a reader sees all of it or none."""
    return write_kept(folder / TOOL_PROFILE_FILE, profile)


def find_tool_profile(text: str) -> Path:
    """The file of a profile: `latest`, a folder, or the file itself."""
    none_yet = UsageError(
        "there is no profile of a tool yet",
        hint="make one with `torchyard profile --tool torch SCRIPT`",
    )
    home = tool_profiles_home()
    return find_kept(text, home=home, file_name=TOOL_PROFILE_FILE, none_yet=none_yet)


def read_tool_profile(path: Path) -> ToolProfile:
    """A kept profile; raises ResultsDamaged when it is broken or newer than we are."""
    return read_kept(ToolProfile, path, newest=FORMAT)
