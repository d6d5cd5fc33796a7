from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.presentation.safe_text import one_line, plain_lines
from torchyard.presentation.tables import fact_rows


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 漢字 👩", "plain ü 漢字 👩"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07after", "after"),
        ("\x9b31mred", "red"),
        ("\x1bcreset", "reset"),
        ("cut off \x1b[", "cut off"),
        ("a\u202eb\u2066c\u200fd\ufeffe", "abcde"),
        ("two\nlines\tand\u2028more", "two lines and more"),
        ("bytes \udcff end", "bytes \ufffd end"),
        ("nul\x00bell\x07", "nulbell"),
    ],
)
def test_one_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x2100)))
def test_no_text_controls_the_terminal(text: str) -> None:
    shown = plain_lines(text)
    shown.encode()
    assert all(char in "\n\t" or ord(char) >= 32 for char in shown)
    assert not set(shown) & set("\x7f\x9b\u202e\u2066\u200e")
    assert one_line(one_line(text)) == one_line(text)


def test_a_progress_bar_shows_its_last_state() -> None:
    assert plain_lines("start\r\n10%\r50%\r100%\ndone\n\n") == "start\n100%\ndone"


def test_long_logs_keep_their_end() -> None:
    shown = plain_lines("\n".join(str(number) for number in range(1000)), last=3)
    assert shown == "[997 earlier lines omitted]\n997\n998\n999"


def test_facts_of_any_shape() -> None:
    facts = {
        "cpu": {"model": "Example", "flags": ["avx2", "amx"]},
        "memory_bytes": 2**30,
        "turbo": False,
        "clock_ghz": 3.5,
        "governor": None,
        "devices": [{"name": "A"}, {"name": "B"}],
        "config": "line\nline",
        "odd": float("nan"),
        "none": [],
    }
    assert fact_rows(facts) == [
        ("cpu.model", "Example"),
        ("cpu.flags", "avx2, amx"),
        ("memory_bytes", "1.00 GiB"),
        ("turbo", "no"),
        ("clock_ghz", "3.5"),
        ("governor", "unavailable"),
        ("devices[0].name", "A"),
        ("devices[1].name", "B"),
        ("config", "line\nline"),
        ("odd", "unavailable"),
        ("none", "none"),
    ]
