"""Reports of a race: text, charts and HTML page.

The text says which contenders ran, which were dropped and why, which won, and how to use the
winner. Charts are Vega-Lite specs in which names are data, never code. The page is one file without
network access or other files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from torchyard.core.comparison import Interval
from torchyard.core.units import format_duration
from torchyard.presentation.html_page import asset, fingerprint, template_engine
from torchyard.presentation.safe_text import aligned, one_line
from torchyard.presentation.vega import inline_chart
from torchyard.tune.model import DEFAULT_NAME, Race, Standing
from torchyard.tune.winner import (
    code_lines,
    environment_file,
    is_set_outside,
    shell_line,
    study_text,
)


def race_text(race: Race, *, program: Sequence[str] = ("python", "YOUR_PROGRAM.py")) -> str:
    """The whole of it."""
    parts = [_table(race), _shares(race), verdict_line(race), _use(race, program), _missing(race)]
    return "\n\n".join(part for part in parts if part) + "\n"


def space_text(race: Race) -> str:
    """What a race would try."""
    rows = [("dimension", "choice", "what it does")]
    rows += [(one.dimension, one.name, one.about) for one in race.space.choices]
    parts = [f"{race.workload.label}: {len(race.space.choices)} choices", aligned(rows)]
    return "\n\n".join(part for part in (*parts, _missing(race)) if part) + "\n"


def verdict_line(race: Race) -> str:
    """One sentence: the winner with its gain, or that the default is best, or neither yet."""
    done = race.confirmed
    if race.state != "finished":
        return f"the race is not over: {len(race.heats)} heats were run"
    if race.winner is not None and done is not None and done.speedup is not None:
        times = ""
        if race.default_ns is not None and race.winner_ns is not None:
            times = f", {_pace(race, race.default_ns)} to {_pace(race, race.winner_ns)}"
        what = "speed" if race.goal == "latency" else "throughput"
        text = (
            f"winner: {race.winner.name}, {done.speedup:.3f}x {_interval(done.interval)} of the "
            f"default's {what} on {done.launches} fresh launches{times}"
        )
        if race.winner.changes_results:
            text += "\n" + _changed(done)
        return text
    if done is None and (race.undecided or race.untried):
        return (
            "nothing is recommended: no choice was faster beyond doubt so far\n"
            "go on with: torchyard tune --resume FOLDER --budget DURATION"
        )
    if done is None:
        return "the default is best: no choice was faster"
    if done.untrusted:
        return (
            f"nothing is recommended: the confirmation of {done.contender} is untrusted: "
            f"{one_line(done.untrusted)}"
        )
    found = ""
    if done.speedup is not None:
        found = (
            f": {done.speedup:.3f}x {_interval(done.interval)} on {done.launches} fresh launches"
        )
    why = f" ({done.why})" if done.why else ""
    return f"the default is best: {done.contender} was not faster beyond doubt{found}{why}"


def _pace(race: Race, iteration_ns: float) -> str:
    if race.goal == "latency":
        return format_duration(iteration_ns)
    return f"{1e9 / max(iteration_ns, 1e-9):.4g} iterations/s"


def last_standings(race: Race) -> list[Standing]:
    """The last word on every contender against the default, in the order of their first heat."""
    found: dict[str, Standing] = {}
    for heat in race.heats:
        if heat.against == DEFAULT_NAME and heat.stage != "confirm":
            found.update((one.contender, one) for one in heat.found)
    return list(found.values())


def _table(race: Race) -> str:
    standings = last_standings(race)
    if not standings:
        return ""
    dimensions = {choice.name: choice.dimension for choice in race.space.choices}
    order = {"racing": 0, "out": 0, "wrong": 1, "failed": 2}
    standings.sort(key=lambda one: (order[one.state], -(one.speedup or 0.0)))
    rows = [
        (
            dimensions.get(one.contender, ""),
            one.contender,
            "" if one.speedup is None else _shown(f"{one.speedup:.3f}x", one.untrusted),
            _shown(_interval(one.interval), one.untrusted),
            str(one.launches),
            one.why
            if one.state in ("failed", "wrong")
            else f"untrusted: {one_line(one.untrusted)}"
            if one.untrusted
            else "",
        )
        for one in standings
    ]
    return aligned([("dimension", "choice", "speed", "interval", "launches", ""), *rows])


def _shares(race: Race) -> str:
    if not race.shares:
        return ""
    lines = ["what each choice gives, beside the others of the winner:"]
    for share in race.shares:
        kept = "" if share.kept else "  left out: not faster beyond doubt"
        kept = f"  left out: untrusted: {one_line(share.untrusted)}" if share.untrusted else kept
        number = _shown(f"{share.speedup:.3f}x {_interval(share.interval)}", share.untrusted)
        lines.append(f"  {share.choice}: {number}{kept}")
    return "\n".join(lines)


def _use(race: Race, program: Sequence[str]) -> str:
    if race.winner is None:
        return ""
    lines = []
    if is_set_outside(race.winner, race.default):
        lines += ["in a shell:", f"  {shell_line(race.winner, race.default, program)}"]
    code = code_lines(race.winner)
    if code:
        lines += ["in the program:", *(f"  {line}" for line in code)]
    study = "\n".join(
        f"  {line}".rstrip() for line in study_text(race.winner, race.default).splitlines()
    )
    return "\n".join([*lines, "in a study:", study])


def _missing(race: Race) -> str:
    lines = []
    if race.space.missing:
        lines.append("not tried here:")
        for one in race.space.missing:
            package = f" (package {one.package})" if one.package else ""
            lines.append(f"  {one.name}: {one.why}{package}")
    lines += [f"note: {note}" for note in race.notes]
    return "\n".join(lines)


def _changed(done: Standing) -> str:
    found = done.accuracy
    if found is None or found.max_error is None:
        return "its results differ by design; by how much was not measured"
    text = f"its results differ by design: by up to {found.max_error:.3g}"
    if found.candidate_rmse is not None and found.baseline_rmse is not None:
        text += (
            f"; {found.candidate_rmse:.3g} from the float64 reference, the default "
            f"{found.baseline_rmse:.3g}"
        )
    return text


def _shown(text: str, untrusted: str) -> str:
    """Numbers in parentheses are not to be used."""
    return f"({text})" if text and untrusted else text


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval.low:.3f}, {interval.high:.3f}]"


_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#8c6d31"]
"""Okabe and Ito's, which colour-blind readers can tell apart."""
_UNTRUSTED: Final = "untrusted"
_KINDS: Final = {
    "alone, while racing": "#0072b2",
    "on fresh launches": "#d55e00",
    _UNTRUSTED: "var(--untrusted)",
}


def race_spec(race: Race) -> dict[str, Any]:
    """Speed against the default after each heat; a line ends where its contender left."""
    dimensions = {choice.name: choice.dimension for choice in race.space.choices}
    rows: list[dict[str, Any]] = [
        {
            "contender": one.contender,
            "dimension": dimensions.get(one.contender, "together"),
            "minutes": heat.ended_s / 60.0,
            "speedup": one.speedup,
            "launches": one.launches,
        }
        for heat in race.heats
        if heat.against == DEFAULT_NAME and heat.stage != "confirm"
        for one in heat.found
        if one.speedup is not None
    ]
    last = {row["contender"]: row for row in rows}
    names = sorted({str(row["dimension"]) for row in rows})
    x = {
        "field": "minutes",
        "type": "quantitative",
        "title": "minutes of measuring",
        "axis": {"tickCount": 10},
    }
    y = {
        "field": "speedup",
        "type": "quantitative",
        "title": "speed, the default is 1",
        "scale": {"zero": False},
    }
    colour = {
        "field": "dimension",
        "type": "nominal",
        "title": None,
        "scale": {
            "domain": names,
            "range": [_COLOURS[place % len(_COLOURS)] for place in range(len(names))],
        },
        "legend": {"orient": "bottom", "columns": 4},
    }
    detail = {"field": "contender", "type": "nominal"}
    return {
        "width": 680,
        "height": 320,
        "layer": [
            {
                "data": {"values": [{"speedup": 1.0}]},
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "var(--muted)"},
                "encoding": {"y": y},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "line", "point": {"size": 22}, "strokeWidth": 1.5},
                "encoding": {"x": x, "y": y, "color": colour, "detail": detail},
            },
            {
                "data": {"values": [row for row in last.values() if row["launches"] > 1]},
                "mark": {"type": "text", "align": "left", "dx": 6, "limit": 140},
                "encoding": {"x": x, "y": y, "text": {"field": "contender", "type": "nominal"}},
            },
        ],
    }


def standings_spec(race: Race) -> dict[str, Any]:
    """The last interval of each contender, and of the winner on its fresh launches."""
    rows = [
        {
            "contender": one.contender,
            "speedup": one.speedup,
            "low": one.interval.low if one.interval is not None else one.speedup,
            "high": one.interval.high if one.interval is not None else one.speedup,
            "kind": _UNTRUSTED if one.untrusted else "alone, while racing",
        }
        for one in last_standings(race)
        if one.speedup is not None and math.isfinite(one.speedup)
    ]
    done = race.confirmed
    if done is not None and done.speedup is not None and done.interval is not None:
        rows.append(
            {
                "contender": f"{done.contender} (confirmed anew)",
                "speedup": done.speedup,
                "low": done.interval.low,
                "high": done.interval.high,
                "kind": _UNTRUSTED if done.untrusted else "on fresh launches",
            }
        )
    rows.sort(key=lambda row: -float(str(row["speedup"])))
    # Few launches give intervals beyond any picture: they are cut where speeds themselves end. The
    # last one is the answer, and is whole.
    seen = [1.0, *(float(str(row["speedup"])) for row in rows)]
    if done is not None and done.interval is not None:
        seen += [done.interval.low, done.interval.high]
    low, high = min(seen) * 0.95, max(seen) * 1.05
    for row in rows:
        row["low"], row["high"] = (
            max(low, float(str(row["low"]))),
            min(high, float(str(row["high"]))),
        )
    present = {str(row["kind"]) for row in rows}
    kinds = {kind: colour for kind, colour in _KINDS.items() if kind in present}
    y = {
        "field": "contender",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 260},
    }
    scale = {"domain": [low, high], "zero": False, "nice": False}
    x = {"type": "quantitative", "title": "speed, the default is 1", "scale": scale}
    x["axis"] = {"tickCount": 10}
    colour = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {
            "domain": list(kinds),
            "range": list(kinds.values()),
        },
        "legend": {"orient": "bottom"},
    }
    return {
        "width": 520,
        "height": {"step": 20},
        "layer": [
            {
                "data": {"values": [{"at": 1.0}]},
                "mark": {"type": "rule", "strokeDash": [4, 3], "color": "var(--muted)"},
                "encoding": {"x": {**x, "field": "at"}},
            },
            {
                "data": {"values": rows},
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {
                    "y": y,
                    "x": {**x, "field": "low"},
                    "x2": {"field": "high"},
                    "color": colour,
                },
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "size": 55},
                "encoding": {"y": y, "x": {**x, "field": "speedup"}, "color": colour},
            },
        ],
    }


def race_page(race: Race) -> str:
    """The whole page."""
    style = asset("report.css") + asset("charts.css") + asset("race.css")
    choices = {choice.name: choice for choice in race.space.choices}
    winner = race.winner
    outside = winner is not None and is_set_outside(winner, race.default)
    return (
        template_engine()
        .get_template("race.html.j2")
        .render(
            race=race,
            verdict=verdict_line(race).splitlines(),
            won=winner is not None,
            measured=format_duration(race.elapsed_s * 1e9),
            choices=choices,
            standings=sorted(last_standings(race), key=lambda one: -(one.speedup or 0.0)),
            chart=_race_chart(race),
            forest=_forest(race),
            environment=environment_file(winner, race.default) if winner and outside else "",
            shell=shell_line(winner, race.default, ("python", "PROGRAM.py"))
            if winner and outside
            else "",
            code=[] if winner is None else code_lines(winner),
            study="" if winner is None else study_text(winner, race.default),
            style=style,
            style_hash=fingerprint(style),
        )
    )


def _race_chart(race: Race) -> object:
    if not race.heats:
        return ""
    said = ", ".join(
        f"{one.contender} {one.speedup:.3f}" for one in last_standings(race) if one.speedup
    )
    return inline_chart(
        race_spec(race),
        title="How the contenders stood after each heat",
        description=one_line(f"Speed of each contender against the default over time: {said}"),
    )


def _forest(race: Race) -> object:
    if not last_standings(race):
        return ""
    return inline_chart(
        standings_spec(race),
        title="Where each contender ended, with 95% intervals",
        description="The last speed of each contender with its interval; the table has the numbers.",
    )
