"""Plain values as TOML text. The standard library reads TOML and does not write it.

Knows nothing of what the values mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

__all__ = ["to_toml"]

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def to_toml(table: Mapping[str, object]) -> str:
    """The table as a document: its plain values first, then its tables, in the given order."""
    return "".join(_table(table, ())).lstrip("\n")


def _table(table: Mapping[str, object], path: tuple[str, ...]) -> Iterator[str]:
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (plain or not table):
        yield f"\n[{'.'.join(_key(part) for part in path)}]\n"
    for key, value in plain.items():
        yield f"{_key(key)} = {_value(value)}\n"
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _table(value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Sequence):
        return f"[{', '.join(_value(item) for item in value)}]"
    raise TypeError(f"TOML has no form for {type(value).__name__}")


def _text(text: str) -> str:
    """A basic string; other control characters have no short escape."""
    letters = (
        _ESCAPES.get(letter) or (f"\\u{ord(letter):04x}" if _is_control(letter) else letter)
        for letter in text
    )
    return f'"{"".join(letters)}"'


def _is_control(letter: str) -> bool:
    return ord(letter) < ord(" ") or letter == "\x7f"
