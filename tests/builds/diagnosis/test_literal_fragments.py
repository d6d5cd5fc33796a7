"""Literal fragments of patterns: no line that a pattern matches is skipped."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchyard.builds.diagnosis.matching import FragmentSearch
from torchyard.builds.diagnosis.signature import load_signatures, required_fragments

PATTERNS = sorted({p for s in load_signatures() for p in (*s.any, *s.all)})


@pytest.mark.parametrize(
    ("pattern", "fragments"),
    [
        ("No space left", {"no space left"}),
        (r"abcd\.efgh", {"abcd.efgh"}),
        (r"abcd.efghi", {"efghi"}),
        (r"abcd?efgh", {"efgh"}),
        (r"abcd*efg", {"abc", "efg"}),
        (r"abcd+efg", {"abcd"}),
        (r"abcd{2}e", {"abcd"}),
        (r"abcdx{0,3}ef", {"abcd"}),
        ("abcdef|ghijkl", {"abcdef", "ghijkl"}),
        ("x(?:abcdef|ghijkl)y", {"abcdef", "ghijkl"}),
        ("(?:abcdef)?xyz", {"xyz"}),
        ("(?P<name>abcdef)x", {"abcdef"}),
        ("(?!abcdef)xyz", {"xyz"}),
        ("[abcdef]xyz", {"xyz"}),
        (r"[]\]a]xyz", {"xyz"}),
        (r"\bword\b", {"word"}),
        (r"\d+\s*", set()),
        ("abcdef|.*", set()),
        (r"ab\[cd", {"ab[cd"}),
    ],
)
def test_fragments_of_patterns(pattern: str, fragments: set[str]) -> None:
    found = required_fragments(pattern)
    if pattern == r"abcd*efg":
        assert found <= fragments
        assert len(found) == 1
    else:
        assert found == fragments


@given(data=st.data(), pattern=st.sampled_from(PATTERNS))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_a_shipped_pattern_matches_has_its_fragment(data: st.DataObject, pattern: str) -> None:
    text = data.draw(st.from_regex(re.compile(pattern, re.IGNORECASE | re.ASCII)))
    lowered = text.lower()
    assert any(fragment in lowered for fragment in required_fragments(pattern))


_LITERAL = st.text(alphabet="abcxyz ._-", min_size=1, max_size=6).map(re.escape)
_SOME_PATTERN = st.recursive(
    _LITERAL,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["?", "*", "+", "{2}", "{0,2}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda text: rf"{text}[a-c]\w?"),
    ),
    max_leaves=6,
)


@given(data=st.data(), pattern=_SOME_PATTERN)
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_any_pattern_matches_has_its_fragment(data: st.DataObject, pattern: str) -> None:
    fragments = required_fragments(pattern)
    text = data.draw(st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True))
    assert not fragments or any(fragment in text.lower() for fragment in fragments)


_WORDS = st.sampled_from(
    [b"no space", b"left on", b"killed", b"e: ", b"*** ", b"x", b"error", b" "]
)
_LINES = st.lists(st.lists(_WORDS, max_size=4).map(b"".join), max_size=12)


@given(lines=_LINES)
def test_the_gate_finds_what_a_plain_search_finds(lines: list[bytes]) -> None:
    fragments = [b"no space left on", b"killed", b"e: ", b"*** ", b"error", b"or ki", b"space"]
    found = FragmentSearch(fragments).hits(b"\n".join(lines))
    expected = {
        index: {fragment for fragment in fragments if fragment in line}
        for index, line in enumerate(lines)
        if any(fragment in line for fragment in fragments)
    }
    assert {index: set(texts) for index, texts in found.items()} == expected
