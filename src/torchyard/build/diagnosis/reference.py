"""The known causes as rows of a reference page. Formats nothing: pages are made elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torchyard.build.diagnosis.signature import Signature, all_remedies, load_signatures

__all__ = ["SignatureRow", "signature_rows"]

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
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
