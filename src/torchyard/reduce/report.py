"""Texts of a reduction: the result, the JSON object, and a Markdown report for upstream."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torchyard.core.records import encode
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.presentation.safe_text import aligned, escaped, one_line
from torchyard.reduce.model import Reduced, Times

__all__ = ["reduced_json", "reduced_text", "upstream_text"]


def reduced_text(result: Reduced) -> str:
    """Return the result as text."""
    names = Counter(result.operators)
    lines = [
        f"reduced     {format_count(result.operators_before, 'operator')} to {len(result.operators)}"
        + ("" if result.complete else ", the time is used up"),
        *(f"            {_times(count)}{one_line(name)}" for name, count in names.items()),
    ]
    if result.sizes:
        lines.append("dimensions  " + ", ".join(f"{old} -> {new}" for old, new in result.sizes))
    lines += ["", aligned(_rows(result), right={1, 2, 3, 4, 5, 6}), ""]
    lines.append(f"script      {_script_text(result)}")
    lines.append("model loss  that of the model in the same rounds; share is loss by model loss")
    if result.graphs > 1:
        lines.append(f"note        the model has {result.graphs} graphs; the script is one graph")
    took = format_duration(result.elapsed_s * 1e9)
    lines.append(f"measured    {format_count(result.tests, 'test')}, {took}")
    return "\n".join(lines) + "\n"


def reduced_json(result: Reduced) -> dict[str, Any]:
    """Return the JSON object of a result."""
    return {**encode(result), "share": result.cut.share, "confirmed": result.confirmed}


def upstream_text(result: Reduced) -> str:
    """Return a report with the script, ready for an upstream issue."""
    operators = ", ".join(f"`{one_line(one)}`" for one in dict.fromkeys(result.operators))
    rows = _rows(result)
    table = [f"| {' | '.join(row)} |" for row in rows]
    table.insert(1, "|---|" + "---:|" * (len(rows[0]) - 1))
    fence = "```"
    return "\n".join(
        [
            f"### {escaped(result.candidate)} is slower than {escaped(result.baseline)}: {operators}",
            "",
            f"Found in {escaped(result.workload)}. The script below needs only torch. {_script_text(result)}.",
            "",
            *table,
            "",
            "Model loss: of the whole model, in the same rounds as this row.",
            "",
            *(f"- {escaped(name)}: {escaped(value)}" for name, value in result.environment),
            "",
            f"{fence}python",
            result.script.rstrip("\n"),
            fence,
            "",
        ]
    )


def _rows(result: Reduced) -> list[list[str]]:
    programs: list[tuple[str, Times | None]] = [
        ("model", result.end_to_end),
        ("all operators, one graph", result.captured),
        ("remaining operators", result.cut),
    ]
    if result.sizes:
        programs.append(("with short dimensions", result.reduced))
    programs.append(("script, new processes", result.fresh))
    return [
        ["program", "eager ms", "compiled ms", "speedup", "loss ms", "model loss", "share"],
        *(
            [
                name,
                f"{times.baseline_ms:.4g}",
                f"{times.candidate_ms:.4g}",
                f"{times.baseline_ms / times.candidate_ms:.3f}x",
                f"{times.loss_ms:+.3g}",
                "-" if times.model_loss_ms is None else f"{times.model_loss_ms:+.3g}",
                "-" if times.share is None else format_percent(times.share),
            ]
            for name, times in programs
            if times is not None
        ),
    ]


def _script_text(result: Reduced) -> str:
    estimate = result.estimate
    if estimate is None or estimate.interval is None:
        return "It cannot be run by itself here"
    interval = estimate.interval
    shown = "It shows the loss" if result.confirmed else "It does not show the loss"
    return (
        f"{shown} in new processes: {estimate.speedup:.3f}x "
        f"(95 % CI {interval.low:.3f} to {interval.high:.3f})"
    )


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""
