"""`torchyard batch-size` and `bench --batch-size largest`: output and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.command_line import call, program
from torchyard.bench.batch_search import (
    LARGEST_TRIED,
    BatchSearch,
    BatchTry,
    result_lines,
    search_json,
    search_text,
    tries_text,
    try_line,
)
from torchyard.bench.commands import batch_size
from torchyard.core.study import Workload

Capture = pytest.CaptureFixture[str]
GOLDEN = Path(__file__).parents[2] / "golden"
MIB = 2**20


def fitting(size: int, variant: str, iteration_ms: float, tensors: int) -> BatchTry:
    return BatchTry(
        batch_size=size,
        variant=variant,
        fits=True,
        iteration_ns=iteration_ms * 1e6,
        peak_memory_bytes=tensors * MIB,
        used_bytes=(400 + tensors) * MIB,
        left_bytes=12 * 2**30 - tensors * MIB,
        duration_s=4.0,
    )


TRIES = (
    fitting(1, "eager", 10.0, 64),
    fitting(1, "inductor", 8.0, 48),
    fitting(2, "eager", 11.0, 128),
    fitting(2, "inductor", 9.0, 96),
    fitting(4, "eager", 21.0, 256),
    fitting(4, "inductor", 17.8, 192),
    BatchTry(
        batch_size=8,
        variant="eager",
        fits=False,
        kind="out-of-memory",
        reason="used 1.02 GiB of the 1.00 GiB it may use while it worked on 'warm'",
    ),
    fitting(6, "eager", 31.0, 384),
    replace(fitting(6, "inductor", 26.6, 288), peak_memory_bytes=None, iteration_ns=None),
    BatchTry(batch_size=7, variant="eager", fits=False, kind="timeout"),
)
SEARCH = BatchSearch(
    workload=Workload(suite="models", name="gpt"),
    variants=("eager", "inductor"),
    tries=TRIES,
    most=1024,
    memory_limit_bytes=1024 * MIB,
)


def test_the_table_and_the_answer() -> None:
    """To accept a new text, delete the golden file and run the test twice."""
    text = search_text(SEARCH) + "\n"
    path = GOLDEN / "batch-size.txt"
    if not path.exists():
        path.write_text(text)
        pytest.fail(f"{path.name} was missing and is written now; look at it and run again")
    assert text == path.read_text()


def test_json_has_everything() -> None:
    document = json.loads(json.dumps(search_json(SEARCH)))
    assert (document["batch_size"], document["multiple"], document["most"]) == (6, 1, 1024)
    assert document["pays_up_to"] == {"eager": 4, "inductor": 2}
    assert document["memory_limit_bytes"] == 1024 * MIB
    assert len(document["tries"]) == len(TRIES)
    assert document["tries"][0]["samples_per_second"] == pytest.approx(100.0)
    assert document["tries"][6]["kind"] == "out-of-memory"


def test_other_outcomes() -> None:
    allowed = replace(SEARCH, tries=TRIES[:6], most=4)
    assert result_lines(allowed)[0] == "largest batch size: 4, the largest size allowed"
    refused = BatchTry(batch_size=1, variant="eager", fits=False, kind="out-of-memory")
    assert result_lines(replace(SEARCH, tries=(refused,))) == ["a batch size of 1 does not fit"]
    coarse = (fitting(64, "eager", 1.0, 1), replace(refused, batch_size=72))
    assert (
        "largest batch size: 64, a multiple of 8; 72 does not fit with eager"
        in (result_lines(replace(SEARCH, tries=coarse))[0])
    )
    assert "does not fit: out-of-memory" in tries_text([refused])


def test_lines_of_progress() -> None:
    assert try_line(TRIES[0]) == "batch size 1, eager: 100 samples/s, 64.0 MiB of tensors"
    assert "batch size 8, eager: does not fit: used 1.02 GiB" in try_line(TRIES[6])


def test_the_limit_in_the_help_is_that_of_the_search() -> None:
    assert batch_size.LARGEST_TRIED == LARGEST_TRIED


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "Missing argument 'WORKLOAD'"),
        (["models/gtp"], "has no workload 'gtp'"),
        (["models/gpt", "--largest", "0"], "--largest: '0' is out of range"),
        (["models/gpt", "--largest", "many"], "--largest: 'many' is not a whole number"),
        (["models/gpt", "--backend", "inductr"], "--backend"),
        (["models/gpt", "--memory-limit", "8 apples"], "--memory-limit"),
        (["models/gpt", "--mode", "train"], "'train' is not one of"),
    ],
)
def test_wrong_use(capsys: Capture, arguments: list[str], says: str) -> None:
    completed = call(capsys, "batch-size", *arguments)
    assert completed.code == 2
    assert says in completed.err
    assert "hint:" in completed.err


def test_a_bench_announces_the_search(capsys: Capture) -> None:
    completed = call(
        capsys, "bench", "--only", "models/gpt", "--batch-size", "largest", "--dry-run"
    )
    assert completed.code == 0
    assert "the largest batch size of each workload would be searched for first" in completed.err
    completed = call(capsys, "bench", "--only", "models/gpt", "--batch-size", "huge", "--dry-run")
    assert completed.code == 2
    assert "--batch-size: 'huge' is not a whole number" in completed.err


@pytest.mark.torch
def test_a_real_search(tmp_path: Path) -> None:
    """Progress is talk on stderr, the answer is data on stdout."""
    arguments = ["kernels/layered-mlp:layers=2", "--backend", "eager", "--largest", "1"]
    completed = program("batch-size", *arguments, "--json", cwd=tmp_path)
    document = completed.document
    assert (document["schema"], document["batch_size"], document["variants"]) == (1, 1, ["eager"])
    assert document["tries"][0]["used_bytes"] > 100 * MIB
    assert "batch size 1, eager:" in completed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
def test_nothing_fits(tmp_path: Path) -> None:
    arguments = ["kernels/layered-mlp", "--backend", "eager", "--memory-limit", "64MiB", "--quiet"]
    completed = program("batch-size", *arguments, cwd=tmp_path)
    assert completed.code == 5
    assert completed.out.rstrip().endswith("a batch size of 1 does not fit")
    assert "out-of-memory" in completed.out or "above its memory limit" in completed.out
