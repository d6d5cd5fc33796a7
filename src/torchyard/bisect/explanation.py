"""Attribution of the change: `torchyard why` between the last revision before it and the culprit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from torchyard.bisect.delta import SettingsOutcome, set_name
from torchyard.bisect.model import Outcome, SearchFolder
from torchyard.bisect.workload_rounds import WorkloadRounds
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.events import Listener
from torchyard.why.analysis import explain_comparison
from torchyard.why.model import Attribution, load, save

LAUNCHES: Final = 6
MEASURING_S: Final = 20.0
_ROW: Final = 1


def both_sides(
    outcome: Outcome | SettingsOutcome, settings: int
) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """Return names and labels of both sides of the change; None if no culprit is named.

    `settings` is the number of settings that differ.
    """
    if isinstance(outcome, SettingsOutcome):
        bits = sum(1 << part.index for part in outcome.parts)
        sides = set_name(0, settings), set_name(bits, settings)
        return (sides, ("good", "culprit")) if outcome.found else None
    if outcome.ending != "culprit":
        return None
    culprit = outcome.candidates[-1]
    before = outcome.revisions[outcome.revisions.index(culprit) - 1]
    return (before.commit, culprit.commit), (before.short, culprit.short)


def explain_change(
    rounds: WorkloadRounds,
    sides: tuple[str, str],
    labels: tuple[str, str],
    folder: SearchFolder,
    listener: Listener,
) -> Attribution:
    """Measure the attribution, unless an earlier process did."""
    path = folder.folder / "why" / f"row-{_ROW}.json"
    before, after = (
        replace(rounds.variant(name), name=label) for name, label in zip(sides, labels, strict=True)
    )
    if path.exists():
        stored = load(path)
        if (stored.baseline, stored.candidate) == (before.name, after.name):
            return stored
    study = replace(rounds.study, baseline=before, candidates=(after,))
    row = Comparison(
        workload=study.workloads[0],
        baseline=before.name,
        candidate=after.name,
        verdict=Verdict.UNDECIDED,
    )
    result = explain_comparison(
        study,
        row,
        launches=LAUNCHES,
        seconds=MEASURING_S,
        budget_s=math.inf,
        folder=folder.folder / "why",
        listener=listener,
        keep=lambda _: None,
    )
    save(result, folder.folder, _ROW)
    return result
