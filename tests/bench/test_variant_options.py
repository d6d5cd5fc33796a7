"""Backends and options from the specification to the row: the requested settings are applied and shown."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.bench.tiny_bench import HERE, bench, write_file
from torchyard.bench.report.formats import to_csv, to_json
from torchyard.bench.request import SpecText
from torchyard.bench.variant_text import Parts, parse_variant, with_short_names
from torchyard.core.comparison import AccuracyStatus, Verdict
from torchyard.core.study import Variant
from torchyard.presentation.wording import notes_of
from torchyard.results.run_reader import read_run

IMAGES = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x):
            return torch.relu(self.conv(x)).mean((2, 3))

    def make(batch_size=4):
        return Net(), torch.randn(batch_size, 3, 16, 16)
"""


def variants(*specs: str) -> list[Variant]:
    parts = Parts(targets={}, environments={}, here=HERE)
    return list(
        with_short_names(
            [
                parse_variant(SpecText(text=text, where="--candidate", folder=Path()), parts)
                for text in specs
            ]
        )
    )


@pytest.mark.torch
def test_options_and_backends_have_their_own_rows(tmp_path: Path) -> None:
    # GIVEN one process with several backends and options, one of which cannot be
    file = write_file(tmp_path, "images.py", IMAGES)
    chosen = variants(
        "eager",
        "eager+channels-last",
        "eager+inference-mode+matmul-precision=high",
        "torchscript:freeze",
        "export",
        "cudagraphs",
    )
    # WHEN they are measured
    rows = {
        row.candidate: row for row in bench(tmp_path / "run", file, *chosen[1:], baseline=chosen[0])
    }
    # THEN each has its own row, right and named by what it is
    assert list(rows) == [
        "eager+channels-last",
        "eager+inference-mode+matmul-precision=high",
        "torchscript:freeze",
        "export",
        "cudagraphs",
    ]
    for name, row in rows.items():
        if name != "cudagraphs":
            assert row.failure is None, row.failure
            assert row.accuracy is not None
            assert row.accuracy.status is AccuracyStatus.PASS, row.accuracy
            assert row.passed
    failure = rows["cudagraphs"].failure
    assert failure is not None
    assert failure.kind == "cannot-build"
    assert "cudagraphs requires a CUDA device" in failure.message
    # AND the others did not have to start anew for it
    launches = (tmp_path / "run" / "launches.jsonl").read_text().splitlines()
    assert json.loads(launches[0])["launch"] == 0
    assert "cudagraphs" not in json.loads(launches[0])["variants"]
    # AND an option that reduces precision says by how much, and nothing else does
    notes = {name: [n for n in row.notes if "reduces precision" in n] for name, row in rows.items()}
    (note,) = notes.pop("eager+inference-mode+matmul-precision=high")
    assert note.startswith("matmul-precision reduces precision: largest difference")
    assert not any(notes.values())
    # AND making it ahead of time is the compile time, for the break-even of whatever is faster
    assert rows["torchscript:freeze"].candidate_metrics.compile_cold_s is not None
    assert rows["eager+channels-last"].candidate_metrics.compile_cold_s is None
    run = read_run(tmp_path / "run")
    assert run.study.candidates[0].options == (("channels-last", True),)
    table = {line["candidate"]: line for line in csv.DictReader(io.StringIO(to_csv(run)))}
    # a noisy machine makes a row untrusted, which has no break-even
    has_break_even = rows["export"].break_even_iterations is not None
    assert bool(table["export"]["break_even_iterations"]) == has_break_even
    assert has_break_even or rows["export"].untrusted
    assert table["eager+channels-last"]["break_even_iterations"] == ""
    document = json.loads(to_json(run))["comparisons"]
    assert document[0]["break_even"] is None
    fields = {"iterations", "low", "high", "never", "maybe_never"}
    assert set(document[3]["break_even"] or ()) == (fields if has_break_even else set())


UNSURE = """
    import torch
    from torch import nn

    class Unsure(nn.Module):
        count = 0
        def forward(self, x):
            if x.dtype is torch.float64:
                raise TypeError("only singles here")
            self.count += 1
            return x * 2 + (self.count % 3) * 1e-3

    def make():
        return Unsure(), torch.ones(64)
"""


@pytest.mark.torch
def test_a_row_notes_the_limits_of_its_check(tmp_path: Path) -> None:
    # GIVEN a workload that is not deterministic and does not run in float64
    file = write_file(tmp_path, "unsure.py", UNSURE)
    # WHEN it is compared with itself
    (row,) = bench(tmp_path / "run", file)
    # THEN it has not passed, and the row says both
    assert row.verdict is not Verdict.WRONG
    assert row.accuracy is not None
    assert row.accuracy.status is AccuracyStatus.NONDETERMINISTIC
    assert not row.passed
    notes = notes_of(row)
    (unsure,) = [note for note in notes if note.startswith("results not checked: ")]
    assert "two runs of the baseline differ" in unsure
    (other,) = [note for note in notes if "instead of a float64 reference" in note]
    assert "TypeError: only singles here" in other
    document = json.loads(to_json(read_run(tmp_path / "run")))
    assert document["summary"]["passed"] == 0
    assert document["comparisons"][0]["accuracy"]["without_reference"]
