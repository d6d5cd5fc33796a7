"""Short names of user files for people: `my_model.py:Net` instead of the absolute path.

Files of the same name get as many parent folders as distinguish them. The identity of a workload
stays `Workload.label`, with the absolute path: run folders, the index and histories use it. No I/O.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Final

from torchyard.core.comparison import Comparison
from torchyard.core.study import FILE_SUITE, SCRIPT_SUITE, Workload, split_user_file

_FILE_LABEL: Final = re.compile(
    rf"(?:{FILE_SUITE}|{SCRIPT_SUITE})/(/.*?\.py)((?:[: ].*)?)", re.DOTALL
)


class _ShownWorkload(Workload):
    """A workload with a short name, for tables and pages; never stored."""

    @property
    def label(self) -> str:
        return super().label.removeprefix(f"{self.suite}/")


def with_short_names(workloads: Sequence[Workload]) -> list[Workload]:
    """Return the workloads as they are shown together."""
    short_paths = _short_paths(_path(one) for one in workloads if _is_user_file(one))
    return [_shown(one, short_paths) if _is_user_file(one) else one for one in workloads]


def with_short_workloads(comparisons: Sequence[Comparison]) -> tuple[Comparison, ...]:
    """Return the comparisons with their workloads as they are shown together."""
    workloads = with_short_names([one.workload for one in comparisons])
    return tuple(
        replace(one, workload=workload)
        for one, workload in zip(comparisons, workloads, strict=True)
    )


def short_label(workload: Workload) -> str:
    """Return the label of a workload that is shown alone."""
    return with_short_names([workload])[0].label


def short_labels(workloads: Sequence[Workload]) -> dict[str, str]:
    """Return the shown label of each label."""
    shown = with_short_names(workloads)
    return {one.label: other.label for one, other in zip(workloads, shown, strict=True)}


def short_texts(labels: Iterable[str]) -> dict[str, str]:
    """Return the shown label of each label, where only the text of labels is known."""
    matches = {label: _FILE_LABEL.fullmatch(label) for label in labels}
    short_paths = _short_paths(match[1] for match in matches.values() if match)
    return {
        label: short_paths[match[1]] + match[2] if match else label
        for label, match in matches.items()
    }


def _is_user_file(workload: Workload) -> bool:
    return workload.suite in {FILE_SUITE, SCRIPT_SUITE} and workload.name.startswith("/")


def _path(workload: Workload) -> str:
    return split_user_file(workload.name)[0]


def _shown(workload: Workload, short_paths: dict[str, str]) -> Workload:
    path = _path(workload)
    values = {field.name: getattr(workload, field.name) for field in fields(workload)}
    values["name"] = short_paths[path] + workload.name[len(path) :]
    return _ShownWorkload(**values)


def _short_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return each path without the parents that are not needed to distinguish it from the others."""
    short_paths: dict[str, str] = {}
    pending = set(paths)
    length = 1
    while pending:
        ends = {path: "/".join(path.split("/")[-length:]) for path in pending}
        counts = Counter(ends.values())
        short_paths |= {path: end for path, end in ends.items() if counts[end] == 1}
        pending -= short_paths.keys()
        length += 1
    return short_paths
