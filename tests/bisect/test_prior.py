"""Hints about where a change is: they save rounds, and cannot name an innocent revision."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest

from tests.bisect.simulated_range import SimulatedRange, named, step
from tests.builds.e2e.projects import write
from torchyard.bisect.prior import NO_CODE, SAME_SIGNATURE, weights, without_code
from torchyard.bisect.workload_rounds import generated_code
from torchyard.errors import NothingToDo, Untrustworthy

COUNT = 40


@dataclass(kw_only=True)
class HintedRange(SimulatedRange):
    """Revisions whose signature changes at one of them, whether it is the culprit or not."""

    signature_change: int = 0

    def signature(self, name: str) -> dict[str, str]:
        return {"operators": str(int(name, 16) >= self.signature_change)}


def searched(hint: str, *, size: float = 0.02) -> tuple[Counter[str], float]:
    """Search ranges with hints that are right, wrong or missing; return results and the mean number of measured revisions."""
    results: Counter[str] = Counter()
    measured = []
    for seed in range(COUNT):
        chance = random.Random(f"hint/{seed}")
        change, innocent = chance.sample(range(1, 65), 2)
        at = {"right": change, "wrong": innocent, "missing": 0}[hint]
        simulated = HintedRange(levels=step(change, size), seed=seed, signature_change=at)
        if hint != "missing":
            # All other commits seem to touch documentation only.
            simulated.unlikely = frozenset(
                one.commit for k, one in enumerate(simulated.revisions) if k != at
            )
        try:
            outcome = simulated.search()
        except (NothingToDo, Untrustworthy):
            results["no difference"] += 1
            continue
        measured.append(sum(n > 0 for n in outcome.posterior.rounds))
        if outcome.ending == "culprit":
            right = size > 0.0 and named(outcome) == [change]
            results["right" if right else "wrong"] += 1
        else:
            results[outcome.ending] += 1
    return results, fmean(measured or [math.nan])


def test_hints_at_an_innocent_revision_name_nobody_wrong() -> None:
    results, _ = searched("wrong")
    assert results["wrong"] <= 0.05 * COUNT, results
    assert results["right"] >= 0.9 * COUNT, results


def test_hints_without_a_change_name_nobody() -> None:
    results, _ = searched("wrong", size=0.0)
    assert results["no difference"] + results["no-change"] + results["remaining"] == COUNT, results


def test_right_hints_save_revisions_and_wrong_ones_cost_few() -> None:
    measured = {hint: searched(hint, size=0.1)[1] for hint in ("right", "wrong", "missing")}
    assert measured["right"] < measured["missing"] - 1.0, measured
    assert measured["wrong"] < measured["missing"] + 3.0, measured


def test_hints_alone_decide_nothing() -> None:
    """The innocent neighbor of the culprit has the only hint: both are measured before one is named."""
    simulated = HintedRange(levels=step(30, 0.1), seed=3, signature_change=31)
    simulated.unlikely = frozenset(one.commit for one in simulated.revisions[:31])
    outcome = simulated.search()
    assert named(outcome) == [30]
    assert min(outcome.posterior.rounds[29:31]) >= 3


def test_weights() -> None:
    names = ["a", "b", "c", "d", "e"]
    signatures = {"a": {"x": "1"}, "c": {"x": "1", "y": "2"}, "e": {"x": "2", "y": "2"}, "d": {}}
    same, code = SAME_SIGNATURE, NO_CODE
    assert weights(names, signatures, {"c", "d"}) == [1.0, same, same * code, code, 1.0]
    assert weights(names, {}, ()) == [1.0] * 5
    assert min(weights(names, {name: {"x": "1"} for name in names}, names)) >= 0.01 - 1e-9


@pytest.mark.parametrize(
    ("files", "named_in", "expected"),
    [
        (["docs/index.rst", "README.md", "tests/test_a.py"], "./bench", True),
        ([], "./bench", True),
        (["docs/index.rst", "src/a.c"], "./bench", False),
        (["tests/bench.py"], "python tests/bench.py", False),
        (["tests/bench.py"], "python bench.py", False),
        (["README.md"], "wc README.md", False),
        (["CMakeLists.txt"], "./bench", False),
        (["requirements.txt"], "./bench", False),
        (["src/doc.c", "docs.c"], "./bench", False),
        ([".github/workflows/a.yml", "LICENSE", "CHANGELOG.txt"], "./bench", True),
    ],
)
def test_commits_without_code(files: list[str], named_in: str, expected: bool) -> None:
    assert without_code(files, named_in) == expected


def test_generated_code_without_paths(tmp_path: Path) -> None:
    for name in ("one", "two"):
        cache = tmp_path / name
        write(cache, {f"inductor/{name}/{name}.py": f"# from {name}\nload('{cache}/x')\n"})
        write(cache, {f"inductor/{name}.cpp": "int f();\n", f"{name}.log": name})
    assert len(generated_code(tmp_path / "one")) == 2
    assert generated_code(tmp_path / "one") == generated_code(tmp_path / "two")
    write(tmp_path / "two", {"inductor/two.cpp": "int g();\n"})
    assert generated_code(tmp_path / "one") != generated_code(tmp_path / "two")
