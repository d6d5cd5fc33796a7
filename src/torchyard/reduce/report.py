"""Texts of a reduction: the result, the JSON object, and a Markdown report for upstream."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from torchyard.core.records import encode
from torchyard.core.units import format_count, format_duration, format_percent
from torchyard.presentation.safe_text import aligned, escaped, one_line
from torchyard.reduce.model import UNITS, WORSE, Reduced, Sides

_NOT_FINITE: Final = 1e300


def reduced_text(result: Reduced) -> str:
    """Return the result as text."""
    names = Counter(result.operators)
    lines = [
        f"reduced     {format_count(result.operators_before, 'operator')} to {len(result.operators)}"
        + ("" if result.complete else ", the time is used up"),
        *(
            f"            {f'{count} x ' if count > 1 else ''}{one_line(name)}"
            for name, count in names.items()
        ),
    ]
    if result.sizes:
        lines.append("dimensions  " + ", ".join(f"{old} -> {new}" for old, new in result.sizes))
    if result.part_loss is not None:
        lines.append(f"part        {one_line(result.part)}")
        lines.append(f"            loss of the part by `torchyard why`: {result.part_loss:+.3g} ms")
    lines += ["", aligned(_rows(result), right={1, 2, 3, 4, 5, 6}), ""]
    lines.append(f"script      {_script_text(result)}")
    if result.metric == "wrong":
        lines.append("error       largest error of wrong results; 0: the accuracy check passed")
    else:
        lines.append(
            "model loss  that of the model in the same rounds; share is loss by model loss"
        )
    if result.contradictory:
        lines.append(
            "note        all operators as one graph lose much more than the model: these measurements "
            "contradict each other; stop other programs and repeat"
        )
    if result.graphs > 1:
        lines.append(f"note        the model has {result.graphs} graphs; the script is one graph")
    took = format_duration(result.elapsed_s * 1e9)
    lines.append(f"measured    {format_count(result.tests, 'test')}, {took}")
    return "\n".join(lines) + "\n"


def reduced_json(result: Reduced) -> dict[str, Any]:
    """Return the JSON object of a result."""
    return {
        **encode(result),
        "unit": UNITS[result.metric],
        "share": result.cut.share,
        "contradictory": result.contradictory,
    }


def upstream_text(result: Reduced) -> str:
    """Return a report with the script, ready for an upstream issue."""
    operators = ", ".join(f"`{one_line(one)}`" for one in dict.fromkeys(result.operators))
    rows = _rows(result)
    table = [f"| {' | '.join(row)} |" for row in rows]
    table.insert(1, "|---|" + "---:|" * (len(rows[0]) - 1))
    fence = "```"
    title = WORSE[result.metric].format(result.candidate, result.baseline)
    return "\n".join(
        [
            f"### {escaped(title)}: {operators}",
            "",
            f"Found in {escaped(result.workload)}. The script below needs only torch. {_script_text(result)}.",
            "",
            *table,
            "",
            "Error: of wrong results; 0 if the accuracy check passed."
            if result.metric == "wrong"
            else "Model loss: of the whole model, in the same rounds as this row.",
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
    programs: list[tuple[str, Sides | None]] = [
        ("model", result.end_to_end),
        ("operators of the part" if result.part else "all operators, one graph", result.captured),
        ("remaining operators", result.cut),
    ]
    if result.unrepeated != result.cut:
        programs.append(("without repetitions", result.unrepeated))
    if result.sizes:
        programs.append(("with short dimensions", result.reduced))
    programs.append(("script, new processes", result.fresh))
    unit = UNITS[result.metric]
    shown = [(name, sides) for name, sides in programs if sides is not None]
    if result.metric == "wrong":
        return [
            ["program", "eager error", "compiled error"],
            *([name, _number(one.baseline), _number(one.candidate)] for name, one in shown),
        ]
    ratio = "speedup" if result.metric == "time" else "ratio"
    values = [f"eager {unit}", f"compiled {unit}", ratio, f"loss {unit}"]
    return [
        ["program", *values, "model loss", "share"],
        *(
            [
                name,
                _number(one.baseline),
                _number(one.candidate),
                _ratio(one, result),
                f"{one.loss:+.3g}",
                "-" if one.model_loss is None else f"{one.model_loss:+.3g}",
                "-" if one.share is None else format_percent(one.share),
            ]
            for name, one in shown
        ),
    ]


def _number(value: float) -> str:
    return "not finite" if value >= _NOT_FINITE else f"{value:.4g}"


def _ratio(one: Sides, result: Reduced) -> str:
    """Return the speedup, or how many times as much memory is used."""
    top, bottom = one.baseline, one.candidate
    if result.metric == "memory":
        top, bottom = bottom, top
    return f"{top / bottom:.3f}x" if bottom else "-"


def _script_text(result: Reduced) -> str:
    fresh, estimate = result.fresh, result.estimate
    if fresh is None:
        return "It cannot be run by itself here"
    what = "wrong results" if result.metric == "wrong" else "the loss"
    shown = f"It shows {what}" if result.confirmed else f"It does not show {what}"
    if estimate is None or estimate.interval is None:
        unit = UNITS[result.metric]
        return (
            f"{shown} in new processes: {unit} {_number(fresh.candidate)}, "
            f"eager {_number(fresh.baseline)}"
        )
    interval = estimate.interval
    return (
        f"{shown} in new processes: {estimate.speedup:.3f}x "
        f"(95 % CI {interval.low:.3f} to {interval.high:.3f})"
    )


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""
