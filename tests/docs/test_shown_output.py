"""Output shown in the documentation consists of words that the program still prints."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(
            path
            for folder in ("tutorial", "howto", "explanation")
            for path in (ROOT / "docs" / folder).rglob("*.md")
        ),
    ]
)
TEXT_FILES = {".py", ".toml", ".j2", ".c", ".h", ".sh"}
FENCE = re.compile(r"^ *```(?P<language>\w*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"(\$ |[A-Z_]+=\S+ )?\(?(torchyard|sudo|python|pip|pipx|git|curl|make|export|set|umask|source|sh) |\.venv/"
)
TWO_WORDS = re.compile(r"(?=(?<![\w'./-])([A-Za-z][a-z']+) ([a-z][a-z']+)(?![\w'./+:=-]))")
BESIDE_VALUES = frozenset(
    [
        "accuracy checked",
        "at index",
        "compiled ms",
        "compiling inductor",
        "default rank",
        "dynamic was",
        "eager ms",
        "eager waits",
        "environment current",
        "inductor untrusted",
        "inference cuda",
        "jobs for",
        "loss ms",
        "memory none",
        "mismatch at",
        "ms per",
        "ms to",
        "mul at",
        "mul before",
        "mul writes",
        "none are",
        "ns to",
        "of cpu",
        "of positions",
        "over eager",
        "overwritten whole",
        "per program",
        "prepare over",
        "process python",
        "python used",
        "release changed",
        "relocation auto",
        "size mismatch",
        "sources folder",
        "variant native",
        "variant plain",
        "was waiting",
        "which none",
        "whole by",
        "with inductor",
        "written buffers",
        "zeros at",
    ]
)
"""Pairs in which one word is a value: a name, a unit, a message of torch."""


@cache
def printed_pairs() -> frozenset[str]:
    """All pairs of adjacent words in the source, where literals may be continued."""
    pairs: set[str] = set()
    for path in (ROOT / "src").rglob("*"):
        if path.suffix in TEXT_FILES:
            text = re.sub(r"""["']\s*\n\s*f?["']""", "", path.read_text("utf-8"))
            pairs.update(" ".join(pair) for pair in TWO_WORDS.findall(re.sub(r"\s+", " ", text)))
    return frozenset(pairs)


def output_of(page: Path) -> list[str]:
    """Lines of fenced blocks without a language that are neither commands nor omissions."""
    lines: list[str] = []
    for block in FENCE.finditer(page.read_text("utf-8")):
        continued = False
        for line in block["body"].splitlines() if not block["language"] else ():
            is_command = continued or COMMAND.match(line.strip())
            continued = bool(is_command) and line.endswith("\\")
            if not is_command and not line.startswith("..."):
                lines.append(line)
    return lines


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_words_of_shown_output(page: Path) -> None:
    shown = {" ".join(pair) for line in output_of(page) for pair in TWO_WORDS.findall(line)}
    assert not shown - printed_pairs() - BESIDE_VALUES, (
        f"update the output shown in {page.relative_to(ROOT)}"
    )


def test_outdated_words_are_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```\n$ torchyard bench\nspeedup changed at once by -40.8%\n```\n")
    assert output_of(page) == ["speedup changed at once by -40.8%"]
    assert "speedup changed" not in printed_pairs()
    assert "step change" in printed_pairs()
