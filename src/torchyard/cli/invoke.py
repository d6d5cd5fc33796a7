"""Runs one command and turns whatever it raises into short lines and an exit code."""

from __future__ import annotations

import difflib
import io
import os
import sys

import click
from click.exceptions import Exit

from torchyard.cli.commands import COMMANDS
from torchyard.cli.group import program
from torchyard.cli.output import print_error
from torchyard.errors import TorchyardError, UsageError
from torchyard.machine.signals import EndedBySignal, SignalsRaise, ending_signal

__all__ = ["INTERRUPTED", "READER_GONE", "invoke", "reader_gone"]

INTERRUPTED = 130
READER_GONE = 141
"""What a shell says of a program that SIGPIPE ended."""


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
        print_error(TorchyardError(text), as_json=as_json, exit_code=code)
        return code
    except (TorchyardError, click.ClickException) as error:
        if debug:
            _print_traceback()
        ours = _ours(error, arguments)
        print_error(ours, as_json=as_json, exit_code=ours.exit_code)
        return ours.exit_code
    except Exception as error:  # noqa: BLE001  # the last place that can still say something useful
        if debug:
            _print_traceback()
        ours = TorchyardError(
            f"Torchyard made a mistake: {type(error).__name__}: {error}",
            why="this is not your fault",
            hint="please report it with the output of the same command and --debug",
        )
        print_error(ours, as_json=as_json, exit_code=1)
        return 1


def reader_gone() -> int:
    """The reader of our output went away, as `head` does: end quietly."""
    # Python flushes stdout once more at the end, which would complain again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_GONE


def _run(arguments: list[str]) -> int:
    from torchyard.cli.main import COMPLETE_VARIABLE

    if COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        wanted = os.environ[COMPLETE_VARIABLE]
        return shell_complete(program, {}, "torchyard", COMPLETE_VARIABLE, wanted)
    try:
        with program.make_context("torchyard", list(arguments)) as context:
            result = program.invoke(context)
    except Exit as end:
        sys.stdout.flush()
        return end.exit_code
    sys.stdout.flush()
    return result if isinstance(result, int) else 0


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
