"""Tables of results with the real pandas; skipped where it is not installed."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.results.simulated_runs import Plan, write_session

pytestmark = pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")

# In a process of its own: pandas changes the state of the process that imports it.
PROGRAM = """
import sys
from dataclasses import replace

import pandas
import torchyard

run = torchyard.read_run(sys.argv[1])
table = run.to_pandas()
assert list(table["candidate"]) == [one.candidate for one in run.comparisons]
assert len(table) == 4
assert (table["low"] < table["speedup"]).all()
assert (table["speedup"] < table["high"]).all()
for name in ("speedup", "low", "high", "p_value", "baseline_s", "candidate_s"):
    assert table[name].dtype == "float64", name
assert table["trusted"].dtype == bool
times = table["baseline_s"] / table["candidate_s"]
assert (abs(times / table["speedup"] - 1) < 0.01).all()
mean = table.groupby("candidate")["speedup"].mean()
assert mean["fast"] > mean["slow"]

one = run.comparisons[0]
assert one.to_pandas().equals(table.iloc[:1])
empty = replace(one, result=replace(one.result, estimate=None)).to_pandas()
assert empty[["speedup", "low", "high"]].isna().all().all()

measured = torchyard.Measurement(name="f", times_s=(1.0, 2.0), calls_per_time=3).to_pandas()
assert measured["time_s"].median() == 1.5
"""


def test_tables_have_numbers_that_pandas_computes_with(tmp_path: Path) -> None:
    write_session(tmp_path / "run", Plan())
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr
