"""Match signatures against a log, in bounded memory.

`FragmentSearch` finds any of several hundred literal texts in a block without a search for each.
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


class FragmentSearch:
    """Search for many lower-case texts in lower-case blocks."""

    def __init__(self, fragments: Iterable[bytes]) -> None:
        self._by_word: dict[bytes, list[bytes]] = {}
        for fragment in dict.fromkeys(fragments):
            word = max(_WORD.findall(fragment), key=len, default=b"")
            self._by_word.setdefault(word, []).append(fragment)

    def hits(self, block: bytes) -> dict[int, list[bytes]]:
        """Return index of line -> texts it contains, for the lines that contain any."""
        words = b" ".join(set(_WORD.findall(block)))
        hits: dict[int, list[bytes]] = {}
        for word, fragments in self._by_word.items():
            if word not in words:
                continue
            for fragment in fragments:
                _find_all(block, fragment, hits)
        return hits


def _find_all(block: bytes, fragment: bytes, hits: dict[int, list[bytes]]) -> None:
    at = block.find(fragment)
    index = counted = 0
    while at >= 0:
        index += block.count(b"\n", counted, at)
        hits.setdefault(index, []).append(fragment)
        counted = block.find(b"\n", at)
        if counted < 0:
            return
        at = block.find(fragment, counted)


_EVIDENCE_KEPT = 3
_EVIDENCE_LENGTH = 400
_EVIDENCE_BEFORE = 60
_VALUE_LENGTH = 200
_LINES_KEPT = 200
_PENDING_KEPT = 8
_PARTS_KEPT = 500
_MAX_REPEATED = 400
"""Maximum number of characters that one repetition of a pattern matches."""


@dataclass
class Detection:
    """All matches of one signature in a log."""

    signature: Signature
    evidence: list[Evidence] = field(default_factory=list)
    lines: set[int] = field(default_factory=set)
    values: dict[str, str] = field(default_factory=dict)
    matches: int = 0
    in_failed_block: bool = False
    attempt: int = 0
    """Number of the last attempt that shows it."""
    parts: dict[str, Evidence] = field(default_factory=dict)
    """Of a loss: the first line for each missing component, by its lower-case name."""


@dataclass
class _PatternMatch:
    """A match of a pattern in `any`, possibly waiting for matches of `all`."""

    line: int
    text: str
    values: dict[str, str]
    in_failed_block: bool


class CompiledSignatures:
    """Signatures with compiled patterns. Compiling takes longer than most scans, so it is cached."""

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
    """Matches all signatures against a stream of texts."""

    def __init__(self, patterns: CompiledSignatures) -> None:
        self.patterns = patterns
        self._pending: dict[int, deque[_PatternMatch]] = {}
        self._companions: dict[tuple[int, int], tuple[int, dict[str, str]]] = {}
        self.detections: dict[int, Detection] = {}
        self.attempt = 0
        """Number of the attempt that is being scanned: matches of earlier ones did not end the build."""
        self.last_fatal_line = 0

    def process(
        self,
        line: int,
        text: str,
        fragments: Iterable[bytes],
        *,
        in_failed_block: bool = False,
        already_matched: Collection[int] = (),
    ) -> set[int]:
        """Search the text for the patterns that the fragments belong to.

        Returns the signatures that match. `already_matched` have already matched the same message.
        """
        text = shortened(text)
        by_fragment = self.patterns.by_fragment
        tried = {key for fragment in fragments for key in by_fragment.get(fragment, ())}
        matched: set[int] = set()
        for index, is_any, at in sorted(tried):
            patterns = self.patterns.any if is_any else self.patterns.all
            match = None if index in already_matched else patterns[index][at].search(text)
            if match is None:
                continue
            matched.add(index)
            values = {
                name: value.strip()[:_VALUE_LENGTH]
                for name, value in match.groupdict().items()
                if value and value.strip()
            }
            if not is_any:
                self._companions[index, at] = (line, values)
                self._join(index)
            elif self.patterns.signatures[index].all:
                waiting = self._pending.setdefault(index, deque(maxlen=_PENDING_KEPT))
                if not waiting or waiting[-1].line != line:
                    waiting.append(_PatternMatch(line, _quoted(match), values, in_failed_block))
                self._join(index)
            else:
                self._record(index, _PatternMatch(line, _quoted(match), values, in_failed_block))
        return matched

    def _join(self, index: int) -> None:
        """Record the pending matches whose patterns in `all` matched nearby."""
        signature = self.patterns.signatures[index]
        companions = [self._companions.get((index, at)) for at in range(len(signature.all))]
        for earlier in list(self._pending.get(index, ())):
            values = dict(earlier.values)
            for other in companions:
                if other is None:
                    return
                if signature.window and abs(other[0] - earlier.line) > signature.window:
                    break
                values.update(other[1])
            else:
                self._record(
                    index,
                    _PatternMatch(earlier.line, earlier.text, values, earlier.in_failed_block),
                )
                self._pending[index].remove(earlier)

    def _record(self, index: int, seen: _PatternMatch) -> None:
        detection = self.detections.setdefault(index, Detection(self.patterns.signatures[index]))
        if seen.line in detection.lines:
            return
        if detection.signature.level in {"fatal", "general"}:
            self.last_fatal_line = max(self.last_fatal_line, seen.line)
        if detection.attempt != self.attempt and not detection.signature.is_loss:
            # Show lines and values of the last attempt.
            detection.evidence, detection.values, detection.in_failed_block = [], {}, False
        detection.attempt = self.attempt
        detection.matches += 1
        detection.in_failed_block |= seen.in_failed_block
        if len(detection.lines) < _LINES_KEPT:
            detection.lines.add(seen.line)
        part = seen.values.get("part", "").lower()
        if part and part not in detection.parts and len(detection.parts) < _PARTS_KEPT:
            detection.parts[part] = Evidence(line=seen.line, text=seen.text)
        if len(detection.evidence) < _EVIDENCE_KEPT:
            detection.evidence.append(Evidence(line=seen.line, text=seen.text))
        for name, value in seen.values.items():
            detection.values.setdefault(name, value)


def _compiled(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    return [re.compile(_bounded(pattern), re.IGNORECASE | re.ASCII) for pattern in patterns]


def _bounded(pattern: str) -> str:
    """Bound every repetition of a pattern.

    A search with two unbounded repetitions takes cubic time, and a log may contain lines crafted
    for that.
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
            parts.append(f"{{{int(char == '+')},{_MAX_REPEATED}}}")
            continue
        parts.append(char)
    return "".join(parts)


def _quoted(match: re.Match[str]) -> str:
    """Return the line, or the part of a long line around the match."""
    text = match.string
    begin = max(0, match.start() - _EVIDENCE_BEFORE) if len(text) > _EVIDENCE_LENGTH else 0
    if match.end() <= _EVIDENCE_LENGTH:
        begin = 0
    quoted = text[begin : begin + _EVIDENCE_LENGTH].strip()
    return f"... {quoted}" if begin else quoted
