"""Attributions in the folder of the run that they explain."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Final

from torchyard.core.records import decode, encode
from torchyard.files.safe_reading import read_json
from torchyard.files.safe_writing import replace_json
from torchyard.why.model import Attribution

FOLDER: Final = "why"


def save(result: Attribution, run: Path, row: int) -> Path:
    """Write the attribution of a row; an earlier one of the same row is replaced."""
    path = run / FOLDER / f"row-{row}.json"
    path.parent.mkdir(exist_ok=True)
    replace_json(path, encode(result))
    return path


def new_ablation_folder(run: Path, row: int) -> Path:
    """Return a new folder for the comparisons with one decision changed."""
    for number in count(1):
        folder = run / FOLDER / f"row-{row}-compiler-{number}"
        if not folder.exists():
            return folder
    raise AssertionError


def load(path: Path) -> Attribution:
    """Read an attribution."""
    return decode(Attribution, read_json(path), where=str(path), strict=False)
