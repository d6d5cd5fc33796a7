"""Groups of source operators that can be compared between two variants.

A kernel that fuses several source operators joins them: only their sum has a counterpart on the
other side. Source operators that only one side has are joined with others of the same line, with the
same operator where the module was wrapped or unwrapped, then with others of the same module. What remains one-sided was added or removed by the candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from torchyard.why.model import OperatorRow, Source

Key = tuple[str, ...]
"""Identifies a source operator on both sides."""
UNATTRIBUTED: Final[Key] = ()
NEGLIGIBLE: Final = 0.002
"""One-sided operators below this share of the iteration are joined with their module."""


def key_functions(sides: Sequence[Iterable[OperatorRow]]) -> Callable[[Source], Key]:
    """Return the function that identifies source operators.

    Lines count by number in files that both sides execute, and by text otherwise: then the two sides
    are different versions of a program.
    """
    files = [{one.file for row in rows for one in row.sources if one.file} for rows in sides]
    shared = set.intersection(*files) if files else set()

    def key(source: Source) -> Key:
        place = str(source.line) if source.file in shared else source.text
        file = source.file if source.file in shared else ""
        return (source.phase, source.module, file, place, source.operator)

    return key


class Groups:
    """A partition of source operators (union-find)."""

    def __init__(self, key: Callable[[Source], Key]) -> None:
        self._key = key
        self._parents: dict[Key, Key] = {}
        self.sources: dict[Key, set[Source]] = {}
        """Source operators by key."""

    def group_of(self, row: OperatorRow) -> Key:
        """Return the group of a row; add it if it is new."""
        keys = [self._key(source) for source in row.sources]
        for source, key in zip(row.sources, keys, strict=True):
            self._parents.setdefault(key, key)
            self.sources.setdefault(key, set()).add(source)
        for key in keys[1:]:
            self.join(keys[0], key)
        return self.root(keys[0]) if keys else UNATTRIBUTED

    def root(self, key: Key) -> Key:
        """Return the representative of a group."""
        while (parent := self._parents.get(key, key)) != key:
            self._parents[key] = self._parents.get(parent, parent)
            key = parent
        return key

    def join(self, one: Key, other: Key) -> None:
        """Make two groups one."""
        first, second = sorted((self.root(one), self.root(other)))
        self._parents[second] = first

    def members(self, root: Key) -> list[Key]:
        """Return the source operators of a group."""
        return [key for key in self._parents if self.root(key) == root]


def align(
    baseline: Iterable[OperatorRow], candidate: Iterable[OperatorRow], iteration_ns: float
) -> Groups:
    """Return the groups of two variants; rows may be those of several rounds."""
    sides = (tuple(baseline), tuple(candidate))
    groups = Groups(key_functions(sides))
    for rows in sides:
        for row in rows:
            groups.group_of(row)
    _join_one_sided(groups, _times(groups, sides), lambda key: key[:4])  # same line
    _join_wrapped(groups, _times(groups, sides), lambda key: (key[0], *key[2:]))  # of one line
    _join_wrapped(groups, _times(groups, sides), lambda key: (key[0], key[-1]))
    _join_one_sided(groups, _times(groups, sides), lambda key: key[:2])  # same module
    _join_negligible(groups, _times(groups, sides), iteration_ns)
    return groups


def _times(groups: Groups, sides: Sequence[Sequence[OperatorRow]]) -> dict[Key, list[float]]:
    times: dict[Key, list[float]] = {}
    for side, rows in enumerate(sides):
        for row in rows:
            if row.sources:
                times.setdefault(groups.group_of(row), [0.0, 0.0])[side] += row.duration_ns
    return times


def _one_sided(
    groups: Groups, times: Mapping[Key, Sequence[float]], place_of: Callable[[Key], Key]
) -> dict[Key, tuple[set[Key], set[Key]]]:
    """Return, for each place, the members of groups that only the baseline or only the candidate has."""
    places: dict[Key, tuple[set[Key], set[Key]]] = {}
    for root, (baseline_ns, candidate_ns) in times.items():
        if (baseline_ns > 0.0) != (candidate_ns > 0.0):
            for member in groups.members(root):
                places.setdefault(place_of(member), (set(), set()))[candidate_ns > 0.0].add(member)
    return places


def _join_wrapped(
    groups: Groups, times: Mapping[Key, Sequence[float]], place_of: Callable[[Key], Key]
) -> None:
    """Join equal operators of one side each if one module path contains the other.

    `head` and `head.inner`, or `head` and `module.head`; not if several modules could be meant.
    """
    for only_baseline, only_candidate in _one_sided(groups, times, place_of).values():
        pairs = [
            (one, other)
            for one in only_baseline
            for other in only_candidate
            if _contains(one[1], other[1]) or _contains(other[1], one[1])
        ]
        for one, other in pairs:
            if sum(one in pair or other in pair for pair in pairs) == 1:
                groups.join(one, other)


def _contains(outer: str, inner: str) -> bool:
    return bool(outer) and (inner.startswith(f"{outer}.") or inner.endswith(f".{outer}"))


def _join_one_sided(
    groups: Groups, times: Mapping[Key, Sequence[float]], place_of: Callable[[Key], Key]
) -> None:
    """Join groups of one side with groups of the other side at the same place.

    Only if both sides have such a group: one that the candidate adds or removes stays alone.
    """
    for only_baseline, only_candidate in _one_sided(groups, times, place_of).values():
        if only_baseline and only_candidate:
            first, *others = sorted(only_baseline | only_candidate)
            for other in others:
                groups.join(first, other)


def _join_negligible(
    groups: Groups, times: Mapping[Key, Sequence[float]], iteration_ns: float
) -> None:
    """Join small groups of one line with the largest group of that line."""
    by_line: dict[Key, list[tuple[float, Key]]] = {}
    for root, sides in times.items():
        by_line.setdefault(root[:4], []).append((max(sides), root))
    for entries in by_line.values():
        entries.sort(reverse=True)
        for time_ns, root in entries[1:]:
            if time_ns < NEGLIGIBLE * iteration_ns:
                groups.join(entries[0][1], root)
