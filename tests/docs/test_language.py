"""Documentation, help texts, messages, docstrings and test names use standard terms: `docs/language.toml`."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORD_LISTS = tomllib.loads((ROOT / "docs" / "language.toml").read_text("utf-8"))
PHRASES = WORD_LISTS["phrases"]
TEST_NAMES = PHRASES | WORD_LISTS["test_names"]
INLINE_CODE = re.compile(r"`[^`]*`|--[a-z-]+")
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])
TEXTS = sorted(
    path for end in ("toml", "j2", "js") for path in ROOT.glob(f"src/torchyard/**/*.{end}")
)
PACKAGES = sorted(path.parent for path in ROOT.glob("src/torchyard/*/__init__.py"))
TEST_PACKAGES = sorted(path.parent for path in ROOT.glob("tests/*/__init__.py"))


@cache
def any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    r"""A pattern for text in lower case. One leading `\b` for all is 50 times as fast as one each."""
    starts = (pattern.removeprefix(r"\b").replace(r"|\b", "|") for pattern in patterns)
    return re.compile(r"\b(?:" + "|".join(f"(?:{start})" for start in starts) + ")")


def findings(text: str, first_line: int = 1, phrases: Mapping[str, str] = PHRASES) -> Iterator[str]:
    """Each phrase in the text outside of inline code, with its line and the term to use instead."""
    text = INLINE_CODE.sub(lambda code: re.sub(r"\S", " ", code[0]), text).lower()
    for match in any_of(tuple(phrases)).finditer(text):
        line = first_line + text.count("\n", 0, match.start())
        term = next(term for pattern, term in phrases.items() if re.search(pattern, match[0]))
        yield f"line {line}: {match[0]!r}; write: {term}"


def names_of(path: Path) -> Iterator[tuple[int, str]]:
    """Names of the module, its functions and classes, as separate words."""
    yield 1, path.stem.replace("_", " ")
    source = path.read_text("utf-8")
    for match in re.finditer(r"^ *(?:async )?(?:def|class) (\w+)", source, re.MULTILINE):
        words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", match[1])
        yield source.count("\n", 0, match.start()) + 1, words.replace("_", " ")


def docstrings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings of a module, its functions and classes."""
    source = path.read_text("utf-8")
    for match in re.finditer(r'(?:\A|:\n) *"""(.*?)"""', source, re.DOTALL):
        yield source.count("\n", 0, match.start(1)) + 1, match[1]


def strings_of(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, messages and other text of a module: strings that hold a blank, and comments."""
    source = path.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for number, line in enumerate(source.splitlines(), 1):
        _, mark, comment = line.partition("# ")
        if mark:
            yield number, comment


def texts_of(path: Path) -> Iterator[str]:
    """Text of a data file: the values of TOML, the rest of templates without their expressions."""
    text = path.read_text("utf-8")
    if path.suffix != ".toml":
        yield re.sub(r"\{[{%].*?[%}]\}", "", text)
        return
    values: list[object] = [tomllib.loads(text)]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str) and " " in value:
            yield value


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages(page: Path) -> None:
    prose = re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block[0].count("\n"),
        page.read_text("utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    wrong = list(findings(prose))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_source(package: Path) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} {finding}"
        for path in sorted(package.rglob("*.py"))
        for line, text in strings_of(path)
        for finding in findings(text, line)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", TEST_PACKAGES, ids=lambda path: path.name)
def test_tests(package: Path) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} {finding}"
        for path in sorted(package.rglob("*.py"))
        for texts, phrases in ((names_of, TEST_NAMES), (docstrings_of, PHRASES))
        for line, text in texts(path)
        for finding in findings(text, line, phrases)
    ]
    assert not wrong, "\n".join(wrong)


def test_data_files() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} {finding}"
        for path in TEXTS
        for text in texts_of(path)
        for finding in findings(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text", ["this mends it", "cpu (when left out)", "the sweep is gone on with", "the yard asks"]
)
def test_a_listed_phrase_is_found(text: str) -> None:
    assert list(findings(text))


def test_a_listed_word_in_a_test_name_is_found(tmp_path: Path) -> None:
    path = tmp_path / "test_keeper.py"
    path.write_text("class SharedYard: ...\ndef test_it_is_said(): ...\n")
    wrong = [
        finding for line, text in names_of(path) for finding in findings(text, line, TEST_NAMES)
    ]
    assert [finding.split(":")[0] for finding in wrong] == ["line 1", "line 1", "line 2"]


def test_standard_text_passes() -> None:
    assert list(findings("Fix the file. There is no room for the file. Resume the sweep.")) == []
