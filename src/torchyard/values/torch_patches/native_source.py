"""Find functions and calls in C++ text, without a compiler: comments and literals are blanked first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_BLANKED: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    # An apostrophe between digits separates them: 1'000.
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
_AFTER_PARAMETERS: Final = re.compile(
    r"\s*(?:const\b|noexcept\b|override\b|final\b|->\s*[\w:<>&* ]+)*\s*"
)
_PAIRS: Final = {"(": ")", "{": "}", "[": "]"}
_STRUCTURED: Final = re.compile(r"structured_(\w+)::impl$")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_STATEMENT_ENDS: Final = frozenset("{};")
_CONDITION: Final = re.compile(r"\b(?:if|else|for|while|switch|case|default|catch|do)\b|\?|&&|\|\|")
_KEYWORDS: Final = frozenset({"if", "for", "while", "switch", "catch", "return", "sizeof"})
_CALL: Final = re.compile(r"(?<![.>\w])([A-Za-z_]\w*)\s*(?:<[^;<>(){}]*>\s*)?\(")
_LAMBDA: Final = re.compile(r"\]\s*(?:\([^()]*\)\s*)?(?:mutable\s*)?(?:->\s*[\w:&<>]+\s*)?$")


def blanked(text: str) -> str:
    """Return the text with comments and literals replaced by spaces, so that offsets stay valid."""
    return _BLANKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


@dataclass(frozen=True, kw_only=True)
class Function:
    """Definition of a function; offsets into its file."""

    name: str
    start: int
    body: int
    """Of the character after the opening brace."""
    end: int
    """Of the closing brace."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call in a function: `name(...)` or `receiver.name(...)`."""

    start: int
    """Of the name, with `at::` before it."""
    end: int
    """After the closing parenthesis."""
    receiver: str = ""
    """A simple variable; empty for a function, `?` for another expression."""


def source_name(symbol: str) -> str:
    """Return the name that a native function has in source text, for a demangled symbol.

    `at::native::(anonymous namespace)::f<long>(at::Tensor&)` is `f`; the kernel of a structured operator,
    `at::native::structured_f::impl(...)`, is `f`.
    """
    name = _without_brackets(symbol.replace("(anonymous namespace)", "_anonymous_"))
    structured = _STRUCTURED.search(name)
    if structured:
        return structured[1]
    last = name.rpartition("::")[2].rpartition(" ")[2]
    return last if _IDENTIFIER.fullmatch(last) else ""


def _without_brackets(symbol: str) -> str:
    """Remove template arguments, parameters and clone suffixes such as `[clone .isra.0]`."""
    characters, depth = [], 0
    for character in symbol:
        if character in "<([":
            depth += 1
        elif character in ">)]":
            depth -= 1
        elif depth == 0:
            characters.append(character)
    return "".join(characters).removesuffix(" const").strip()


def functions_named(clean: str, name: str) -> list[Function]:
    """Return the definitions of a function in a blanked text."""
    pattern = re.compile(rf"\bTORCH_IMPL_FUNC\s*\(\s*{name}\s*\)\s*\(|(?<![.:>\w]){name}\s*\(")
    functions = []
    for match in pattern.finditer(clean):
        close = closing(clean, match.end() - 1)
        after = _AFTER_PARAMETERS.match(clean, close + 1)
        brace = after.end() if after else close + 1
        if clean[brace : brace + 1] == "{":
            functions.append(
                Function(name=name, start=match.start(), body=brace + 1, end=closing(clean, brace))
            )
    return functions


def closing(clean: str, opening: int) -> int:
    """Return the offset of the bracket that closes the one at an offset; of the end if there is none."""
    open_with, close_with, depth = clean[opening], _PAIRS[clean[opening]], 0
    for offset in range(opening, len(clean)):
        if clean[offset] == open_with:
            depth += 1
        elif clean[offset] == close_with:
            depth -= 1
            if depth == 0:
                return offset
    return len(clean)


def calls_in(clean: str, function: Function, name: str) -> list[Call]:
    """Return the calls of an operator in the body of a function: `at::zeros_like(...)`, `x.zero_()`."""
    pattern = re.compile(
        rf"(?:(?P<receiver>\b[A-Za-z_]\w*)?\s*(?P<access>\.|->)\s*|(?<![\w:.>])(?:(?:at|native|self)::)*){name}\s*\("
    )
    calls = []
    for match in pattern.finditer(clean, function.body, function.end):
        receiver = ""
        if match["access"]:
            before = clean[: match.start()].rstrip()[-1:]
            simple = match["receiver"] and before in _STATEMENT_ENDS | frozenset("=(,&|!?:")
            receiver = match["receiver"] if simple else "?"
        calls.append(
            Call(start=match.start(), end=closing(clean, match.end() - 1) + 1, receiver=receiver)
        )
    return calls


def called_names(clean: str, function: Function) -> Iterator[tuple[int, str]]:
    """Yield the offsets and names of all functions called in a body."""
    for match in _CALL.finditer(clean, function.body, function.end):
        if match[1] not in _KEYWORDS:
            yield match.start(), match[1]


def is_unconditional(clean: str, function: Function, offset: int) -> bool:
    """Whether the code at an offset runs whenever the function does not fail or return before."""
    depth, start = 0, offset
    while start > function.body:
        start -= 1
        if clean[start] == "}":
            depth += 1
        elif clean[start] == "{":
            if depth == 0:
                return False
            depth -= 1
    head = clean[function.body : offset]
    statement = re.split(r"[{};]", head)[-1]
    return not _CONDITION.search(statement)


def returns_early(clean: str, function: Function, offset: int) -> bool:
    """Whether the function can return after an offset before its last statement."""
    last = clean[offset : function.end].rstrip().rstrip(";").rpartition(";")[0]
    return _returns(clean, offset, offset + len(last))


def _returns(clean: str, start: int, end: int) -> bool:
    """Whether a `return` of the function itself, not of a lambda in it, stands in a part of its body."""
    position = start
    while position < end:
        match = re.compile(r"\breturn\b|\{").search(clean, position, end)
        if match is None:
            return False
        if match[0] == "return":
            return True
        is_lambda = _LAMBDA.search(clean, max(start - 200, 0), match.start())
        position = closing(clean, match.start()) if is_lambda else match.end()
    return False
