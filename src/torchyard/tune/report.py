"""Reports of a race: the winner in usable form, text, charts and HTML page.

The text lists configurations that ran, those that were dropped and why, the winner, and how to use
it. Charts are Vega-Lite specs in which names are data, never code. The page is one file without
network access or other files. In the environment file, the shell line and the study of the winner,
values are quoted for their destination: names and paths can come from a user's file.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any, Final

import tomli_w

from torchyard.core.comparison import Interval
from torchyard.core.cpu_lists import cpu_list
from torchyard.core.short_names import short_label
from torchyard.core.study import Environment, Variant
from torchyard.core.units import format_duration
from torchyard.machine.system.cores import cores_of
from torchyard.presentation.html_page import render_page
from torchyard.presentation.safe_text import aligned, one_line
from torchyard.presentation.vega import inline_chart
from torchyard.tune.model import DEFAULT_NAME, Contender, Race, Standing

_INTEROP = "TORCHYARD_INTEROP_THREADS"
"""Understood by the Torchyard worker only; programs use `Choice.code`."""


def is_set_outside(winner: Contender, default: Variant) -> bool:
    """Whether any setting must be made when the program starts."""
    environment = winner.variant(default).environment
    places = environment.cores or environment.memory or environment.instances > 1
    return bool(places or variables_of(winner, default))


def variables_of(winner: Contender, default: Variant) -> dict[str, str]:
    """Return the environment variables of the winner, including preloaded libraries and threads."""
    environment = winner.variant(default).environment
    variables = {key: value for key, value in environment.variables if key != _INTEROP}
    threads = environment.threads
    if environment.instances > 1:
        threads = threads or len(cores_of(environment)[0])
    if threads is not None:
        variables["OMP_NUM_THREADS"] = str(threads)
    if environment.preload:
        variables["LD_PRELOAD"] = ":".join(environment.preload)
    return dict(sorted(variables.items()))


def environment_file(winner: Contender, default: Variant) -> str:
    """Return `NAME=value` lines for a POSIX shell: `set -a; . FILE; set +a`."""
    lines = [f"# {choice.name}: {choice.about}" for choice in winner.choices]
    lines += [f"{key}={shlex.quote(value)}" for key, value in variables_of(winner, default).items()]
    environment = winner.variant(default).environment
    starts = [shlex.join(_start(environment, part)) for part in range(environment.instances)]
    lines += [f"# start it with: {start} PROGRAM" for start in starts if start]
    lines += [f"# in the program: {line}" for line in code_lines(winner)]
    return "\n".join(" ".join(line.splitlines()) for line in lines) + "\n"


def shell_line(winner: Contender, default: Variant, program: Sequence[str]) -> str:
    """Return the shell command that runs the program with the variables, once per instance."""
    variables = [
        f"{key}={shlex.quote(value)}" for key, value in variables_of(winner, default).items()
    ]
    environment = winner.variant(default).environment
    lines = [
        " ".join([*variables, shlex.join([*_start(environment, part), *program])])
        for part in range(environment.instances)
    ]
    return lines[0] if len(lines) == 1 else " & ".join(lines) + " & wait"


def _start(environment: Environment, part: int) -> list[str]:
    """Return the command prefix that pins an instance to its cores and memory."""
    placed = environment.instances > 1 or environment.cores
    cores = cpu_list(cores_of(environment)[part]) if placed else ""
    if environment.memory:
        policy, _, nodes = environment.memory.partition(":")
        binding = {"bind": "--membind", "interleave": "--interleave"}[policy]
        return ["numactl", *([f"--physcpubind={cores}"] if cores else []), f"{binding}={nodes}"]
    return ["taskset", "-c", cores] if cores else []


def code_lines(winner: Contender) -> list[str]:
    """Return the code that the program itself must contain."""
    return [choice.code for choice in winner.choices if choice.code]


def study_text(winner: Contender, default: Variant) -> str:
    """Return a study file that compares the default with the winner."""
    variant = winner.variant(default)
    environment = variant.environment
    parts = [variant.backend]
    if variant.precision != "float32":
        parts.append(variant.precision)
    if environment != default.environment:
        parts.append("tuned")
    for key, value in variant.options:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        parts.append(key if value is True else f"{key}={text}")
    study: dict[str, Any] = {"baseline": default.backend, "candidates": ["+".join(parts)]}
    if environment != default.environment:
        tuned = {
            "threads": environment.threads,
            "cores": environment.cores,
            "memory": environment.memory,
            "instances": environment.instances if environment.instances > 1 else None,
            "preload": list(environment.preload),
            "variables": dict(environment.variables),
        }
        study["environments"] = {"tuned": {key: value for key, value in tuned.items() if value}}
    return tomli_w.dumps(study)


def race_text(race: Race, *, program: Sequence[str] = ("python", "YOUR_PROGRAM.py")) -> str:
    """Format the result of a race as text."""
    parts = [_table(race), _shares(race), verdict_line(race), _use(race, program), _missing(race)]
    return "\n\n".join(part for part in parts if part) + "\n"


def space_text(race: Race) -> str:
    """Format the search space of a race as text."""
    rows = [("dimension", "setting", "description")]
    rows += [(one.dimension, one.name, one.about) for one in race.space.choices]
    parts = [f"{short_label(race.workload)}: {len(race.space.choices)} settings", aligned(rows)]
    return "\n\n".join(part for part in (*parts, _missing(race)) if part) + "\n"


def verdict_line(race: Race) -> str:
    """Return the result in one sentence: the winner with its speedup, or why there is none."""
    confirmed = race.confirmed
    if race.state != "finished":
        return f"the race is not finished: {len(race.heats)} rounds completed"
    if race.winner is not None and confirmed is not None and confirmed.speedup is not None:
        times = ""
        if race.default_ns is not None and race.winner_ns is not None:
            times = f", {_pace(race, race.default_ns)} to {_pace(race, race.winner_ns)}"
        what = "speed" if race.goal == "latency" else "throughput"
        text = (
            f"winner: {race.winner.name}, {confirmed.speedup:.3f}x {_interval(confirmed.interval)} the "
            f"{what} of the default on {confirmed.launches} new launches{times}"
        )
        if race.winner.changes_results:
            text += "\n" + _changed(confirmed)
        return text
    if confirmed is None and race.proposed is not None:
        return (
            f"no recommendation: the time budget did not suffice to confirm {race.proposed.name}\n"
            "resume with: torchyard tune --resume FOLDER --budget DURATION"
        )
    if confirmed is None and (race.undecided or race.untried):
        return (
            "no recommendation: no setting is significantly faster so far\n"
            "resume with: torchyard tune --resume FOLDER --budget DURATION"
        )
    if confirmed is None:
        return "the default is best: no setting is faster"
    if confirmed.untrusted:
        return (
            f"no recommendation: the confirmation of {confirmed.contender} is untrusted: "
            f"{one_line(confirmed.untrusted)}"
        )
    speedup = ""
    if confirmed.speedup is not None:
        speedup = f": {confirmed.speedup:.3f}x {_interval(confirmed.interval)} on {confirmed.launches} new launches"
    why = f" ({confirmed.why})" if confirmed.why else ""
    return f"the default is best: {confirmed.contender} is not significantly faster{speedup}{why}"


def _pace(race: Race, iteration_ns: float) -> str:
    if race.goal == "latency":
        return format_duration(iteration_ns)
    return f"{1e9 / max(iteration_ns, 1e-9):.4g} iterations/s"


def last_standings(race: Race) -> list[Standing]:
    """Return the latest standing of every configuration against the default, in the order of their first round."""
    latest: dict[str, Standing] = {}
    for race_round in race.heats:
        if race_round.against == DEFAULT_NAME and race_round.stage != "confirm":
            latest.update((one.contender, one) for one in race_round.found)
    return list(latest.values())


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
    return aligned([("dimension", "setting", "speedup", "95% CI", "launches", ""), *rows])


def _shares(race: Race) -> str:
    if not race.shares:
        return ""
    lines = ["contribution of each setting, given the others of the winner:"]
    for share in race.shares:
        outcome = "" if share.kept else "  dropped: not significantly faster"
        outcome = (
            f"  dropped: untrusted: {one_line(share.untrusted)}" if share.untrusted else outcome
        )
        number = _shown(f"{share.speedup:.3f}x {_interval(share.interval)}", share.untrusted)
        lines.append(f"  {share.choice}: {number}{outcome}")
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
        lines.append("not available here:")
        for one in race.space.missing:
            package = f" (package {one.package})" if one.package else ""
            lines.append(f"  {one.name}: {one.why}{package}")
    lines += [f"note: {note}" for note in race.notes]
    return "\n".join(lines)


def _changed(done: Standing) -> str:
    accuracy = done.accuracy
    if accuracy is None or accuracy.max_error is None:
        return "its results differ by design; the difference was not measured"
    text = f"its results differ by design, by up to {accuracy.max_error:.3g}"
    if accuracy.candidate_rmse is not None and accuracy.baseline_rmse is not None:
        text += (
            f"; RMSE against the float64 reference {accuracy.candidate_rmse:.3g}, of the default "
            f"{accuracy.baseline_rmse:.3g}"
        )
    return text


def _shown(text: str, untrusted: str) -> str:
    """Return untrusted numbers in parentheses."""
    return f"({text})" if text and untrusted else text


def _interval(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval.low:.3f}, {interval.high:.3f}]"


_COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#8c6d31"]
"""The palette of Okabe and Ito, distinguishable by color-blind readers."""
_UNTRUSTED: Final = "untrusted"
_KINDS: Final = {
    "during the race": "#0072b2",
    "confirmation": "#d55e00",
    _UNTRUSTED: "var(--untrusted)",
}


def race_spec(race: Race) -> dict[str, Any]:
    """Return the chart of speedups after each round; a line ends where its configuration was dropped."""
    dimensions = {choice.name: choice.dimension for choice in race.space.choices}
    rows: list[dict[str, Any]] = [
        {
            "contender": one.contender,
            "dimension": dimensions.get(one.contender, "combined"),
            "minutes": race_round.ended_s / 60.0,
            "speedup": one.speedup,
            "launches": one.launches,
        }
        for race_round in race.heats
        if race_round.against == DEFAULT_NAME and race_round.stage != "confirm"
        for one in race_round.found
        if one.speedup is not None
    ]
    last = {row["contender"]: row for row in rows}
    names = sorted({str(row["dimension"]) for row in rows})
    x = {
        "field": "minutes",
        "type": "quantitative",
        "title": "measuring time (minutes)",
        "axis": {"tickCount": 10},
    }
    y = {
        "field": "speedup",
        "type": "quantitative",
        "title": "speedup over the default",
        "scale": {"zero": False},
    }
    color = {
        "field": "dimension",
        "type": "nominal",
        "title": None,
        "scale": {
            "domain": names,
            "range": [_COLORS[place % len(_COLORS)] for place in range(len(names))],
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
                "encoding": {"x": x, "y": y, "color": color, "detail": detail},
            },
            {
                "data": {"values": [row for row in last.values() if row["launches"] > 1]},
                "mark": {"type": "text", "align": "left", "dx": 6, "limit": 140},
                "encoding": {"x": x, "y": y, "text": {"field": "contender", "type": "nominal"}},
            },
        ],
    }


def standings_spec(race: Race) -> dict[str, Any]:
    """Return the chart of the latest interval of each configuration, and of the confirmation."""
    rows = [
        {
            "contender": one.contender,
            "speedup": one.speedup,
            "low": one.interval.low if one.interval is not None else one.speedup,
            "high": one.interval.high if one.interval is not None else one.speedup,
            "kind": _UNTRUSTED if one.untrusted else "during the race",
        }
        for one in last_standings(race)
        if one.speedup is not None and math.isfinite(one.speedup)
    ]
    confirmed = race.confirmed
    if confirmed is not None and confirmed.speedup is not None and confirmed.interval is not None:
        rows.append(
            {
                "contender": f"{confirmed.contender} (confirmation)",
                "speedup": confirmed.speedup,
                "low": confirmed.interval.low,
                "high": confirmed.interval.high,
                "kind": _UNTRUSTED if confirmed.untrusted else "confirmation",
            }
        )
    rows.sort(key=lambda row: -float(str(row["speedup"])))
    # Intervals from few launches can be very wide: they are clipped to the range of the speedups. The
    # interval of the confirmation is shown in full.
    speedups = [1.0, *(float(str(row["speedup"])) for row in rows)]
    if confirmed is not None and confirmed.interval is not None:
        speedups += [confirmed.interval.low, confirmed.interval.high]
    low, high = min(speedups) * 0.95, max(speedups) * 1.05
    for row in rows:
        row["low"], row["high"] = (
            max(low, float(str(row["low"]))),
            min(high, float(str(row["high"]))),
        )
    present = {str(row["kind"]) for row in rows}
    kinds = {kind: color for kind, color in _KINDS.items() if kind in present}
    y = {
        "field": "contender",
        "type": "nominal",
        "sort": None,
        "title": None,
        "axis": {"labelLimit": 260},
    }
    scale = {"domain": [low, high], "zero": False, "nice": False}
    x = {"type": "quantitative", "title": "speedup over the default", "scale": scale}
    x["axis"] = {"tickCount": 10}
    color = {
        "field": "kind",
        "type": "nominal",
        "title": None,
        "scale": {"domain": list(kinds), "range": list(kinds.values())},
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
                    "color": color,
                },
            },
            {
                "data": {"values": rows},
                "mark": {"type": "point", "size": 55},
                "encoding": {"y": y, "x": {**x, "field": "speedup"}, "color": color},
            },
        ],
    }


def race_page(race: Race) -> str:
    """Return the HTML page of a race."""
    winner, program = race.winner, ("python", "PROGRAM.py")
    outside = winner if winner is not None and is_set_outside(winner, race.default) else None
    return render_page(
        *("race.html.j2", "report.css", "charts.css", "race.css"),
        race=race,
        workload=short_label(race.workload),
        verdict=verdict_line(race).splitlines(),
        won=winner is not None,
        measured=format_duration(race.elapsed_s * 1e9),
        choices={choice.name: choice for choice in race.space.choices},
        standings=sorted(last_standings(race), key=lambda one: -(one.speedup or 0.0)),
        chart=_race_chart(race) if race.heats else "",
        forest=inline_chart(
            standings_spec(race),
            title="Final speedup of each configuration, with 95 % confidence intervals",
            description="Final speedup of each configuration with its interval; the numbers are in the table.",
        )
        if last_standings(race)
        else "",
        environment=environment_file(outside, race.default) if outside else "",
        shell=shell_line(outside, race.default, program) if outside else "",
        code=[] if winner is None else code_lines(winner),
        study="" if winner is None else study_text(winner, race.default),
    )


def _race_chart(race: Race) -> object:
    speedups = ", ".join(
        f"{one.contender} {one.speedup:.3f}" for one in last_standings(race) if one.speedup
    )
    return inline_chart(
        race_spec(race),
        title="Speedup of the configurations after each round",
        description=one_line(
            f"Speedup of each configuration over the default over time: {speedups}"
        ),
    )
