"""The output of a program that runs to its end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from torchyard.process.capture import capture


def test_outputs_exit_code_and_no_input() -> None:
    done = capture(("sh", "-c", "cat; echo out; echo err >&2; exit 3"))
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "err\n")


def test_both_outputs_together() -> None:
    done = capture(("sh", "-c", "echo out; echo err >&2"), together=True)
    assert done.stdout.splitlines() == ["out", "err"]


def test_variables_and_folder(tmp_path: Path) -> None:
    done = capture(("/bin/sh", "-c", "echo $A $HOME; pwd"), variables={"A": "1"}, folder=tmp_path)
    assert done.stdout.splitlines() == ["1", str(tmp_path)]


def test_bytes_that_are_not_text_are_replaced() -> None:
    assert capture(("printf", r"a\377b")).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_time_limit_and_missing_program() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        capture(("sleep", "60"), limit_s=0.2)
    with pytest.raises(FileNotFoundError):
        capture(("/no/such/program",))
