"""A race in words: who ran, who left and why, who has won, and how to use it."""

from __future__ import annotations

from collections.abc import Sequence

from torchyard.core.comparison import Interval
from torchyard.core.race import DEFAULT_NAME, Race, Standing
from torchyard.core.units import format_duration
from torchyard.reports.plain_text import aligned, one_line
from torchyard.tune.recipe_text import code_lines, is_set_outside, shell_line, study_text

__all__ = ["last_standings", "race_text", "space_text", "verdict_line"]


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
