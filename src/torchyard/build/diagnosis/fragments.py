"""The literal text that every match of a regular expression must contain.

A log is hundreds of megabytes and a pattern matches a few lines of it. Looking for a literal costs
a fraction of running the pattern, so lines without one of its fragments never reach the pattern.
Covers the syntax that signatures use; what it does not know counts as no literal at all, which is
safe: the pattern is then refused, or another part of it gives the fragment.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["required_fragments"]

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
