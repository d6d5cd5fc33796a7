"""Complete runs of `bench a.py b.py`: correct, wrong and failing candidates beside each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.tiny_bench import write_file
from tests.cli.command_line import program

pytestmark = pytest.mark.torch

FUNCTIONS = """
import torch
def example_inputs(): return torch.randn(64, 64)
def matmul(x): return x @ x
def einsum(x): return torch.einsum("ij,jk->ik", x, x)
def wrong(x): return x * x
"""


def test_functions_and_files_are_compared_in_one_run(tmp_path: Path) -> None:
    write_file(tmp_path, "a.py", FUNCTIONS)
    write_file(tmp_path, "b.py", "def run(x): return x.mm(x)\ndef fails(x): return x.missing()")
    files = ["a.py:matmul", "a.py:einsum", "b.py:run", "a.py:wrong", "b.py:fails"]
    options = ["--time", "1s", "--launches", "1", "--threads", "1", "--run-dir", "run", "--json"]
    completed = program("bench", *files, *options, cwd=tmp_path)
    assert completed.code in (0, 6), completed.err
    rows = json.loads(completed.out)["comparisons"]
    assert [row["candidate"] for row in rows] == files[1:]
    assert {row["baseline"] for row in rows} == {"a.py:matmul"}
    assert [row["accuracy"] and row["accuracy"]["status"] for row in rows][:3] == [
        "pass",
        "pass",
        "fail",
    ]
    assert rows[2]["verdict"] == "wrong"
    assert rows[3]["verdict"] == "failed"
    assert "missing" in rows[3]["failure"]["message"]
    assert all(row["shared_process"] for row in rows)
    table = program("report", "run", cwd=tmp_path, COLUMNS="80").out
    assert "b.py:run" in table
    assert f"{tmp_path}/a.py" not in table
