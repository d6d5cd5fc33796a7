"""Runs of a real torch: variants paired again, two runs with one baseline, and a gate on them.

The machine of a test may be busy; then the answer must be that nothing is supported, never a verdict.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.tiny_bench import HERE, bench, write_file
from torchyard.core.comparison import Verdict
from torchyard.core.study import Environment, Variant
from torchyard.results.baselines import read_baseline_file, write_baseline_file
from torchyard.results.compare.compare_sides import compare_sides
from torchyard.results.compare.model import CrossRow
from torchyard.results.compare.sides import Rules, Side
from torchyard.results.gate.decision import Gate, compare_inside, run_gate
from torchyard.results.run_reader import Run, read_run

pytestmark = [pytest.mark.torch, pytest.mark.slow]

MODEL = """
    import os
    import torch

    TIMES = int(os.environ["TIMES"])

    def work(x):
        for _ in range(TIMES):
            y = x @ x
        return y

    def make():
        return work, torch.randn(64, 64)
"""


def variant(name: str, times: int) -> Variant:
    variables = (("TIMES", str(times)),)
    return Variant(name=name, target=HERE, environment=Environment(name=name, variables=variables))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """Base does 8 pieces of work, `half` 4; `quarter` 2, and in the second run 8."""
    folder = tmp_path_factory.mktemp("live")
    model = write_file(folder, "model.py", MODEL)
    for name, pieces in (("first", 2), ("second", 8)):
        bench(
            folder / name,
            model,
            variant("half", 4),
            variant("quarter", pieces),
            baseline=variant("base", 8),
            launches=3,
        )
    return read_run(folder / "first"), read_run(folder / "second")


def holds(row: CrossRow, wanted: float, *, untrusted: bool) -> None:
    """A trusted ratio is near; a result that is not trusted supports no verdict."""
    if untrusted:
        assert row.support == "not supported"
        assert row.verdict in {None, Verdict.UNTRUSTED}
    else:
        assert row.ratio == pytest.approx(wanted, rel=0.5)
        assert row.verdict is not None


def test_two_candidates_of_one_run(runs: tuple[Run, Run]) -> None:
    first, _ = runs
    comparison = compare_sides(
        Side(text="first#half", runs=(first,), variant="half"),
        Side(text="first#quarter", runs=(first,), variant="quarter"),
        Rules(),
    )
    (row,) = comparison.rows
    assert row.basis == "pairs"
    holds(row, 2.0, untrusted=not all(one.trusted for one in first.comparisons))


def test_two_runs_and_a_gate(runs: tuple[Run, Run], tmp_path: Path) -> None:
    first, second = runs
    write_baseline_file(tmp_path / "base.json", "main", [first])
    before = read_baseline_file(tmp_path / "base.json")
    comparison = compare_sides(
        Side(text="base.json", runs=before), Side(text="second", runs=(second,)), Rules()
    )
    rows = {row.other.variant: row for row in comparison.rows}
    assert not [fact for fact in comparison.facts if fact.blocks]
    for name, expected in (("half", 1.0), ("quarter", 0.25)):
        sides = [one for run in runs for one in run.comparisons if one.candidate == name]
        holds(rows[name], expected, untrusted=not all(one.trusted for one in sides))
    outcome = run_gate(comparison, Gate(max_slowdown=0.5))
    standings = {row.variants[1]: row.standing for row in outcome.rows}
    assert standings["quarter"] in {"crossed", "unsupported", "undecided", "untrusted"}
    assert outcome.failed or standings["quarter"] in {"undecided", "untrusted"}


def test_a_gate_on_the_run_itself(runs: tuple[Run, Run]) -> None:
    first, _ = runs
    outcome = run_gate(
        compare_inside(Side(text="first", runs=(first,)), Rules()), Gate(max_slowdown=0.02)
    )
    assert {row.standing for row in outcome.rows} <= {
        *("kept", "unsupported", "undecided", "untrusted"),
    }
    for row in outcome.rows:
        assert row.slowdown is not None
        if row.standing == "kept":
            assert row.slowdown < 0.0
