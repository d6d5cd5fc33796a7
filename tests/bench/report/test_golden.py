"""Every format against its golden file. UPDATE_GOLDEN=1 rewrites them; check the difference."""

from __future__ import annotations

import os
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench.sample_run import write_run
from tests.presentation.page_outline import page_outline
from torchyard.bench.report.formats import FORMATS
from torchyard.bench.report.text import comparison_table
from torchyard.results.run_reader import Run

GOLDEN = Path(__file__).parents[2] / "golden"
ENDINGS = {
    "terminal": "txt",
    "markdown": "md",
    "csv": "csv",
    "dynamo-csv": "dynamo.csv",
    "json": "json",
    "html": "html",
    "roofline": "roofline.txt",
}
PICTURES = {"roofline-svg"}
"""Drawn by another program; what is in them is tested with their data."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("runs") / "sample")


def check(name: str, text: str) -> None:
    """Compare with the golden file; of a page, its outline."""
    if name.endswith(".html"):
        name, text = f"{name}.txt", page_outline(text)
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_bytes(text.encode())
    expected = path.read_bytes().decode()
    assert _rounded(text) == _rounded(expected), f"{name} differs; UPDATE_GOLDEN=1 accepts it"


def _rounded(text: str) -> str:
    """Round numbers of more than 12 digits: the last ones depend on the processor."""
    return re.sub(r"\d+\.\d{12,}(e-?\d+)?", lambda number: f"{float(number[0]):.12g}", text)


def test_every_format_has_a_golden_file() -> None:
    assert set(ENDINGS) | PICTURES == set(FORMATS)


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_format(name: str, run: Run) -> None:
    check(f"report.{ENDINGS[name]}", FORMATS[name](run).replace(str(run.folder), "FOLDER"))


@pytest.mark.parametrize("width", [80, 120])
def test_table_of_a_terminal(width: int, run: Run) -> None:
    page = StringIO()
    console = Console(
        file=page, width=width, force_terminal=True, color_system="standard", _environ={}
    )
    console.print(comparison_table(run.comparisons, precision_goal=0.01))
    check(f"terminal-{width}.txt", page.getvalue())
