"""Match signatures against a log, in bounded memory.

`Gate` finds any of several hundred literal texts in a block without searching for each of them.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from torchyard.builds.diagnosis.log_blocks import shortened
from torchyard.builds.diagnosis.model import Evidence
from torchyard.builds.diagnosis.signature import Signature, required_fragments

_WORD = re.compile(rb"[a-z_]{3,}")


class Gate:
    """Some lower-case texts to be found in lower-case blocks."""

    def __init__(self, fragments: Iterable[bytes]) -> None:
        self._by_word: dict[bytes, list[bytes]] = {}
        for fragment in dict.fromkeys(fragments):
            word = max(_WORD.findall(fragment), key=len, default=b"")
            self._by_word.setdefault(word, []).append(fragment)

    def hits(self, block: bytes) -> dict[int, list[bytes]]:
        """Index of each line of the block that has some of the texts -> those it has."""
        words = b" ".join(set(_WORD.findall(block)))
        found: dict[int, list[bytes]] = {}
        for word, fragments in self._by_word.items():
            if word not in words:
                continue
            for fragment in fragments:
                _find_all(block, fragment, found)
        return found


def _find_all(block: bytes, fragment: bytes, found: dict[int, list[bytes]]) -> None:
    at = block.find(fragment)
    index = counted = 0
    while at >= 0:
        index += block.count(b"\n", counted, at)
        found.setdefault(index, []).append(fragment)
        counted = block.find(b"\n", at)
        if counted < 0:
            return
        at = block.find(fragment, counted)


_EVIDENCE_KEPT = 3
_EVIDENCE_LENGTH = 400
_EVIDENCE_BEFORE = 60
_VALUE_LENGTH = 200
_LINES_KEPT = 200
_NEAR_KEPT = 8
_PARTS_KEPT = 500
_MOST_REPEATED = 400
"""Characters that one repetition of a pattern may cover."""


@dataclass
class Sighting:
    """What was seen of one signature."""

    signature: Signature
    evidence: list[Evidence] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    matches: int = 0
    in_failed_block: bool = False
    attempt: int = 0
    """Number of the last attempt that shows it."""
    parts: dict[str, Evidence] = field(default_factory=dict)
    """Of a loss: the first line for each part that is missing, by its name in small letters."""


@dataclass
class _Seen:
    """A match of `any` that still waits for its company."""

    line: int
    text: str
    values: dict[str, str]
    in_failed_block: bool


class Patterns:
    """Signatures made ready to be searched for; costs more than most logs do, so made once."""

    def __init__(self, signatures: Sequence[Signature]) -> None:
        self.signatures = signatures
        self.any = [_compiled(signature.any) for signature in signatures]
        self.all = [_compiled(signature.all) for signature in signatures]
        self.by_fragment: dict[bytes, list[tuple[int, bool, int]]] = {}
        """Fragment -> (signature, whether the pattern is in `any`, its index there)."""
        for index, signature in enumerate(signatures):
            for is_any, patterns in ((True, signature.any), (False, signature.all)):
                for at, pattern in enumerate(patterns):
                    for fragment in required_fragments(pattern):
                        key = fragment.encode("ascii")
                        self.by_fragment.setdefault(key, []).append((index, is_any, at))


class Matcher:
    """All signatures against a stream of texts."""

    def __init__(self, patterns: Patterns) -> None:
        self.patterns = patterns
        self._waiting: dict[int, deque[_Seen]] = {}
        self._company: dict[tuple[int, int], tuple[int, dict[str, str]]] = {}
        self.sightings: dict[int, Sighting] = {}
        self.attempt = 0
        self.last_fatal_line = 0

    def begin_attempt(self) -> None:
        """What was seen so far did not end the build."""
        self.attempt += 1

    def see(
        self,
        line: int,
        text: str,
        fragments: Iterable[bytes],
        *,
        in_failed_block: bool = False,
        known: Collection[int] = (),
    ) -> set[int]:
        """Try the patterns that the fragments found in the text belong to.

        `known` are signatures that have matched the same message already; the ones that match now
        are returned.
        """
        text = shortened(text)
        by_fragment = self.patterns.by_fragment
        tried = {key for fragment in fragments for key in by_fragment.get(fragment, ())}
        matched: set[int] = set()
        for index, is_any, at in sorted(tried):
            patterns = self.patterns.any if is_any else self.patterns.all
            match = None if index in known else patterns[index][at].search(text)
            if match is None:
                continue
            matched.add(index)
            values = _values(match)
            if not is_any:
                self._company[index, at] = (line, values)
                self._join(index)
            elif self.patterns.signatures[index].all:
                waiting = self._waiting.setdefault(index, deque(maxlen=_NEAR_KEPT))
                if not waiting or waiting[-1].line != line:
                    waiting.append(_Seen(line, _quoted(match), values, in_failed_block))
                self._join(index)
            else:
                self._sight(index, _Seen(line, _quoted(match), values, in_failed_block))
        return matched

    def _join(self, index: int) -> None:
        """Sight the waiting matches whose company is near enough."""
        signature = self.patterns.signatures[index]
        company = [self._company.get((index, at)) for at in range(len(signature.all))]
        for seen in list(self._waiting.get(index, ())):
            values = dict(seen.values)
            for other in company:
                if other is None:
                    return
                if signature.window and abs(other[0] - seen.line) > signature.window:
                    break
                values.update(other[1])
            else:
                self._sight(index, _Seen(seen.line, seen.text, values, seen.in_failed_block))
                self._waiting[index].remove(seen)

    def _sight(self, index: int, seen: _Seen) -> None:
        sighting = self.sightings.setdefault(index, Sighting(self.patterns.signatures[index]))
        if seen.line in sighting.lines:
            return
        if sighting.signature.level in {"fatal", "general"}:
            self.last_fatal_line = max(self.last_fatal_line, seen.line)
        if sighting.attempt != self.attempt and not sighting.signature.is_loss:
            # The lines and values of the last attempt that shows it are the ones to be shown.
            sighting.evidence, sighting.values, sighting.in_failed_block = [], {}, False
        sighting.attempt = self.attempt
        sighting.matches += 1
        sighting.in_failed_block |= seen.in_failed_block
        if len(sighting.lines) < _LINES_KEPT:
            sighting.lines.add(seen.line)
        part = seen.values.get("part", "").lower()
        if part and part not in sighting.parts and len(sighting.parts) < _PARTS_KEPT:
            sighting.parts[part] = Evidence(line=seen.line, text=seen.text)
        if len(sighting.evidence) < _EVIDENCE_KEPT:
            sighting.evidence.append(Evidence(line=seen.line, text=seen.text))
        for name, value in seen.values.items():
            sighting.values.setdefault(name, value)


def _compiled(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    return [re.compile(_bounded(pattern), re.IGNORECASE | re.ASCII) for pattern in patterns]


def _bounded(pattern: str) -> str:
    """The pattern with a bound on every repetition.

    A search tries the pattern at every place of a line. With two unbounded repetitions in it that
    takes cubic time, and logs may hold lines that were made for it.
    """
    parts: list[str] = []
    in_class = escaped = False
    for at, char in enumerate(pattern):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif in_class:
            in_class = char != "]" or pattern[at - 1] == "["
        elif char == "[":
            in_class = True
        elif char in "*+":
            parts.append(f"{{{int(char == '+')},{_MOST_REPEATED}}}")
            continue
        parts.append(char)
    return "".join(parts)


def _quoted(match: re.Match[str]) -> str:
    """The line, or of a long one the part around what was recognised."""
    text = match.string
    begin = max(0, match.start() - _EVIDENCE_BEFORE) if len(text) > _EVIDENCE_LENGTH else 0
    if match.end() <= _EVIDENCE_LENGTH:
        begin = 0
    quoted = text[begin : begin + _EVIDENCE_LENGTH].strip()
    return f"... {quoted}" if begin else quoted


def _values(match: re.Match[str]) -> dict[str, str]:
    return {
        name: value.strip()[:_VALUE_LENGTH]
        for name, value in match.groupdict().items()
        if value and value.strip()
    }
