"""Reads what perf writes as text: counters and stacks. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from torchyard.core.tool_profile import CostRow, CounterValue, StackCost

__all__ = ["Folded", "Frame", "fold_script", "read_counters", "stack_rows"]

_COUNTER_FIELDS: Final = 3
# `python 16525/16525   5025125 cpu-clock:u: `; a name may hold blanks, so numbers anchor the match.
_HEAD: Final = re.compile(
    r"^(?P<comm>\S.*?)\s+(?P<pid>-?\d+)/(?P<tid>-?\d+)\s+(?P<period>\d+)\s+(?P<event>.+?):\s*$"
)
_FRAME: Final = re.compile(r"^\s+[0-9a-f]+\s+(?P<symbol>.+?)(?:\s+\((?P<library>[^()]*|.*)\))?\s*$")
_OURS: Final = re.compile(r"^perf(-exec)?$")
_PYTHON: Final = "py::"
_NO_SYMBOL: Final = "[unknown]"


class Frame(NamedTuple):
    """One function of a stack."""

    symbol: str
    library: str

    @property
    def folded(self) -> str:
        """As one part of a folded stack, where semicolons and ends of lines part."""
        return " ".join(self.symbol.replace(";", ":").split())


@dataclass
class Folded:
    """Stacks, outermost frame first, with what was sampled in them."""

    event: str = ""
    costs: dict[tuple[Frame, ...], float] = field(default_factory=dict)
    samples: int = 0
    pids: set[int] = field(default_factory=set)
    notes: tuple[str, ...] = ()


def fold_script(lines: Iterable[str]) -> Folded:
    """Stacks from `perf script`; samples of perf's own start of the program are left out."""
    folded = Folded()
    head: re.Match[str] | None = None
    frames: list[Frame] = []
    others: set[str] = set()

    def add() -> None:
        if head is None or _OURS.match(head["comm"]):
            return
        event = head["event"].split(":")[0]
        folded.pids.add(int(head["pid"]))
        folded.event = folded.event or event
        if event != folded.event:
            others.add(event)
            return
        stack = tuple(reversed(frames)) or (Frame(_NO_SYMBOL, ""),)
        folded.costs[stack] = folded.costs.get(stack, 0.0) + float(head["period"])
        folded.samples += 1

    for line in lines:
        if not line.strip():
            add()
            head, frames = None, []
        elif not line[0].isspace():
            head, frames = _HEAD.match(line), []
        elif head is not None:
            found = _FRAME.match(line.rstrip("\n"))
            if found is not None:
                frames.append(Frame(found["symbol"], found["library"] or ""))
    add()
    if others:
        folded.notes = (
            f"the table is of {folded.event}; perf.data also has {', '.join(sorted(others))}",
        )
    return folded


def stack_rows(
    folded: Folded, *, most_stacks: int
) -> tuple[tuple[CostRow, ...], tuple[StackCost, ...]]:
    """Functions by what was spent in them, and the costliest stacks."""
    own: dict[Frame, float] = {}
    whole: dict[Frame, float] = {}
    for frames, cost in folded.costs.items():
        own[frames[-1]] = own.get(frames[-1], 0.0) + cost
        for frame in set(frames):  # a function that calls itself is on the stack twice
            whole[frame] = whole.get(frame, 0.0) + cost
    rows = tuple(
        CostRow(
            name=frame.symbol.removeprefix(_PYTHON),
            where="Python" if frame.symbol.startswith(_PYTHON) else frame.library,
            self_cost=own.get(frame, 0.0),
            total_cost=cost,
        )
        for frame, cost in whole.items()
    )
    costliest = sorted(folded.costs.items(), key=lambda item: -item[1])[:most_stacks]
    stacks = tuple(
        StackCost(frames=tuple(frame.folded for frame in frames), cost=cost)
        for frames, cost in costliest
    )
    return tuple(sorted(rows, key=lambda row: (-row.self_cost, -(row.total_cost or 0)))), stacks


def read_counters(path: Path) -> tuple[CounterValue, ...]:
    """Lines of `perf stat --field-separator ';'`; what cannot be counted here has no value."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    counters = []
    for line in text.splitlines():
        parts = line.split(";")
        if line.startswith("#") or len(parts) < _COUNTER_FIELDS:
            continue
        value, unit, name = parts[:_COUNTER_FIELDS]
        try:
            number: float | None = float(value)
        except ValueError:
            number = None
        counters.append(CounterValue(name=name.split(":")[0], value=number, unit=unit))
    return tuple(counters)
