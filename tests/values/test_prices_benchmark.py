"""The corpus of planted waste with known savings, and the comparison with reported savings."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from torchyard.errors import UsageError  # noqa: E402
from torchyard.values.command import run  # noqa: E402

pytestmark = pytest.mark.torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return runpy.run_path(str(BENCHMARKS / "value_prices.py"))
    finally:
        sys.path[:] = before


def test_every_program_runs_as_it_is_and_fixed(benchmark: Any) -> None:
    programs = benchmark["programs"].PROGRAMS
    assert len(programs) >= 20
    for program in programs.values():
        for fixed in (False, True):
            next(program(fixed))


def test_every_held_out_program_runs_and_is_new(benchmark: Any) -> None:
    held_out = benchmark["held_out"]
    assert len(held_out.PROGRAMS) >= 20
    assert not set(held_out.PROGRAMS) & set(benchmark["programs"].PROGRAMS)
    assert len(benchmark["planted_lines"](held_out)) >= 20
    for name, program in held_out.PROGRAMS.items():
        assert benchmark["corpus_of"](name) is held_out
        for fixed in (False, True):
            next(program(fixed))


def test_every_program_has_planted_waste(benchmark: Any) -> None:
    module = benchmark["programs"]
    planted = benchmark["planted_lines"]()
    functions = [
        node
        for node in ast.parse(Path(module.__file__).read_text()).body
        if isinstance(node, ast.FunctionDef)
    ]
    marked = {
        node.name: any(node.lineno <= line <= (node.end_lineno or 0) for line in planted)
        for node in functions
    }
    helped = {"duplicate_chain", "chain_two_threads", "mask_rebuilt_in_a_loop"}
    helped |= {"mask_rebuilt_each_step"}
    assert marked["chain"]
    assert marked["causal"]
    assert {name for name in module.PROGRAMS if not marked[name]} == helped


@pytest.mark.parametrize(
    ("low", "high", "bound", "measured", "judged"),
    [
        (0.1, 0.2, 0.3, (0.14, 0.15, 0.16), ("holds", "yes")),
        (0.1, 0.2, 0.3, (0.19, 0.25, 0.27), ("holds", "yes")),
        (0.1, 0.2, 0.3, (0.21, 0.25, 0.27), ("holds", "no")),
        (0.1, 0.2, 0.3, (0.3, 0.31, 0.32), ("BROKEN", "no")),
        (0.1, 0.2, None, (0.9, 0.9, 0.9), ("none", "no")),
        (None, None, None, (0.9, 0.9, 0.9), ("none", "not measured")),
    ],
)
def test_reported_savings_are_compared_with_measured_savings(
    benchmark: Any, low: Any, high: Any, bound: Any, measured: Any, judged: Any
) -> None:
    told = benchmark["Told"](low=low, high=high, bound=bound)
    row = benchmark["judged"]("name", told, "CPU", measured)
    assert (row.bound, row.covers) == judged
    assert benchmark["line"](row).startswith("name ")


def test_once_and_gains_exclude_each_other() -> None:
    ended = CliRunner().invoke(run, ["--once", "--gains", __file__])
    assert isinstance(ended.exception, UsageError)
    assert "--once and --gains" in str(ended.exception)
