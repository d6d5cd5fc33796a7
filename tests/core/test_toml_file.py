"""The TOML reader: valid files, limits, and errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.core.toml_file import LARGEST_BYTES, MAX_DEPTH, parse_toml, read_toml
from torchyard.errors import UsageError


def nested(depth: int) -> str:
    return "x = " + "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [1, 10, MAX_DEPTH - 2])
def test_ordinary_nesting_is_read(depth: int) -> None:
    assert parse_toml(nested(depth), where="f")
    assert parse_toml(".".join("a" * depth) + " = 1", where="f")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100, 900, 2000, 100_000])
def test_deep_nesting_is_rejected(depth: int) -> None:
    for text in (nested(depth), ".".join("a" * depth) + " = 1", "[" + ".".join("a" * depth) + "]"):
        with pytest.raises(UsageError, match=r"deep|parts|TOML") as caught:
            parse_toml(text, where="f")
        assert caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        'x = "a.b.c.d, e.f.g"',
        "x = '" + "Words. " * 200 + "'",
        'x = """' + "1.2.3.4\n" * 100 + '"""',
        "[a.b.c]\nd.e.f = 1.5",
        "x = 9223372036854775807",
        "x = -1e300",
    ],
)
def test_ordinary_values_are_read(text: str) -> None:
    assert parse_toml(text, where="f")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a.b = nan", "f: a.b: nan"),
        ("a = [1, {c = -inf}]", "f: a[1].c: -inf"),
        ("a = 99999999999999999999", "f: a: 99999999999999999999"),
        ('a = "x\\u0000"', "f: a: "),
        ("a = " + "9" * 5000, "f: "),
    ],
)
def test_invalid_values_name_their_location(text: str, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_toml(text, where="f")
    assert caught.value.what.startswith(place)
    assert len(caught.value.what) < 500


def test_the_largest_file(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"x = 1\n#" + b"a" * (LARGEST_BYTES - 7))
    assert read_toml(path) == {"x": 1}
    path.write_bytes(b"x = 1\n#" + b"a" * (LARGEST_BYTES - 6))
    with pytest.raises(UsageError, match="too large"):
        read_toml(path)


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xef\xbb\xbfx = 1\n")
    assert read_toml(path) == {"x": 1}


def test_a_pipe_of_a_shell_is_read() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x = 1\n")
    os.close(writing)
    code = (
        "from pathlib import Path; from torchyard.core.toml_file import read_toml\n"
        f"assert read_toml(Path('/dev/fd/{reading}')) == {{'x': 1}}"
    )
    subprocess.run([sys.executable, "-c", code], pass_fds=[reading], check=True, timeout=60)
    os.close(reading)
