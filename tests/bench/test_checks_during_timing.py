"""Candidates that pass the first check and later become wrong, cache results or cause harm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

pytestmark = pytest.mark.torch

WORKLOAD = """
    import torch
    from torch import nn

    def make(batch_size=8):
        layers = [nn.Linear(128, 128) for _ in range(4)]
        return nn.Sequential(*layers), torch.randn(batch_size, 128)

    def not_a_number():
        return lambda x: x * float("nan"), torch.randn(8)
"""
CANDIDATES = """
    import torch

    def late(module):
        calls = [0]
        def call(x):
            calls[0] += 1
            found = module(x)
            return found if calls[0] < 500 else torch.zeros_like(found)
        return call

    def seventh(module):
        calls = [0]
        def call(x):
            calls[0] += 1
            found = module(x)
            return found if calls[0] < 200 or calls[0] % 7 else found * 2
        return call

    def remembers(module):
        known = {}
        def call(x):
            key = (x.numpy().tobytes(), float(module[0].weight[0, 0]))
            if key not in known:
                if len(known) > 64:
                    known.clear()
                known[key] = module(x)
            return known[key]
        return call

    def correct(module):
        return lambda x: module(x)

    def patches(module):
        for part in module:
            part.register_forward_hook(lambda *_: None)
        return lambda x: module(x)

    def dies(module):
        calls = [0]
        def call(x):
            calls[0] += 1
            if x.shape[0] != 8:
                import os
                os._exit(3)
            return module(x)
        return call
"""


def bench(folder: Path, only: str, *candidates: str) -> tuple[int, list[dict[str, Any]], Path]:
    """Exit code, rows and run folder of `torchyard bench`."""
    (folder / "own.py").write_text(dedent(WORKLOAD), encoding="utf-8")
    (folder / "mine.py").write_text(dedent(CANDIDATES), encoding="utf-8")
    chosen = [part for name in candidates for part in ("--candidate", f"mine.py:{name}")]
    command = [sys.executable, "-m", "torchyard", "bench", "--only", only, "--baseline", "eager"]
    limits = ["--time", "2s", "--launches", "1", "--threads", "1", "--quiet", "--json"]
    completed = subprocess.run(
        [*command, *chosen, *limits, "--run-dir", "run"],
        cwd=folder,
        env={**os.environ, "TORCHYARD_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert completed.stdout, completed.stderr
    return completed.returncode, json.loads(completed.stdout)["comparisons"], folder / "run"


def test_candidates_that_turn_wrong_or_harmful_later_are_found(tmp_path: Path) -> None:
    # WHEN candidates share a process with an correct one
    code, rows, run = bench(tmp_path, "own.py", "late", "seventh", "remembers", "correct", "dies")
    by_name = {row["candidate"].rpartition(":")[2]: row for row in rows}
    # THEN what fails in a timed block or after it is wrong, with its place
    for name in ("late", "seventh"):
        assert by_name[name]["verdict"] == "wrong", by_name[name]
        assert "launch 1, " in by_name[name]["accuracy"]["detail"]
    # AND remembered results cannot be trusted
    assert any("caches results" in text for text in by_name["remembers"]["untrusted"])
    # AND the correct candidate is right
    assert by_name["correct"]["accuracy"]["status"] == "pass"
    assert by_name["correct"]["verdict"] not in {"wrong", "failed"}
    # AND a candidate that ends the process when it is checked loses its trust, not its numbers
    assert by_name["dies"]["estimate"] is not None
    assert any("could not be checked" in text for text in by_name["dies"]["untrusted"])
    assert code == 6
    # AND the record says what the checks cost
    launch = json.loads((run / "launches.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert launch["timing"]["checked_calls"] > 0
    assert launch["timing"]["check_s"] > 0


def test_exit_code_when_every_candidate_is_wrong(tmp_path: Path) -> None:
    code, rows, _ = bench(tmp_path, "own.py", "late")
    assert [row["verdict"] for row in rows] == ["wrong"]
    assert code == 9


def test_a_change_of_the_shared_module_concerns_every_row(tmp_path: Path) -> None:
    code, rows, _ = bench(tmp_path, "own.py", "patches", "correct")
    assert code == 6
    for row in rows:
        assert any("changed the module" in text for text in row["untrusted"]), row


def test_a_workload_of_nothing_but_nan_has_no_verdict(tmp_path: Path) -> None:
    code, rows, _ = bench(tmp_path, "own.py:not_a_number", "correct")
    assert rows[0]["accuracy"]["status"] == "unchecked"
    assert any("could not be checked" in text for text in rows[0]["untrusted"])
    assert code == 6
