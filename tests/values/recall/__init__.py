"""Ordinary programs, written without knowledge of the detectors, to measure how much waste is found.

`held_out.txt` and the files `planted.txt` have one planted waste per program, the others none. The later ones were
written without knowledge of the detectors; a false alarm in `later_clean.txt` narrowed one rule since. Those of the
review were written with the published rules, but before the code was read; one planted program extended a rule since,
and six clean programs with real waste were corrected. The broad ones were written with the published rules before the
code was read; the fresh and further ones by the author of the rules, each before a change that they caused. Three of
their clean programs with real waste were corrected. Those of `ordinary` were written with the published rules before
the code was read; they caused one exception of a pattern, and one clean program with real waste was corrected. The
programs are data: `benchmarks/value_recall.py` writes each to a file and profiles it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
CORPORA: Final = (
    "planted",
    "clean",
    "held_out",
    "later_planted",
    "later_clean",
    "review_planted",
    "review_clean",
    "broad_planted",
    "broad_clean",
    "fresh_planted",
    "fresh_clean",
    "further_clean",
    "ordinary_planted",
    "ordinary_clean",
)
MARK: Final = "# waste"


@dataclass(frozen=True, kw_only=True)
class CorpusProgram:
    """One program, the patterns that describe its waste, and the lines that a finding may name."""

    name: str
    source: str
    patterns: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[int, ...]:
        """Numbers of the marked lines."""
        rows = enumerate(self.source.splitlines(), start=1)
        return tuple(number for number, row in rows if row.endswith(MARK))


def programs(corpus: str) -> tuple[CorpusProgram, ...]:
    """Return the programs of a corpus."""
    text = (HERE / f"{corpus}.txt").read_text(encoding="utf-8")
    pieces = re.split(r"^# %% (\w+)(?:: (.*))?\n", text, flags=re.MULTILINE)[1:]
    return tuple(
        CorpusProgram(
            name=name,
            source=source.strip() + "\n",
            patterns=tuple((patterns or "").split(", ")) if patterns else (),
        )
        for name, patterns, source in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True)
    )
