"""Slurm options of a sweep, checked before anything is submitted.

Names and values end up in the header of a batch script. Nothing that a shell or Slurm could read as
more than one word is accepted.
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

__all__ = ["EXTRA_PREFIX", "OPTION_NAMES", "OWN_OPTIONS", "SlurmOptions", "read_options"]

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
"""Options of sbatch that have a name here, by sbatch's name."""
_FIXED: Final = frozenset(
    {
        *("array", "job-name", "output", "error", "open-mode", "requeue", "no-requeue"),
        *("nodes", "ntasks", "ntasks-per-node", "signal", "wrap", "parsable", "wait", "test-only"),
        *("clusters", "cluster", "hold", "input", "wckey", "uid", "gid", "version", "help"),
    }
)
"""Options of sbatch that the executor needs for itself."""

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*(,[A-Za-z0-9_][A-Za-z0-9_.@+-]*)*")
_VALUE: Final = re.compile(r"[A-Za-z0-9_.,:@%+=/*&|~^()\[\] -]*")
_MEMORY: Final = re.compile(r"([0-9]+)\s*(K|M|G|T|KB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_GPUS: Final = re.compile(r"([A-Za-z0-9_.-]+:)?[0-9]+")
_CLOCK: Final = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_LONGEST_VALUE: Final = 256


@dataclass(frozen=True, kw_only=True)
class SlurmOptions:
    """What each job of a sweep asks for."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    gpus: str = ""
    """A number, or `type:number`; empty: none are asked for."""
    exclusive: bool = False
    """Whole nodes."""
    time_min: int | None = None
    """None: what the partition gives by itself."""
    cpus: int | None = None
    memory: str = ""
    at_most: int | None = None
    """Jobs of an array that may run at the same time."""
    extra: tuple[tuple[str, Scalar], ...] = ()
    """Other options of sbatch by its names, without dashes in front."""

    def with_limit(self, limit_s: float | None) -> SlurmOptions:
        """Time enough for a cell of this limit, where no time is asked for."""
        if self.time_min is not None or limit_s is None:
            return self
        # A minute more: the limit of the cell must end it first, and says so in its own words.
        return replace(self, time_min=math.ceil(limit_s / 60.0) + 1)


def read_options(options: Sequence[tuple[str, Scalar]]) -> SlurmOptions:
    """Options by the names that the command line and study files have; raises UsageError."""
    values: dict[str, Scalar] = {}
    extra: list[tuple[str, Scalar]] = []
    for name, value in options:
        if name.startswith(EXTRA_PREFIX):
            extra.append((_extra_name(name), _extra_value(name, value)))
        elif name in OPTION_NAMES:
            values[name] = value
        else:
            known = [*OPTION_NAMES, EXTRA_PREFIX + "OPTION"]
            raise UsageError(
                f"Slurm: unknown option {name!r}", hint=nearest_hint(name, known, what="option")
            )
    return SlurmOptions(
        partition=_word("partition", values),
        account=_word("account", values),
        qos=_word("qos", values),
        gpus=_matching("gpus", values, _GPUS, "a number, or type:number like h100:2"),
        exclusive=_yes("exclusive", values),
        time_min=_asked("time", values, _minutes),
        cpus=_asked("cpus", values, _at_least_one),
        memory=_memory(values),
        at_most=_asked("at-most", values, _at_least_one),
        extra=tuple(extra),
    )


def _extra_name(name: str) -> str:
    option = name.removeprefix(EXTRA_PREFIX)
    if _NAME.fullmatch(option) is None:
        raise UsageError(
            f"Slurm: {option!r} is not the name of an option of sbatch",
            hint="write it like slurm-constraint, with small letters, digits and dashes",
        )
    if option in OWN_OPTIONS:
        raise UsageError(
            f"Slurm: {name!r} has a name of its own", hint=f"say {OWN_OPTIONS[option]!r}"
        )
    if option in _FIXED:
        raise UsageError(
            f"Slurm: {name!r} cannot be given", why="the executor needs this option for itself"
        )
    return option


def _extra_value(name: str, value: Scalar) -> Scalar:
    if value is False:
        raise _wrong(name, value, "a text, a number or true", "leave the option out")
    if isinstance(value, str) and (
        _VALUE.fullmatch(value) is None or len(value) > _LONGEST_VALUE or not value.strip()
    ):
        wanted = "letters, digits and _.,:@%+=/*&|~^()[]- only"
        raise _wrong(
            name, value, wanted, f"at most {_LONGEST_VALUE} characters, none of them quotes"
        )
    return value


def _word(name: str, values: Mapping[str, Scalar]) -> str:
    return _matching(name, values, _WORD, "a name, or names with commas between them")


def _matching(
    name: str, values: Mapping[str, Scalar], pattern: re.Pattern[str], wanted: str
) -> str:
    value = values.get(name)
    if value is None:
        return ""
    text = str(value).strip()
    if isinstance(value, bool) or pattern.fullmatch(text) is None or len(text) > _LONGEST_VALUE:
        raise _wrong(name, value, wanted)
    return text


def _memory(values: Mapping[str, Scalar]) -> str:
    value = values.get("memory")
    if value is None:
        return ""
    wanted = "an amount of memory with its unit"
    match = _MEMORY.fullmatch(str(value).strip())
    if match is None:
        raise _wrong("memory", value, wanted, "write it like 16G or 500M")
    return match.group(1) + match.group(2)[0]


def _yes(name: str, values: Mapping[str, Scalar]) -> bool:
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return value


def _asked(
    name: str, values: Mapping[str, Scalar], read: Callable[[str, Scalar], int]
) -> int | None:
    return read(name, values[name]) if name in values else None


def _at_least_one(name: str, value: Scalar) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise _wrong(name, value, "a whole number, 1 or more")
    return int(text)


def _minutes(name: str, value: Scalar) -> int:
    """Whole minutes, rounded up as Slurm does, from its own forms and from `90min` or `2h`."""
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
        raise _wrong(name, value, "a length of time", "write it like 90 (minutes), 2:30:00 or 2h")
    return math.ceil(seconds / 60.0)


def _wrong(name: str, value: Scalar, wanted: str, hint: str = "") -> UsageError:
    return UsageError(f"Slurm: {name} = {value!r} is not {wanted}", hint=hint or f"give {wanted}")
