"""Slurm options of a sweep, checked before anything is submitted.

Names and values are written to the header of a batch script. Values that a shell or Slurm could read
as more than one word are rejected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torchyard.core.records import nearest_hint
from torchyard.core.study import Scalar
from torchyard.core.units import parse_duration_s
from torchyard.errors import UsageError

EXTRA_PREFIX: Final = "slurm-"
OPTION_NAMES: Final = (
    "partition",
    "account",
    "qos",
    "gpus",
    "exclusive",
    "time",
    "cpus",
    "memory",
    "at-most",
)
OWN_OPTIONS: Final[Mapping[str, str]] = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "gpus-per-node": "gpus",
    "exclusive": "exclusive",
    "time": "time",
    "cpus-per-task": "cpus",
    "mem": "memory",
}
"""Torchyard's names of sbatch options, by sbatch's name."""
_FIXED: Final = frozenset(
    {
        *("array", "job-name", "output", "error", "open-mode", "requeue", "no-requeue"),
        *("nodes", "ntasks", "ntasks-per-node", "signal", "wrap", "parsable", "wait", "test-only"),
        *("clusters", "cluster", "hold", "input", "wckey", "uid", "gid", "version", "help"),
    }
)
"""sbatch options that the executor sets itself."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*(,[A-Za-z0-9_][A-Za-z0-9_.@+-]*)*")
_VALUE: Final = re.compile(r"[A-Za-z0-9_.,:@%+=/*&|~^()\[\] -]*")
_COUNT: Final = re.compile(r"[0-9]*[1-9][0-9]*")
_MEMORY: Final = re.compile(r"[0-9]+\s*[KMGT](i?B)?")
_GPUS: Final = re.compile(r"([A-Za-z0-9_.-]+:)?[0-9]+")
_NAMES: Final = (_WORD, "a name or a comma-separated list of names", "")
_RULES: Final[Mapping[str, tuple[re.Pattern[str], str, str]]] = {
    **dict.fromkeys(("partition", "account", "qos"), _NAMES),
    "gpus": (_GPUS, "a number, or type:number like h100:2", ""),
    "exclusive": (re.compile("True|False"), "true or false", ""),
    **dict.fromkeys(("cpus", "at-most"), (_COUNT, "a positive integer", "")),
    "memory": (_MEMORY, "an amount of memory with a unit", "use 16G or 500M"),
}
"""Option -> valid texts, what they are, and a hint."""
_CLOCK: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_LONGEST_VALUE: Final = 256


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """The resources that each job of a sweep requests."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    gpus: str = ""
    """A number, or `type:number`; empty: none requested."""
    exclusive: bool = False
    """Request whole nodes."""
    time_min: int | None = None
    """None: the default of the partition."""
    cpus: int | None = None
    memory: str = ""
    nodes: int = 1
    """Nodes of each job; more than one only for ranks that are spread over nodes."""
    at_most: int | None = None
    """Maximum number of concurrent jobs of an array."""
    extra: tuple[tuple[str, Scalar], ...] = ()
    """Other sbatch options by sbatch's name, without leading dashes."""

    def with_limit(self, limit_s: float | None) -> SlurmOptions:
        """Derive the time limit of a job from the limit of a cell, unless one is set."""
        if self.time_min is not None or limit_s is None:
            return self
        # One more minute, so that the cell's own limit ends it first, with a better message.
        return replace(self, time_min=math.ceil(limit_s / 60.0) + 1)


def read_options(options: Sequence[tuple[str, Scalar]]) -> SlurmOptions:
    """Parse options by their names on the command line and in study files."""
    values: dict[str, Scalar] = {}
    extra: list[tuple[str, Scalar]] = []
    for name, value in options:
        if name.startswith(EXTRA_PREFIX):
            extra.append((_extra_name(name), _extra_value(name, value)))
        elif name in OPTION_NAMES:
            values[name] = value
        else:
            valid = [*OPTION_NAMES, EXTRA_PREFIX + "OPTION"]
            raise UsageError(
                f"Slurm: unknown option {name!r}", hint=nearest_hint(name, valid, what="option")
            )
    return SlurmOptions(
        partition=_checked("partition", values),
        account=_checked("account", values),
        qos=_checked("qos", values),
        gpus=_checked("gpus", values),
        exclusive=bool(_checked("exclusive", values)),
        time_min=_minutes("time", values["time"]) if "time" in values else None,
        cpus=int(_checked("cpus", values) or 0) or None,
        # `16 GiB` is `16G` for Slurm.
        memory=re.sub(r"\s*([KMGT])(i?B)?$", r"\1", _checked("memory", values)),
        at_most=int(_checked("at-most", values) or 0) or None,
        extra=tuple(extra),
    )


def _extra_name(name: str) -> str:
    option = name.removeprefix(EXTRA_PREFIX)
    if _NAME.fullmatch(option) is None:
        raise UsageError(
            f"Slurm: {option!r} is not a valid name of an sbatch option",
            hint="use lower-case letters, digits and dashes, as in slurm-constraint",
        )
    if option in OWN_OPTIONS:
        raise UsageError(
            f"Slurm: {name!r} has an option of its own", hint=f"use {OWN_OPTIONS[option]!r}"
        )
    if option in _FIXED:
        raise UsageError(
            f"Slurm: {name!r} is not allowed", why="the executor sets this option itself"
        )
    return option


def _extra_value(name: str, value: Scalar) -> Scalar:
    if value is False:
        raise _invalid(name, value, "a text, a number or true", "remove the option")
    if isinstance(value, str) and (
        _VALUE.fullmatch(value) is None or len(value) > _LONGEST_VALUE or not value.strip()
    ):
        expected = "letters, digits and _.,:@%+=/*&|~^()[]- only"
        raise _invalid(
            name, value, expected, f"at most {_LONGEST_VALUE} characters, none of them quotes"
        )
    return value


def _checked(name: str, values: Mapping[str, Scalar]) -> str:
    """Return the text of an option; empty if it is not given, or false."""
    if name not in values:
        return ""
    value, (pattern, expected, hint) = values[name], _RULES[name]
    text = str(value).strip()
    is_valid = isinstance(value, bool) == (name == "exclusive") and pattern.fullmatch(text)
    if not is_valid or len(text) > _LONGEST_VALUE:
        raise _invalid(name, value, expected, hint)
    return text if value is not False else ""


def _minutes(name: str, value: Scalar) -> int:
    """Parse Slurm's time formats, `90min` or `2h` to minutes, rounded up as Slurm does."""
    text = str(value).strip()
    match = _CLOCK.fullmatch(text)
    if isinstance(value, (bool, float)):
        match, text = None, ""
    seconds = 0.0
    if match is not None:
        days, first, second, third = (int(part) if part else 0 for part in match.groups())
        if match[1] is not None:  # D-HH, D-HH:MM, D-HH:MM:SS
            seconds = ((days * 24 + first) * 60 + second) * 60 + third
        elif match[4] is not None:  # HH:MM:SS
            seconds = (first * 60 + second) * 60 + third
        else:  # MM, MM:SS
            seconds = first * 60 + second
    elif text:
        try:
            seconds = parse_duration_s(text)
        except UsageError:
            seconds = 0.0
    if seconds <= 0:
        raise _invalid(name, value, "a duration", "use 90 (minutes), 2:30:00 or 2h")
    return math.ceil(seconds / 60.0)


def _invalid(name: str, value: Scalar, expected: str, hint: str = "") -> UsageError:
    return UsageError(
        f"Slurm: {name} = {value!r} is not {expected}", hint=hint or f"use {expected}"
    )
