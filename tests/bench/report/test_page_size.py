"""The report of 200 workloads stays below 3 MB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "report_size.py"


@pytest.mark.slow
def test_two_hundred_workloads_stay_under_three_megabytes() -> None:
    completed = subprocess.run(
        [sys.executable, BENCHMARK, "200"], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
