"""`torchyard explain` knows the headings of all tables that reports show."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from torchyard.cli.explain import load_explanations, load_synonyms, term_key

SOURCE = Path(__file__).parents[2] / "src" / "torchyard"
HEADING = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
NOT_SHOWN = re.compile(
    r'\{\{.*?\}\}|\{%.*?%\}|<span class="visually-hidden">.*?</span>|<details>.*?</details>',
    re.DOTALL,
)
HEADINGS_NAME = re.compile(r"head(ing)?s?$|^COLUMNS$", re.IGNORECASE)
ASSIGNED = re.compile(r"(?:head(?:ing)?s?|\bCOLUMNS)\s*[:=]", re.IGNORECASE)
ORDINARY_WORDS = frozenset(
    [
        "#",
        "after",
        "after-before",
        "and",
        "before",
        "between",
        "cpu-temperature",
        "description",
        "detail",
        "from-to",
        "kind",
        "last-run",
        "location",
        "result",
        "runs",
        "since",
        "speedup-over-time",
        "started",
        "state",
        "torch",
        "value",
        "vs",
    ]
)
"""Words that mean what they mean everywhere."""
OTHER_COLUMNS = frozenset({"machine/gpu/amd.py", "results/report.py", "bench/report/formats.py"})
"""Modules whose headings are those of other programs' files, or come from their callers."""


def headings_of_pages() -> Iterator[str]:
    """Headings of HTML tables, without those that come from data."""
    for path in SOURCE.rglob("*.j2"):
        for heading in HEADING.findall(NOT_SHOWN.sub("", path.read_text("utf-8"))):
            yield re.sub(r"<[^>]*>|\(UTC\)", "", heading)


def headings_of_tables() -> Iterator[str]:
    """Headings of text tables: constant tuples with such a name."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        if path.relative_to(SOURCE).as_posix() in OTHER_COLUMNS or not ASSIGNED.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Assign | ast.AnnAssign):
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and HEADINGS_NAME.search(target.id):
                for part in node.value.elts if isinstance(node.value, ast.Tuple) else ():
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part.value


def test_headings_are_explained() -> None:
    explained = {*load_explanations(), *load_synonyms(), *ORDINARY_WORDS, ""}
    pages, tables = set(headings_of_pages()), set(headings_of_tables())
    assert len(pages) > 40
    assert len(tables) > 40
    assert sorted(text for text in pages | tables if term_key(text) not in explained) == []


def test_unknown_words_are_not_explained() -> None:
    assert term_key("GPU clock held: power brake") in load_explanations()
    assert term_key("wibble") not in {*load_explanations(), *load_synonyms()}


def test_terms_of_pages_and_their_synonyms_are_explained() -> None:
    explained = {*load_explanations(), *load_synonyms()}
    terms = (
        "busy, p-value, geometric mean, CI, cold cache, warm-up, false discovery rate, type I error, ASLR, alpha, "
        "steal time, autocast, tolerance, CUDA graphs, KV cache, DDP, FSDP2, IQR, statistical power, quantization, "
        "torch.compile, hyperthreading, C-states, huge pages, tcmalloc, run folder, lock file, why, culprit, scope"
    )
    assert [term for term in terms.split(", ") if term_key(term) not in explained] == []
    assert {key for key in load_synonyms().values() if key not in explained} == set()
