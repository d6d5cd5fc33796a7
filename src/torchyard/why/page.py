"""Format an attribution as one self-contained HTML page with a waterfall chart and a flame graph.

A frame of the flame graph is a module, a source line or an operator. Its width is the sum of the absolute
contributions in it, so that a part that is slower and one that is faster do not hide each other; its label
is their net sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

from torchyard.core.short_names import short_label
from torchyard.presentation.chart_layout import round_step
from torchyard.presentation.html_page import asset, fingerprint, template_engine
from torchyard.why.model import Attribution, Part, Source
from torchyard.why.report import (
    PHASES_METHOD,
    headline,
    kernel_list,
    memory_headline,
    method_line,
    peak_line,
    places,
    seconds_text,
    shown_parts,
    site_line,
    time_unit,
    work_line,
)

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


WIDTH: Final = 800
MOST_EXCERPTS: Final = 3
AROUND: Final = 3
"""Lines before and after a source line in an excerpt."""
_ROW: Final = 34
_TOP: Final = 8
_TICKS: Final = 6


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A step of the waterfall, from the running sum before it to that after it."""

    label: str
    amount: str
    style: str
    y: float
    left: float
    width: float
    error_left: float | None
    error_right: float | None
    """Ends of the confidence interval."""


@dataclass(frozen=True, kw_only=True)
class Waterfall:
    """Baseline, contributions and candidate on one time axis."""

    height: float
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, str], ...]


def attribution_page(result: Attribution) -> str:
    """Return the page."""
    unit, scale = time_unit(max(result.baseline_ns, result.candidate_ns))
    parts = shown_parts(result)
    rest = [part for part in result.parts if part not in parts]
    style = asset("report.css") + asset("why.css")
    return (
        template_engine()
        .get_template("why.html.j2")
        .render(
            result=result,
            title=f"Why: {short_label(result.workload)}",
            answer=headline(result),
            method=method_line(result),
            peak=peak_line(result) if result.peak_command else "",
            chart=waterfall(result, parts, rest),
            flame=flame_graph(result),
            memory=memory_headline(result),
            sites=[site_line(site) for site in result.memory],
            rows=[_row(part, result, scale, unit) for part in parts],
            rest=_rest(rest, scale),
            total=_amount(result.difference_ns, scale),
            phases=[
                (one.name, seconds_text(one.baseline_s), seconds_text(one.candidate_s))
                for one in result.compile_phases
            ],
            phases_method=PHASES_METHOD,
            unit=unit,
            style=style,
            style_hash=fingerprint(style),
        )
    )


def waterfall(result: Attribution, parts: list[Part], rest: list[Part]) -> Waterfall:
    """Return the chart: each contribution starts where the one before it ends."""
    unit, scale = time_unit(max(result.baseline_ns, result.candidate_ns))
    steps: list[tuple[str, float, Part | None]] = [(p.name, p.difference_ns, p) for p in parts]
    if rest:
        total_ns = sum(part.difference_ns for part in rest)
        steps.append((f"{len(rest)} smaller parts", total_ns, None))
    sums, at_ns = [], result.baseline_ns
    for _, difference_ns, _part in steps:
        sums.append((at_ns, at_ns + difference_ns))
        at_ns += difference_ns
    ends = [0.0, result.baseline_ns, result.candidate_ns, *(end for pair in sums for end in pair)]
    for (_, _, part), (begin, _) in zip(steps, sums, strict=True):
        if part is not None and math.isfinite(part.low_ns):
            ends += [begin + part.low_ns, begin + part.high_ns]
    low, high = min(ends), max(ends)
    span = max(high - low, 1.0)

    def place(time_ns: float) -> float:
        return round(WIDTH * min(1.0, max(0.0, (time_ns - low) / span)), 2)

    def bar(index: int, label: str, amount: str, style: str, begin: float, end: float) -> Bar:
        left, right = sorted((place(begin), place(end)))
        return Bar(
            label=label,
            amount=amount,
            style=style,
            y=_TOP + index * _ROW,
            left=left,
            width=max(1.0, right - left),
            error_left=None,
            error_right=None,
        )

    bars = [
        bar(
            0,
            result.baseline,
            f"{result.baseline_ns / scale:.4g} {unit}",
            "side",
            0.0,
            result.baseline_ns,
        )
    ]
    for index, ((label, difference_ns, part), (begin, end)) in enumerate(
        zip(steps, sums, strict=True), start=1
    ):
        style = "slower" if difference_ns > 0 else "faster"
        if part is None or not part.named:
            style = "unclear"
        one = bar(index, label, f"{_amount(difference_ns, scale)} {unit}", style, begin, end)
        if part is not None and math.isfinite(part.low_ns):
            one = replace(
                one,
                error_left=place(begin + part.low_ns),
                error_right=place(begin + part.high_ns),
            )
        bars.append(one)
    last = len(steps) + 1
    amount = f"{result.candidate_ns / scale:.4g} {unit}"
    bars.append(bar(last, result.candidate, amount, "side", 0.0, result.candidate_ns))
    step = round_step(span / scale / _TICKS)
    first = math.ceil(low / scale / step - 1e-9)
    numbers = [number * step for number in range(first, math.floor(high / scale / step + 1e-9) + 1)]
    ticks = tuple((place(number * scale), f"{number:.4g} {unit}") for number in numbers)
    return Waterfall(height=_TOP + (last + 1) * _ROW + 20, bars=tuple(bars), ticks=ticks)


def _row(part: Part, result: Attribution, scale: float, unit: str) -> dict[str, object]:
    return {
        "name": part.name,
        "named": part.named,
        "difference": _amount(part.difference_ns, scale),
        "interval": f"[{_amount(part.low_ns, scale)}, {_amount(part.high_ns, scale)}]",
        "baseline": f"{part.baseline_ns / scale:.3f}",
        "candidate": f"{part.candidate_ns / scale:.3f}",
        "adjusted_p": f"{part.adjusted_p:.2g}",
        "places": places(part.sources),
        "kernels": [
            (name, kernel_list(kernels, scale, unit, most=len(kernels)))
            for name, kernels in (
                (result.baseline, part.baseline_kernels),
                (result.candidate, part.candidate_kernels),
            )
            if kernels
        ],
        "rates": work_line(part, result),
        "excerpts": excerpts(part.sources) if part.named else [],
    }


def excerpts(sources: Sequence[Source]) -> list[tuple[str, str]]:
    """Return file name and lines around each source line; none from a file that was edited since."""
    shown: dict[tuple[str, int], str] = {}
    for source in sources:
        key = (source.file, source.line)
        if not source.file or key in shown or len(shown) == MOST_EXCERPTS:
            continue
        try:
            lines = Path(source.file).read_text("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            continue
        if source.line <= len(lines) and lines[source.line - 1].strip() == source.text:
            first = max(1, source.line - AROUND)
            shown[key] = "\n".join(
                f"{'>' if number == source.line else ' '} {number:4} {lines[number - 1]}"
                for number in range(first, min(len(lines), source.line + AROUND) + 1)
            )
    return [(f"{Path(file).name}:{line}", text) for (file, line), text in shown.items()]


def _rest(rest: list[Part], scale: float) -> tuple[int, str] | None:
    if not rest:
        return None
    return len(rest), _amount(sum(part.difference_ns for part in rest), scale)


def _amount(duration_ns: float, scale: float) -> str:
    return f"{duration_ns / scale:+.3f}"
