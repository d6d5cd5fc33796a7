"""A race as one HTML page that needs nothing else: the verdict, the picture, how to use it."""

from __future__ import annotations

from torchyard.core.race import Race
from torchyard.core.units import format_duration
from torchyard.reports.html_page import asset, fingerprint, template_engine
from torchyard.reports.plain_text import one_line
from torchyard.reports.race_charts import race_spec, standings_spec
from torchyard.reports.race_text import last_standings, verdict_line
from torchyard.reports.vega import inline_chart
from torchyard.tune.recipe_text import (
    code_lines,
    environment_file,
    is_set_outside,
    shell_line,
    study_text,
)

__all__ = ["race_page"]


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
