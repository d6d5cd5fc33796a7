"""Signatures of known build failures: what the log shows, the cause, the suggested fix.

They are read from `signatures/*.toml`. `required_fragments` finds the literal text that every match
of a regular expression must contain, so that a large log can be searched quickly.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Literal

from torchyard.core.records import decode, nearest_hint
from torchyard.errors import UsageError

_CLASS_ESCAPES = frozenset("dDsSwWbBAZ")
_OPTIONAL = frozenset("?*")


def required_fragments(pattern: str) -> frozenset[str]:
    """Return lower-case texts, at least one of which is in every match of the pattern.

    Empty if there are none.
    """
    parser = _Parser(pattern)
    fragments = parser.alternatives()
    return fragments if parser.at == len(pattern) else frozenset()


@dataclass
class _Parser:
    pattern: str
    at: int = 0

    def alternatives(self) -> frozenset[str]:
        branches = [self._sequence()]
        while self._peek() == "|":
            self.at += 1
            branches.append(self._sequence())
        if not all(branches):
            return frozenset()
        return frozenset().union(*branches)

    def _sequence(self) -> frozenset[str]:
        candidates: list[frozenset[str]] = []
        run = ""
        while (char := self._peek()) and char not in "|)":
            literal, fragments = self._atom()
            optional, exactly_once = self._quantifier()
            if literal is not None and exactly_once:
                run += literal
                continue
            if literal is not None and not optional:  # x+ : the run ends with the first x
                run += literal
            if run:
                candidates.append(frozenset({run.lower()}))
                run = ""
            if fragments and not optional:
                candidates.append(fragments)
        if run:
            candidates.append(frozenset({run.lower()}))
        # Prefer the longest minimum length: rare texts filter best.
        return max(candidates, key=lambda c: (min(map(len, c)), -len(c)), default=frozenset())

    def _atom(self) -> tuple[str | None, frozenset[str]]:
        """Parse one element: its literal character, or the fragments required inside it."""
        char = self.pattern[self.at]
        self.at += 1
        if char == "\\":
            escaped = self._take()
            plain = escaped and escaped not in _CLASS_ESCAPES and not escaped.isalnum()
            return (escaped if plain else None), frozenset()
        if char == "[":
            self._skip_class()
            return None, frozenset()
        if char == "(":
            return None, self._group()
        if char in ".^$":
            return None, frozenset()
        return char, frozenset()

    def _group(self) -> frozenset[str]:
        required = True
        if self._peek() == "?":
            self.at += 1
            kind = self._take()
            if kind == "P":
                self.at = self.pattern.find(">", self.at) + 1
            elif kind != ":":
                required = False  # a look-around is not part of the match
        inner = self.alternatives()
        if self._peek() == ")":
            self.at += 1
        return inner if required else frozenset()

    def _quantifier(self) -> tuple[bool, bool]:
        """Parse a quantifier: whether the element may be absent, and whether it occurs once."""
        char = self._peek()
        if char in _OPTIONAL or char == "+":
            self.at += 1
            optional = char in _OPTIONAL
        elif char == "{":
            end = self.pattern.find("}", self.at)
            optional = self.pattern[self.at + 1 : end].split(",")[0].strip() in {"", "0"}
            self.at = end + 1
        else:
            return False, True
        if self._peek() == "?":  # lazy
            self.at += 1
        return optional, False

    def _skip_class(self) -> None:
        if self._peek() == "^":
            self.at += 1
        if self._peek() == "]":
            self.at += 1
        while (char := self._take()) and char != "]":
            if char == "\\":
                self.at += 1

    def _peek(self) -> str:
        return self.pattern[self.at] if self.at < len(self.pattern) else ""

    def _take(self) -> str:
        char = self._peek()
        self.at += 1
        return char


Level = Literal["fatal", "general", "loss", "notice"]
"""`fatal`: a specific cause. `general`: a class of errors; a fatal cause on the same line takes
precedence. `loss`: the build continues with less than requested. `notice`: a harmless message."""

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_MIN_FRAGMENT = 4
_FLAGS = re.IGNORECASE | re.ASCII


@dataclass(frozen=True, kw_only=True)
class Case:
    """Fixes for some releases or machines only."""

    since: str = ""
    """First release it applies to."""
    before: str = ""
    """First release it no longer applies to."""
    machines: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One known cause.

    Patterns are regular expressions that ignore case and are applied to one line, or to one
    message of CMake without line breaks.
    """

    id: str
    title: str
    cause: str
    remedy: tuple[str, ...]
    level: Level = "fatal"
    any: tuple[str, ...] = ()
    """One of these must match."""
    all: tuple[str, ...] = ()
    """Each of these must match as well, within `window` lines of it."""
    window: int = 20
    """In lines; 0 means anywhere in the log."""
    exit_codes: tuple[int, ...] = ()
    """One of these is sufficient, without any line."""
    network: bool = False
    """Hosts that an offline build tried to reach are sufficient, and fill {names}."""
    since: str = ""
    before: str = ""
    machines: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
    defaults: dict[str, str] = field(default_factory=dict)
    """Values of placeholders that a pattern may not capture."""
    explains: tuple[str, ...] = ()
    """Ids of causes that are consequences of this one."""
    references: tuple[str, ...] = ()
    only_as_cause: bool = False
    """Of a loss: reported only if it explains a failure; many builds disable components on purpose."""
    examples: tuple[str, ...] = ()
    """Test logs that show it."""

    @property
    def is_loss(self) -> bool:
        """Whether it precedes the failure that it may cause, possibly in an earlier attempt."""
        return self.level in {"loss", "notice"}


@dataclass(frozen=True, kw_only=True)
class _File:
    signature: tuple[Signature, ...]


@cache
def load_signatures() -> tuple[Signature, ...]:
    """Return all shipped signatures, in the order of their files."""
    folder = files("torchyard.builds.diagnosis") / "signatures"
    texts = sorted(
        (entry.name, entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )
    signatures = tuple(item for name, text in texts for item in parse_signatures(text, where=name))
    _check_together(signatures)
    return signatures


def parse_signatures(text: str, *, where: str) -> tuple[Signature, ...]:
    """Return the signatures of one file; raise UsageError with the file, the key and a hint."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}", hint="correct the TOML syntax") from None
    signatures = decode(_File, raw, where=where).signature
    for signature in signatures:
        _check(signature, where)
    return signatures


def placeholders(texts: Iterable[str]) -> set[str]:
    """Return the names of the placeholders in the texts."""
    return {name for text in texts for name in _PLACEHOLDER.findall(text)}


def all_remedies(signature: Signature) -> tuple[str, ...]:
    """Return the fixes for all releases and machines."""
    return signature.remedy + tuple(text for case in signature.cases for text in case.remedy)


def _check(signature: Signature, where: str) -> None:
    here = f"{where}: signature {signature.id!r}"
    if not _ID.fullmatch(signature.id):
        raise UsageError(
            f"{here}: an id must be words of a-z and 0-9, joined by '-'", hint="rename it"
        )
    if not (signature.any or signature.exit_codes or signature.network):
        raise UsageError(f"{here}: it has no patterns", hint="add patterns to `any`")
    for pattern in signature.any + signature.all:
        _check_pattern(pattern, here)
    _check_placeholders(signature, here)


def _check_pattern(pattern: str, here: str) -> None:
    try:
        re.compile(pattern, _FLAGS)
    except re.error as error:
        raise UsageError(
            f"{here}: {pattern!r} is not a valid pattern: {error}", hint="correct it"
        ) from None
    fragments = required_fragments(pattern)
    if not fragments or min(map(len, fragments)) < _MIN_FRAGMENT:
        raise UsageError(
            f"{here}: {pattern!r} has no literal part that every match contains",
            why="such a pattern would have to be tried on every line of a log",
            hint=f"use at least {_MIN_FRAGMENT} consecutive literal characters",
        )


def _check_placeholders(signature: Signature, here: str) -> None:
    used = placeholders((signature.title, signature.cause, *all_remedies(signature)))
    used |= placeholders(signature.commands)
    used |= placeholders(text for case in signature.cases for text in case.commands)
    names = [set(re.compile(pattern, _FLAGS).groupindex) for pattern in signature.any]
    always = set.intersection(*names) if names else set()
    if signature.exit_codes or signature.network:
        always = set()
    for pattern in signature.all:
        always |= set(re.compile(pattern, _FLAGS).groupindex)
    filled = always | set(signature.defaults)
    for name in sorted(used - filled):
        raise UsageError(
            f"{here}: the placeholder {{{name}}} is not always filled",
            hint=f"capture it with (?P<{name}>...) in every pattern, or set defaults.{name}; "
            + nearest_hint(name, sorted(filled), what="name"),
        )


def _check_together(signatures: tuple[Signature, ...]) -> None:
    ids = [signature.id for signature in signatures]
    for twice in sorted({name for name in ids if ids.count(name) > 1}):
        raise UsageError(f"duplicate signature {twice!r}", hint="remove one of them")
    for signature in signatures:
        for other in signature.explains:
            if other not in ids:
                raise UsageError(
                    f"the signature {signature.id!r} explains an unknown id {other!r}",
                    hint=nearest_hint(other, ids, what="id"),
                )


def worded(signature: Signature) -> Signature:
    """Return a signature whose texts have defaults, or names in capitals, for their placeholders."""

    def text(template: str) -> str:
        return _PLACEHOLDER.sub(lambda m: signature.defaults.get(m[1], m[1].upper()), template)

    return replace(
        signature,
        title=text(signature.title),
        cause=text(signature.cause),
        remedy=tuple(map(text, all_remedies(signature))),
    )
