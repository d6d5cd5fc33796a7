"""Hints about where a change is: signatures of revisions, and files that a commit touches.

Hints choose which revision is measured next, and nothing else: a culprit needs its probability from measurements
under equal priors. So hints that point at an innocent revision cost a few rounds and cannot name it. Both factors
together are at most 100, which is log2(100) = 7 halvings of the range.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Final

SAME_SIGNATURE: Final = 0.1
"""Weight of revisions between two whose signatures are the same: their programs do the same work. Libraries and
compilers can change the time of the same work."""
NO_CODE: Final = 0.1
"""Weight of commits that touch documentation and tests only: a program may read any file."""

Signature = Mapping[str, str]
"""Digests of deterministic quantities, by name; empty if there are none."""

_FOLDERS: Final = frozenset(
    {"doc", "docs", "documentation", "test", "tests", "news", "changelog.d", "licenses"}
)
_HIDDEN: Final = frozenset({".github", ".circleci", ".gitlab", ".azure-pipelines"})
_SUFFIXES: Final = frozenset({".md", ".rst"})
_FILES: Final = re.compile(
    r"(LICEN[CS]E|CHANGE(S|LOG)|NEWS|README|AUTHORS|COPYING|CODEOWNERS|\.gitignore|\.gitattributes)(\..*)?"
)


def without_code(files: Iterable[str], named: str) -> bool:
    """Whether all files are documentation, tests or settings of a server; `named` are the user's commands.

    A folder or file whose name appears in the commands counts as code.
    """
    used = set(re.split(r"[^A-Za-z0-9._-]+", named))
    return all(_is_no_code(PurePosixPath(file), used) for file in files)


def _is_no_code(path: PurePosixPath, used: Collection[str]) -> bool:
    if path.name in used:
        return False
    folders = [part for part in path.parts[:-1] if part not in used]
    in_folder = any(part.lower() in _FOLDERS or part in _HIDDEN for part in folders)
    return in_folder or path.suffix in _SUFFIXES or _FILES.fullmatch(path.name) is not None


def weights(
    names: Sequence[str], signatures: Mapping[str, Signature], unlikely: Collection[str]
) -> list[float]:
    """Return the relative prior weight of a change at each revision of a range."""
    result = [NO_CODE if name in unlikely else 1.0 for name in names]
    measured = [index for index, name in enumerate(names) if signatures.get(name)]
    for low, high in pairwise(measured):
        if not differing(signatures[names[low]], signatures[names[high]]):
            for index in range(low + 1, high + 1):
                result[index] *= SAME_SIGNATURE
    return result


def differing(one: Signature, other: Signature) -> tuple[str, ...]:
    """Return the names of the quantities that differ; those that only one has do not count."""
    return tuple(name for name in one if name in other and one[name] != other[name])
