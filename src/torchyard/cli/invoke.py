"""Run one command, and turn any exception into a short message and an exit code."""

from __future__ import annotations

import difflib
import io
import os
import sys
from pathlib import Path

import click
from click.exceptions import Exit

from torchyard.cli.commands import COMMANDS
from torchyard.cli.group import program
from torchyard.cli.output import print_error
from torchyard.cli.streams import ClosedOutput, give_up_stdout
from torchyard.errors import NotAllowed, TorchyardError, UsageError
from torchyard.process.signals import EndedBySignal, SignalsRaise, ending_signal

__all__ = ["INTERRUPTED", "READER_GONE", "invoke", "output_failed", "reader_gone"]

INTERRUPTED = 130
READER_GONE = 141
"""What a shell says of a program that SIGPIPE ended."""
_LONGEST_ARGUMENT = 32 * 1024
_HINTS = {
    2: "add --help to the command to see what it takes",
    8: "put it back from a copy, or remove it",
}
"""For errors that have no hint of their own, by exit code."""


def invoke(arguments: list[str]) -> int:
    """Run the command line; never raises, except SystemExit of a completion script.

    SIGTERM and SIGHUP end every command as Ctrl-C does, with 128 and their number as exit code.
    """
    signals = SignalsRaise()
    signals.start()
    try:
        code = _invoke(arguments)
        number = ending_signal()
        return 128 + number if number is not None and code == INTERRUPTED else code
    finally:
        signals.stop()


def _invoke(arguments: list[str]) -> int:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug, as_json = "--debug" in own, "--json" in own
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal cannot show must not cost the results of an hour.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except BrokenPipeError:
        return reader_gone()
    except (KeyboardInterrupt, click.Abort) as error:
        code = 128 + error.number if isinstance(error, EndedBySignal) else INTERRUPTED
        text = "interrupted" if code == INTERRUPTED else str(error)
        return _told(TorchyardError(text), as_json=as_json, exit_code=code)
    except (TorchyardError, click.ClickException) as error:
        if debug:
            _print_traceback()
        ours = _ours(error, arguments)
        return _told(ours, as_json=as_json, exit_code=ours.exit_code)
    except Exception as error:  # noqa: BLE001  # the last place that can still say something useful
        if debug:
            _print_traceback()
        if isinstance(error, OSError) and _stdout_fails():
            return output_failed(error)
        ours = _from_outside(error) or TorchyardError(
            f"Torchyard made a mistake: {type(error).__name__}: {error}",
            why="this is not your fault",
            hint="please report it with the output of the same command and --debug",
        )
        return _told(ours, as_json=as_json, exit_code=ours.exit_code)


def reader_gone() -> int:
    """The reader of our output went away, as `head` does: end quietly."""
    # Python flushes stdout once more at the end, which would complain again.
    give_up_stdout()
    return READER_GONE


def output_failed(error: OSError) -> int:
    """Stdout is closed, or its disk is full."""
    give_up_stdout()
    ours = NotAllowed(
        "cannot write to standard output",
        why=error.strerror or str(error),
        hint="free the disk or give another place; a run that was measured is kept: "
        "`torchyard results list`",
    )
    print_error(ours, as_json=False, exit_code=ours.exit_code)
    return ours.exit_code


def _told(error: TorchyardError, *, as_json: bool, exit_code: int) -> int:
    """Print the error, and return the exit code, wherever it can be printed."""
    if not error.hint and exit_code != INTERRUPTED:
        error.hint = _HINTS.get(exit_code, "")
    try:
        print_error(error, as_json=as_json, exit_code=exit_code)
    except BrokenPipeError:
        give_up_stdout()
    except OSError:
        give_up_stdout()
        print_error(error, as_json=False, exit_code=exit_code)
    return exit_code


def _stdout_fails() -> bool:
    """Whether what was printed cannot be written."""
    try:
        sys.stdout.write("")
        sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return isinstance(sys.stdout, ClosedOutput)


def _from_outside(error: Exception) -> TorchyardError | None:
    """What the operating system or the input is to blame for, although nobody expected it there."""
    if isinstance(error, OSError):
        place = f": {error.filename!r}" if error.filename else ""
        return NotAllowed(
            f"the operating system refused an operation{place}",
            why=error.strerror or str(error),
            hint="check that the path exists, that its disk has space and that it may be used",
        )
    if isinstance(error, MemoryError):
        return NotAllowed("there is not enough memory", hint="free memory, or ask for less")
    if isinstance(error, RecursionError):
        return UsageError("the input is nested too deeply", hint="nest it less deeply")
    if isinstance(error, UnicodeError):
        return UsageError(
            "a text cannot be read or written in this character set",
            why=str(error)[:300],
            hint="give names in UTF-8, and set LC_ALL=C.UTF-8",
        )
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return UsageError(
            "a home folder cannot be determined", why=str(error), hint="set HOME, or write the path"
        )
    if isinstance(error, ValueError) and "null byte" in str(error):
        return UsageError("a name contains a zero byte", hint="remove it")
    return None


def _run(arguments: list[str]) -> int:
    from torchyard.cli.main import COMPLETE_VARIABLE

    if COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        wanted = os.environ[COMPLETE_VARIABLE]
        return shell_complete(program, {}, "torchyard", COMPLETE_VARIABLE, wanted)
    _check_place(arguments)
    try:
        with program.make_context("torchyard", list(arguments)) as context:
            result = program.invoke(context)
    except Exit as end:
        sys.stdout.flush()
        return end.exit_code
    sys.stdout.flush()
    return result if isinstance(result, int) else 0


def _check_place(arguments: list[str]) -> None:
    """Refuse what no command can work with."""
    longest = max(map(len, arguments), default=0)
    if longest > _LONGEST_ARGUMENT:
        raise UsageError(
            f"an argument has {longest} characters",
            hint=f"give at most {_LONGEST_ARGUMENT}; put more into a file",
        )
    try:
        Path.cwd()
    except OSError as error:
        raise NotAllowed(
            "the working directory cannot be used",
            why=f"{error.strerror}: it was deleted, or it may not be entered",
            hint="change to another directory",
        ) from error


def _ours(error: TorchyardError | click.ClickException, arguments: list[str]) -> TorchyardError:
    """Click's complaints in our words."""
    if isinstance(error, TorchyardError):
        return error
    hint = f"`{_command_of(error, arguments)} --help` shows what there is"
    if isinstance(error, click.NoSuchOption):
        return UsageError(f"there is no option {error.option_name!r}", hint=_near(error) or hint)
    return UsageError(error.format_message().rstrip("."), hint=hint)


def _command_of(error: click.ClickException, arguments: list[str]) -> str:
    """The command that was used wrongly, as it is written."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return error.ctx.command_path
    # Some of click's errors do not know their command, so it is read from the command line.
    command = next((word for word in arguments if word in COMMANDS), "")
    return f"torchyard {command}".rstrip()


def _near(error: click.NoSuchOption) -> str:
    if error.ctx is None:
        return ""
    options = [
        word
        for parameter in error.ctx.command.get_params(error.ctx)
        for word in (*parameter.opts, *parameter.secondary_opts)
        if word.startswith("--")
    ]
    close = difflib.get_close_matches(error.option_name, options, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _print_traceback() -> None:
    import traceback

    sys.stderr.write(traceback.format_exc())
