"""Flame graph of a difference: module path, source line and operators, from top to bottom.

The width of a frame is the sum of the absolute contributions in it, so that a part that is slower
and one that is faster do not hide each other. Its label is their net sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final

from torchyard.why.model import Attribution, Part
from torchyard.why.report import time_unit

WIDTH: Final = 800
ROW: Final = 20
_NARROWEST: Final = 1.0
_LETTER: Final = 6.2
"""Width of a letter."""
_FEWEST_LETTERS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A rectangle of the graph."""

    label: str
    """As much of the title as fits."""
    title: str
    style: str
    x: float
    y: float
    width: float


@dataclass(frozen=True, kw_only=True)
class FlameGraph:
    """All frames; the first one is the whole difference."""

    height: float
    frames: tuple[Frame, ...]


@dataclass
class _Node:
    net_ns: float = 0.0
    size_ns: float = 0.0
    named: bool = False
    children: dict[str, _Node] = field(default_factory=dict)


def path_of(part: Part) -> list[str]:
    """Return the frames of a part below the whole: modules, source line, operators."""
    if not part.sources:
        return [part.name]
    modules = [source.module.split(".") if source.module else [] for source in part.sources]
    levels = takewhile(lambda names: len(set(names)) == 1, zip(*modules, strict=False))
    path = [names[0] for names in levels]
    phases = {source.phase for source in part.sources} - {"forward"}
    lines = {(source.file, source.line) for source in part.sources if source.file}
    if len(lines) == 1:
        ((file, line),) = lines
        path.append(f"{Path(file).name}:{line}")
    operators = ", ".join(dict.fromkeys(source.operator for source in part.sources))
    return [*sorted(phases), *path, operators]


def flame_graph(result: Attribution) -> FlameGraph:
    """Return the graph of all parts."""
    root = _Node()
    for part in result.parts:
        node = root
        for name in ("", *path_of(part)):
            node = node.children.setdefault(name, _Node()) if name else node
            node.net_ns += part.difference_ns
            node.size_ns += abs(part.difference_ns)
            node.named = node.named or part.named
    unit, scale = time_unit(max(result.baseline_ns, result.candidate_ns))
    pixels = WIDTH / root.size_ns if root.size_ns else 0.0
    frames: list[Frame] = []

    def draw(name: str, node: _Node, x: float, depth: int) -> None:
        width = pixels * node.size_ns if depth else float(WIDTH)
        if width < _NARROWEST:
            return
        title = f"{name} {node.net_ns / scale:+.3f} {unit}"
        letters = int(width / _LETTER) - 1
        label = title if len(title) <= letters else title[: max(0, letters - 1)] + "\u2026"
        style = "unclear" if not node.named else "slower" if node.net_ns > 0.0 else "faster"
        frames.append(
            Frame(
                label=label if letters >= _FEWEST_LETTERS else "",
                title=title,
                style=style,
                x=round(x, 2),
                y=depth * ROW,
                width=round(width, 2),
            )
        )
        for child, own in sorted(node.children.items(), key=lambda pair: -pair[1].size_ns):
            draw(child, own, x, depth + 1)
            x += pixels * own.size_ns

    draw(f"{result.baseline} to {result.candidate}", root, 0.0, 0)
    return FlameGraph(height=max(frame.y for frame in frames) + ROW, frames=tuple(frames))
