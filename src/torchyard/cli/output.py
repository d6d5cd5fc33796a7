"""Output of all commands: data on stdout, messages on stderr, errors as short lines."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, TypeVar

import click

from torchyard.errors import TorchyardError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA: Final = 1
"""Version of every JSON object that commands print."""

_LONGEST_TEXT: Final = 6000
"""Characters of one part of an error, which may quote a file or an exception."""
_NARROWEST: Final = 20
_INDENT: Final = 8 * " "

F = TypeVar("F", bound=Callable[..., Any])

_CONTROL: Final = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(32), *range(127, 160), *range(0xD800, 0xE000))
    if chr(code) not in "\n\t"
}


def common_options(command: F) -> F:
    """Add `--json` and `--debug`, which every command has."""
    command = click.option(
        "--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")(
        command
    )


def printable(text: str) -> str:
    """Replace control characters and surrogates."""
    return text.translate(_CONTROL)


def print_data(text: str) -> None:
    """Write the requested data to stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def data_console(*, markup: bool = True) -> Console:
    """Return a console for tables on stdout; a closed pipe raises BrokenPipeError, as in `print_data`."""
    from rich.console import Console

    class DataConsole(Console):
        def on_broken_pipe(self) -> NoReturn:
            # The default exits with code 1, which means an internal error.
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return DataConsole(highlight=False, markup=markup, emoji=False)


def print_line(console: Console, text: str) -> None:
    """Print a line; it is wrapped where the width is known: on a terminal, or with COLUMNS."""
    is_known = console.is_terminal or "COLUMNS" in os.environ
    console.print(text, markup=False, soft_wrap=not is_known)


def print_json(data: Mapping[str, Any]) -> None:
    """Write one JSON object to stdout, with the schema version first; dataclasses are encoded."""
    from torchyard.core.records import encode

    print_data(json.dumps({"schema": SCHEMA, **encode(data)}, indent=2))


def print_result(data: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Write the data as JSON, or the text without control characters, to stdout."""
    if as_json:
        print_json(data)
    else:
        print_data(printable(text))


def print_message(text: str) -> None:
    """Write a message to stderr; on a terminal, it is wrapped between words."""
    sys.stderr.write(_fitted(printable(text), "") + "\n")


def _fitted(text: str, indent: str) -> str:
    """Return the text, on a terminal wrapped between words; continued lines are indented."""
    if not sys.stderr.isatty():
        return text
    width = max(_NARROWEST, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    lines = text.split("\n")
    return "\n".join(wrapper.fill(line) if len(line) > width else line for line in lines)


def print_error(error: TorchyardError, *, as_json: bool, exit_code: int) -> None:
    """Write what, why, hint and log to stderr; with `--json` also as an object to stdout."""
    if as_json:
        record = {
            "kind": type(error).__name__,
            "exit_code": exit_code,
            "what": error.what,
            "why": error.why,
            "hint": error.hint,
            "log": error.log,
        }
        print_json({"error": record})
        sys.stdout.flush()
    lines = [f"error: {_indented(error.what)}"]
    for word, text in (("why", error.why), ("hint", error.hint), ("log", error.log)):
        if text:
            lines.append(f"  {word + ':':<6}{_indented(text)}")
    shown = _fitted("\n".join(lines), _INDENT)
    if wants_color(sys.stderr):
        shown = shown.replace("error:", "\x1b[31merror:\x1b[0m", 1)
    sys.stderr.write(shown + "\n")


def wants_color(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that accepts colors."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def check_writable(path: Path, *, option: str) -> None:
    """Raise UsageError if a file cannot be written; missing folders are created.

    Called before a long computation, so that its result is not lost.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
        if path.stat().st_size == 0:
            path.unlink()
    except OSError as error:
        raise _not_writable(path, option, error) from error


def write_file(path: Path, text: str, *, option: str) -> None:
    """Write a report to a file; missing folders are created."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_writable(path, option, error) from error


def _not_writable(path: Path, option: str, error: OSError) -> UsageError:
    return UsageError(
        f"{option}: {str(path)!r} cannot be written",
        why=error.strerror or str(error),
        hint="give another path",
    )


def _indented(text: str) -> str:
    text = text.strip()
    if len(text) > _LONGEST_TEXT:
        text = f"{text[: _LONGEST_TEXT - 500]} [...] {text[-400:]}"
    return printable(text).replace("\n", "\n" + _INDENT)
