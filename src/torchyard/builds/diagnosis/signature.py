"""Signatures of known build failures: what the log shows, the cause, the suggested fix.

They are read from `signatures/*.toml`. `required_fragments` finds the literal text that every match
of a regular expression must contain, so that a large log can be searched quickly. `signature_rows`
gives the rows of the reference page.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Literal

from torchyard.core.records import decode, nearest_hint
from torchyard.errors import UsageError

_CLASS_ESCAPES = frozenset("dDsSwWbBAZ")
_OPTIONAL = frozenset("?*")


def required_fragments(pattern: str) -> frozenset[str]:
    """Lower-case texts, at least one of which is in every text that the pattern matches.

    Empty when nothing can be said.
    """
    parser = _Parser(pattern)
    found = parser.alternatives()
    return found if parser.at == len(pattern) else frozenset()


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
        # The longest of the shortest: rare texts make the best filter.
        return max(candidates, key=lambda c: (min(map(len, c)), -len(c)), default=frozenset())

    def _atom(self) -> tuple[str | None, frozenset[str]]:
        """One element: its literal character, or what is required inside it."""
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
                required = False  # look-around asserts, it need not be part of the match
        inner = self.alternatives()
        if self._peek() == ")":
            self.at += 1
        return inner if required else frozenset()

    def _quantifier(self) -> tuple[bool, bool]:
        """Whether the element may be absent, and whether it occurs exactly once."""
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
"""`fatal` names one cause; `general` a class of errors that a fatal one on the same line explains
better; `loss` goes on with less than was asked for; `notice` is noise that worries people."""

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_SHORTEST_FRAGMENT = 4
_FLAGS = re.IGNORECASE | re.ASCII


@dataclass(frozen=True, kw_only=True)
class Case:
    """Advice for some releases or machines only."""

    since: str = ""
    """First release it is for."""
    before: str = ""
    """First release it is not for."""
    machines: tuple[str, ...] = ()
    remedy: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One known cause.

    Patterns are regular expressions that ignore case and see one line each, or one whole message
    of CMake with its line breaks undone.
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
    """0 means anywhere in the log."""
    exit_codes: tuple[int, ...] = ()
    """One of these is enough by itself, without any line."""
    network: bool = False
    """The names that an offline build asked for are enough by themselves, and fill {names}."""
    since: str = ""
    before: str = ""
    machines: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
    defaults: dict[str, str] = field(default_factory=dict)
    """Values of placeholders that a pattern may leave without a capture."""
    explains: tuple[str, ...] = ()
    """Ids of causes that are only consequences when this one is there."""
    references: tuple[str, ...] = ()
    only_as_cause: bool = False
    """Of a loss: reported only where it explains a failure; many builds mean to go without."""
    examples: tuple[str, ...] = ()
    """Logs of the tests that show it."""

    @property
    def is_loss(self) -> bool:
        """Whether it comes before the failure that it may cause, also in an earlier attempt."""
        return self.level in {"loss", "notice"}


@dataclass(frozen=True, kw_only=True)
class _File:
    signature: tuple[Signature, ...]


@cache
def load_signatures() -> tuple[Signature, ...]:
    """All shipped signatures, in the order of their files."""
    folder = files("torchyard.builds.diagnosis") / "signatures"
    texts = sorted(
        (entry.name, entry.read_text(encoding="utf-8"))
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )
    found = tuple(item for name, text in texts for item in parse_signatures(text, where=name))
    _check_together(found)
    return found


def parse_signatures(text: str, *, where: str) -> tuple[Signature, ...]:
    """The signatures of one file; raises UsageError with the file, the key and the mend."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{where}: {error}", hint="mend the TOML there") from None
    found = decode(_File, raw, where=where).signature
    for signature in found:
        _check(signature, where)
    return found


def placeholders(texts: Iterable[str]) -> set[str]:
    """The names that the texts want filled in."""
    return {name for text in texts for name in _PLACEHOLDER.findall(text)}


def all_remedies(signature: Signature) -> tuple[str, ...]:
    """The advice for every release and machine."""
    return signature.remedy + tuple(text for case in signature.cases for text in case.remedy)


def _check(signature: Signature, where: str) -> None:
    here = f"{where}: signature {signature.id!r}"
    if not _ID.fullmatch(signature.id):
        raise UsageError(f"{here}: an id is words of a-z and 0-9, joined by '-'", hint="rename it")
    if not (signature.any or signature.exit_codes or signature.network):
        raise UsageError(f"{here}: nothing can match it", hint="give patterns in `any`")
    for pattern in signature.any + signature.all:
        _check_pattern(pattern, here)
    _check_placeholders(signature, here)


def _check_pattern(pattern: str, here: str) -> None:
    try:
        re.compile(pattern, _FLAGS)
    except re.error as error:
        raise UsageError(f"{here}: {pattern!r} is no pattern: {error}", hint="mend it") from None
    fragments = required_fragments(pattern)
    if not fragments or min(map(len, fragments)) < _SHORTEST_FRAGMENT:
        raise UsageError(
            f"{here}: {pattern!r} has no literal part that every match contains",
            why="such a pattern would have to be tried on every line of the log",
            hint=f"give it at least {_SHORTEST_FRAGMENT} literal characters in a row",
        )


def _check_placeholders(signature: Signature, here: str) -> None:
    wanted = placeholders((signature.title, signature.cause, *all_remedies(signature)))
    wanted |= placeholders(signature.commands)
    wanted |= placeholders(text for case in signature.cases for text in case.commands)
    names = [set(re.compile(pattern, _FLAGS).groupindex) for pattern in signature.any]
    always = set.intersection(*names) if names else set()
    if signature.exit_codes or signature.network:
        always = set()
    for pattern in signature.all:
        always |= set(re.compile(pattern, _FLAGS).groupindex)
    filled = always | set(signature.defaults)
    for name in sorted(wanted - filled):
        raise UsageError(
            f"{here}: nothing fills the placeholder {{{name}}} in every case",
            hint=f"capture it with (?P<{name}>...) in every pattern, or give defaults.{name}; "
            + nearest_hint(name, sorted(filled), what="name"),
        )


def _check_together(found: tuple[Signature, ...]) -> None:
    ids = [signature.id for signature in found]
    for twice in sorted({name for name in ids if ids.count(name) > 1}):
        raise UsageError(f"the signature {twice!r} is there twice", hint="remove one of them")
    for signature in found:
        for other in signature.explains:
            if other not in ids:
                raise UsageError(
                    f"the signature {signature.id!r} explains the unknown {other!r}",
                    hint=nearest_hint(other, ids, what="id"),
                )


_NAMED = re.compile(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)")
_READABLE = (
    (re.compile(r"\(\?[!=][^)]*\)|\\b|\^(?:\\s\*)?|\$"), ""),
    (re.compile(r"(?:\[[^\]]*\]|\\[dwSs]|\.)(?:[*+]|\{[^}]*\})\??"), "..."),
    (re.compile(r"\(\?:"), "("),
    (re.compile(r"\.?\[`'\]|\\W\?"), "'"),
    (re.compile(r"\\([^\w\s])"), r"\1"),
    (re.compile(r"(?:\.\.\. ?){2,}"), "... "),
)


@dataclass(frozen=True, kw_only=True)
class SignatureRow:
    """One line of the reference page."""

    id: str
    title: str
    level: str
    signs: tuple[str, ...]
    """What the log says, with NAMES where the words differ; (a|b) means one of them."""
    cause: str
    remedy: tuple[str, ...]
    references: tuple[str, ...]


def signature_rows() -> tuple[SignatureRow, ...]:
    """The reference of all signatures, in the order of their files."""
    return tuple(
        SignatureRow(
            id=signature.id,
            title=_worded(signature.title, signature),
            level=signature.level,
            signs=_signs(signature),
            cause=_worded(signature.cause, signature),
            remedy=tuple(_worded(text, signature) for text in all_remedies(signature)),
            references=signature.references,
        )
        for signature in load_signatures()
    )


def _worded(text: str, signature: Signature) -> str:
    return _PLACEHOLDER.sub(lambda m: signature.defaults.get(m[1], m[1].upper()), text)


def _signs(signature: Signature) -> tuple[str, ...]:
    signs = [readable(pattern) for pattern in signature.any]
    signs += [f"exit code {code}" for code in signature.exit_codes]
    return tuple(dict.fromkeys(signs))


def readable(pattern: str) -> str:
    """A pattern as a person would quote the line."""
    text = _NAMED.sub(lambda match: match[1].upper(), pattern)
    for searched, replacement in _READABLE:
        text = searched.sub(replacement, text)
    return " ".join(text.split())
