"""A redacted copy of a run: the same numbers without hosts, users, paths and variable values.

Host names, users, paths, values of variables and the command line are removed or replaced in every
field and inside logs, notes and messages; every report format can write such a run.
`presentation/redaction.py` and the documentation describe what is matched and what cannot be.
Changes nothing on disk.
"""

from __future__ import annotations

import dataclasses
import getpass
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from torchyard.core.block import Block
from torchyard.core.study import Environment, Target, Workload
from torchyard.presentation.redaction import Redactor, home_users
from torchyard.results.run_reader import Run

_OMITTED: Final = "<omitted>"
_DROPPED: Final = frozenset({"owner", "measured_by", "sweep", "command"})
_PRIVATE_KEYS: Final = re.compile(
    r"(?i)^(host(_?name)?|node(_?name)?|user(_?name)?|home|cwd|folder|serial.*|.*uuid|boot(_?id)?"
    r"|mac|ip|address|env(ironment)?|variables|argv|command)$"
)
_BUILD_FACTS: Final = frozenset({"torch_config"})
"""The build configuration of torch is full of NAME=value, none of it from this machine's environment."""


@dataclass(frozen=True, kw_only=True)
class _SharedRun(Run):
    """A run whose samples and launches are redacted as they are read."""

    cleaner: Redactor
    labels: Mapping[str, str]
    """Redacted labels of workloads by their label in the run folder."""

    def blocks(self, workload: Workload | None = None) -> Iterator[tuple[str, Block]]:
        for label, block in super().blocks():
            shown = self.labels.get(label) or self.cleaner.clean(label)
            if workload is None or shown == workload.label:
                yield shown, _cleaned(block, self.cleaner)

    def launches(self) -> list[dict[str, Any]]:
        return [_cleaned(record, self.cleaner) for record in super().launches()]


def redacted_run(run: Run, *, cleaner: Redactor | None = None) -> Run:
    """Return a redacted copy of the run; runs that are shown together share a cleaner."""
    cleaner = cleaner or redactor_of([run])
    study = _cleaned(run.study, cleaner)
    comparisons = tuple(_cleaned(one, cleaner) for one in run.comparisons)
    labels = {
        old.label: new.label
        for old, new in (
            *zip(run.study.workloads, study.workloads, strict=True),
            *((a.workload, b.workload) for a, b in zip(run.comparisons, comparisons, strict=True)),
        )
    }
    info = {
        key: _cleaned(value, cleaner, key)
        for key, value in run.info.items()
        if key not in _DROPPED and key != "study"
    }
    return _SharedRun(
        folder=run.folder,
        id=cleaner.clean(run.id),
        state=run.state,
        info={**info, "shared": True},
        study=study,
        comparisons=comparisons,
        torn_lines=run.torn_lines,
        cleaner=cleaner,
        labels=labels,
    )


def redactor_of(runs: Iterable[Run]) -> Redactor:
    """Return a cleaner for the private names of the runs and of the current user."""
    hosts, users, values, paths = {platform.node()}, {_own_name()}, set[str](), set[str]()
    for run in runs:
        variants = run.study.variants
        for variant in variants:
            values |= {value for _, value in variant.target.variables}
            values |= {value for _, value in variant.environment.variables}
            paths |= {variant.target.python, *variant.environment.preload}
        paths |= {str(run.folder)}
        paths |= {str(word) for word in run.info.get("command") or () if str(word).startswith("/")}
        for key in ("owner", "measured_by"):
            owner = run.info.get(key) or {}
            hosts.add(str(owner.get("host", "")))
            users.add(str(owner.get("user", "")))
        for key, value in _named(run.info):
            if re.fullmatch(r"(?i)(host|node)(_?name)?", key):
                hosts.add(value)
            if re.fullmatch(r"(?i)user(_?name)?", key):
                users.add(value)
        for text in _texts((run.info, run.study, run.comparisons)):
            users |= home_users(text) if "/" in text else set()
    return Redactor(
        hosts=hosts | {host.partition(".")[0] for host in hosts},
        users=users,
        values=values,
        paths=paths,
    )


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no passwd entry
        return ""


def _cleaned(value: Any, cleaner: Redactor, key: str = "") -> Any:
    """Return the redacted value; values of private keys are omitted entirely."""
    if isinstance(value, (Target, Environment)):
        return _cleaned_process_settings(value, cleaner)
    if isinstance(value, Enum) or value is None or isinstance(value, (bool, int, float)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: _cleaned(getattr(value, field.name), cleaner)
            for field in dataclasses.fields(value)
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, str):
        return cleaner.clean(value, assignments=key not in _BUILD_FACTS)
    if isinstance(value, Mapping):
        return {
            cleaner.clean(str(name)): _OMITTED
            if _PRIVATE_KEYS.fullmatch(str(name))
            else _cleaned(item, cleaner, str(name))
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(_cleaned(item, cleaner, key) for item in value)
    return cleaner.clean(str(value))


def _cleaned_process_settings(
    value: Target | Environment, cleaner: Redactor
) -> Target | Environment:
    variables = tuple(
        (cleaner.clean(name), cleaner.placeholder("value", text)) for name, text in value.variables
    )
    name = cleaner.clean(value.name)
    if isinstance(value, Target):
        python = cleaner.placeholder("path", value.python)
        return dataclasses.replace(value, name=name, python=python, variables=variables)
    preload = tuple(cleaner.placeholder("path", path) for path in value.preload)
    return dataclasses.replace(value, name=name, preload=preload, variables=variables)


def _named(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _named(item, str(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _named(item, key)
    elif isinstance(value, str):
        yield key, value


def _texts(value: Any) -> Iterator[str]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _texts(getattr(value, field.name))
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield value
