"""Read a TOML file of the user: regular files only, bounded in size and nesting depth.

The result is a table or a UsageError, whatever the file is: a FIFO or a device would never end, a
deeply nested file exhausts the stack, and keys with thousands of parts make the parser take
quadratic time.
"""

from __future__ import annotations

import math
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any, Final

from torchyard.errors import UsageError

LARGEST_BYTES: Final = 2 * 2**20
MAX_DEPTH: Final = 32
"""Nesting depth of tables and lists; recipes and studies have at most six."""
_OUT_OF_RANGE: Final = 2**63
_LONG_KEY: Final = re.compile(
    r"""(?<![A-Za-z0-9_-])(?:(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){256}"""
)
"""Keys that make the parser slow, matched without backtracking."""
_OPEN_ALREADY: Final = (Path("/dev/fd"), Path("/proc/self/fd"))


def read_toml(path: Path, *, what: str = "file", hint: str = "check the path") -> dict[str, Any]:
    """Read a TOML file; `what` is its kind ("study file"), `hint` is shown when it does not exist."""
    return parse_toml(read_text_file(path, what=what, hint=hint), where=str(path))


def parse_toml(text: str, *, where: str) -> dict[str, Any]:
    """Parse TOML text; raise UsageError that names `where`."""
    if _LONG_KEY.search(text):
        raise UsageError(f"{where}: a key has hundreds of parts", hint="nest tables less deeply")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(
            f"{where}: is not valid TOML", why=_short(str(error)), hint="correct that line"
        ) from error
    except RecursionError as error:
        raise _too_deep(where) from error
    except (ValueError, OverflowError) as error:
        # A number with thousands of digits, or an invalid date.
        raise UsageError(
            f"{where}: has a value that cannot be read",
            why=_short(str(error)),
            hint="correct that value",
        ) from error
    _check_values(table, where)
    return table


def read_text_file(path: Path, *, what: str, hint: str) -> str:
    """Read a UTF-8 file of bounded size; raise UsageError that names the file."""
    shown = _short(repr(str(path)))
    try:
        # Without waiting: opening a FIFO without a writer would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except FileNotFoundError as error:
        raise UsageError(f"there is no {what} {shown}", hint=hint) from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{shown} cannot be read", why=str(why), hint=hint) from error
    mode = os.fstat(descriptor).st_mode
    piped = stat.S_ISFIFO(mode) and path.parent in _OPEN_ALREADY
    if not stat.S_ISREG(mode) and not piped:
        os.close(descriptor)
        raise UsageError(
            f"{shown} cannot be read", why=f"it is {_kind(mode)}", hint=f"give a {what}"
        )
    os.set_blocking(descriptor, True)
    with os.fdopen(descriptor, "rb") as file:
        try:
            data = file.read(LARGEST_BYTES + 1)
        except OSError as error:
            raise UsageError(
                f"{shown} cannot be read", why=str(error.strerror), hint=hint
            ) from error
    if len(data) > LARGEST_BYTES:
        raise UsageError(
            f"{shown} is too large for a {what}",
            why=f"it has more than {LARGEST_BYTES >> 20} MiB",
            hint=hint,
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{shown} cannot be read", why=str(error), hint=f"give a {what} in UTF-8"
        ) from error


def _check_values(table: dict[str, Any], where: str) -> None:
    """Reject deep nesting, infinite numbers and strings with null bytes."""
    level: list[tuple[str, object]] = [("", table)]
    for _ in range(MAX_DEPTH):
        inner: list[tuple[str, object]] = []
        for place, value in level:
            if isinstance(value, dict):
                inner += [(place, key) for key in value]
                inner += [(f"{place}.{key}" if place else key, one) for key, one in value.items()]
            elif isinstance(value, list):
                inner += [(f"{place}[{index}]", one) for index, one in enumerate(value)]
            else:
                _check_value(value, f"{where}: {_short(place)}")
        level = inner
    if level:
        raise _too_deep(where)


def _check_value(value: object, place: str) -> None:
    if isinstance(value, str) and "\0" in value:
        raise UsageError(f"{place}: {_short(repr(value))} contains a null byte", hint="remove it")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{place}: {value} is out of range", hint="give a finite number")
    if isinstance(value, int) and abs(value) >= _OUT_OF_RANGE:
        raise UsageError(
            f"{place}: {_short(repr(value))} is out of range", hint="give a 64-bit integer"
        )


def _too_deep(where: str) -> UsageError:
    return UsageError(
        f"{where}: is nested too deeply",
        why=f"tables and lists may be nested at most {MAX_DEPTH} levels deep",
        hint="reduce the nesting of tables and lists",
    )


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "not a regular file")


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-80:]}"  # noqa: PLR2004
