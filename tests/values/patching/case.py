"""One program of the corpus: its source, and the change that a hasty reader of the profile would make.

A program gets the word `other` to run on values of another kind, of the same shapes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

START = """\
import sys

import torch

OTHER = "other" in sys.argv
torch.manual_seed(1)


def values(step=0):
    x = torch.randn(64, 256)
    if OTHER and step % 2 == 0:
        x[::5] += 50
    return x


def unusual(x):
    return bool((x > 40).any())


"""
"""The first lines of every program."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program."""

    name: str
    source: str
    change: tuple[tuple[str, str], ...]
    """Texts to replace: the tempting patch, or the one that must be proposed."""
    kind: str = ""
    """Class of the patch that must be proposed; empty if none may be."""
    classes: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    """Other files of the program."""

    @property
    def changed(self) -> str:
        """Return the source with the change."""
        source = self.source
        for old, new in self.change:
            assert source.count(old) == 1, (self.name, old)
            source = source.replace(old, new)
        return source

    def write(self, folder: Path) -> Path:
        """Write the program to a folder; return its script."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(text, encoding="utf-8")
        script = folder / "program.py"
        script.write_text(self.source, encoding="utf-8")
        return script


class Register:
    """Collects the cases of a module."""

    def __init__(self) -> None:
        self.cases: list[Case] = []

    def add(
        self,
        name: str,
        source: str,
        *change: tuple[str, str],
        start: str = START,
        kind: str = "",
        classes: Iterable[str] = (),
        files: dict[str, str] | None = None,
    ) -> None:
        """Add a program; its source is dedented and put behind `start`."""
        text = start + textwrap.dedent(source).lstrip("\n")
        others = {file: textwrap.dedent(body).lstrip("\n") for file, body in (files or {}).items()}
        case = Case(
            name=name,
            source=text,
            change=change,
            kind=kind,
            classes=tuple(classes),
            files=others,
        )
        assert case.changed != case.source
        assert name not in {one.name for one in self.cases}
        self.cases.append(case)
