"""Read a log of any size and content as blocks of clean lines in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK_BYTES = 256 * 1024
LINE_LIMIT_BYTES = 64 * 1024
_HEAD_BYTES = 48 * 1024
_TAIL_BYTES = LINE_LIMIT_BYTES - _HEAD_BYTES
MATCH_LIMIT = 4096
"""Characters of a line that are searched: in a long line, an error is at one of its ends."""
_MATCH_HEAD = 3072
_MAX_BLANKS = 32
_BLANKS = re.compile(rf"\s{{{_MAX_BLANKS},}}")

# CSI sequences (colours, cursor), OSC sequences (titles, links), and the two-byte ones.
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
# Prefixes that build services add to every line: a time (GitHub), a step and seconds (BuildKit), seconds
# (Open Build Service).
_STAMP = re.compile(
    rb"^(?:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z? |#\d+ \d+\.\d+ |\[ *\d+s\] )", re.MULTILINE
)
_STAMP_SEARCHED_BYTES = 2048
_QUOTES = (
    (b"\xe2\x80\x98", b"'"),
    (b"\xe2\x80\x99", b"'"),
    (b"\xe2\x80\x9c", b'"'),
    (b"\xe2\x80\x9d", b'"'),
)


@dataclass(frozen=True)
class Block:
    """Consecutive complete lines."""

    first: int
    """Number of the first line."""
    data: bytes

    @property
    def last(self) -> int:
        """Number of the last line."""
        return self.first + self.data.count(b"\n") - self.data.endswith(b"\n")

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the non-empty lines with numbers; the texts of a progress bar share a number."""
        for number, raw in enumerate(self.data.split(b"\n"), self.first):
            if b"\r" in raw:
                for part in raw.split(b"\r"):
                    if part:
                        yield number, part
            elif raw:
                yield number, raw


def as_text(raw: bytes) -> str:
    """Decode a line; invalid bytes become replacement characters, control characters spaces."""
    text = raw.decode("utf-8", "replace")
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return text.rstrip()


def shortened(text: str) -> str:
    """Return the two ends of a text, at most MATCH_LIMIT characters, without long runs of blanks."""
    if "    " in text:
        text = _BLANKS.sub(" " * _MAX_BLANKS, text)
    if len(text) <= MATCH_LIMIT:
        return text
    return text[:_MATCH_HEAD] + text[_MATCH_HEAD - MATCH_LIMIT :]


def read_blocks(file: BinaryIO) -> Iterator[Block]:
    """Yield the log in blocks, in bounded memory."""
    number = 1
    pending = b""
    while chunk := file.read(BLOCK_BYTES):
        data = pending + chunk
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if cut:
            yield Block(number, _clean(data[:cut]))
            number += data.count(b"\n", 0, cut)
        pending = _bounded(data[cut:])
    if pending:
        yield Block(number, _clean(pending))


def _bounded(line: bytes) -> bytes:
    """Limit an incomplete line to its two ends."""
    if len(line) <= LINE_LIMIT_BYTES:
        return line
    return line[:_HEAD_BYTES] + line[-_TAIL_BYTES:]


def _clean(data: bytes) -> bytes:
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    if b"\x1b" in data:
        data = _ESCAPE.sub(b"", data)
    if _STAMP.search(data[:_STAMP_SEARCHED_BYTES]):
        data = _STAMP.sub(b"", data)
    if b"\xe2\x80" in data:
        for typographic, plain in _QUOTES:
            data = data.replace(typographic, plain)
    return data
