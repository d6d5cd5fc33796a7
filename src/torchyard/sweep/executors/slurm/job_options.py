"""Slurm options of a sweep, checked before anything is submitted.

Names and values are written to the header of a batch script. Values that a shell or Slurm could read
as more than one word are rejected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
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
_MEMORY: Final = re.compile(r"([0-9]+)\s*(K|M|G|T|KB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_GPUS: Final = re.compile(r"([A-Za-z0-9_.-]+:)?[0-9]+")
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
        partition=_word("partition", values),
        account=_word("account", values),
        qos=_word("qos", values),
        gpus=_matching("gpus", values, _GPUS, "a number, or type:number like h100:2"),
        exclusive=_flag("exclusive", values),
        time_min=_optional("time", values, _minutes),
        cpus=_optional("cpus", values, _at_least_one),
        memory=_memory(values),
        at_most=_optional("at-most", values, _at_least_one),
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


def _word(name: str, values: Mapping[str, Scalar]) -> str:
    return _matching(name, values, _WORD, "a name or a comma-separated list of names")


def _matching(
    name: str, values: Mapping[str, Scalar], pattern: re.Pattern[str], expected: str
) -> str:
    value = values.get(name)
    if value is None:
        return ""
    text = str(value).strip()
    if isinstance(value, bool) or pattern.fullmatch(text) is None or len(text) > _LONGEST_VALUE:
        raise _invalid(name, value, expected)
    return text


def _memory(values: Mapping[str, Scalar]) -> str:
    value = values.get("memory")
    if value is None:
        return ""
    expected = "an amount of memory with a unit"
    match = _MEMORY.fullmatch(str(value).strip())
    if match is None:
        raise _invalid("memory", value, expected, "use 16G or 500M")
    return match.group(1) + match.group(2)[0]


def _flag(name: str, values: Mapping[str, Scalar]) -> bool:
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise _invalid(name, value, "true or false")
    return value


def _optional(
    name: str, values: Mapping[str, Scalar], read: Callable[[str, Scalar], int]
) -> int | None:
    return read(name, values[name]) if name in values else None


def _at_least_one(name: str, value: Scalar) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise _invalid(name, value, "a positive integer")
    return int(text)


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
