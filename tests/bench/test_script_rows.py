"""The rows of a training script: notes about data loading, and no leftover processes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from textwrap import dedent

import pytest

from tests.bench.tiny_bench import leftover_processes
from tests.cli.command_line import call

Capture = pytest.CaptureFixture[str]
LOADING = """
    import argparse
    import time
    import torch
    from torch.utils.data import DataLoader, Dataset

    parser = argparse.ArgumentParser()
    parser.add_argument("--delay", type=float)
    delay = parser.parse_args().delay

    class Slow(Dataset):
        def __len__(self):
            return 10**6
        def __getitem__(self, index):
            time.sleep(delay)
            return torch.ones(8)

    if __name__ == "__main__":
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for batch in DataLoader(Slow(), batch_size=2, num_workers=1):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
"""


@pytest.mark.torch
def test_the_row_says_that_steps_wait_for_data(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(dedent(LOADING), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    options = ["--script-args", "--delay 0.02", "--baseline", "eager", "--candidate", "amp"]
    budget = ["--time", "2s", "--launches", "1", "--threads", "1", "--run-dir", str(folder)]
    completed = call(capsys, "bench", "--script", "train.py", *options, *budget, "--json")
    assert completed.code in (0, 6), completed.err
    (row,) = json.loads(completed.out)["comparisons"]
    assert row["verdict"] != "failed", row
    assert not row["shared_process"]
    assert row["accuracy"]["status"] in {"pass", "less-accurate"}
    notes = " ".join(row["notes"])
    assert "of a step is spent waiting for data (DataLoader)" in notes
    assert "bound by data loading" in notes
    assert leftover_processes(os.getpid()) == []
    shown = call(capsys, "report", str(folder))
    assert "train.py training" in shown.out
    refused = call(capsys, "why", str(folder), "--row", "1")
    assert refused.code == 2
    assert "training scripts" in refused.err
