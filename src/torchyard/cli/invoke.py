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
from torchyard.cli.project_file import ProjectDefaults, read_defaults
from torchyard.cli.streams import ClosedOutput, discard_stdout
from torchyard.errors import NotAllowed, TorchyardError, UsageError
from torchyard.process.signals import EndedBySignal, SignalsRaise, ending_signal

INTERRUPTED = 130
READER_GONE = 141
"""Exit code that a shell reports for a program ended by SIGPIPE."""
_LONGEST_ARGUMENT = 32 * 1024
_HINTS = {
    2: "see the --help of the command",
    8: "restore it from a copy, or remove it",
}
"""Hints for errors without one, by exit code."""


def invoke(arguments: list[str]) -> int:
    """Run a command line and return its exit code. Raises only SystemExit, by completion.

    SIGTERM and SIGHUP end every command like Ctrl-C, with exit code 128 plus the signal number.
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
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    debug, as_json = "--debug" in options, "--json" in options
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal cannot encode must not lose the results.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        return _run(arguments)
    except BrokenPipeError:
        return reader_gone()
    except (KeyboardInterrupt, click.Abort) as error:
        code = 128 + error.number if isinstance(error, EndedBySignal) else INTERRUPTED
        text = "interrupted" if code == INTERRUPTED else str(error)
        return _report(TorchyardError(text), as_json=as_json, exit_code=code)
    except (TorchyardError, click.ClickException) as error:
        if debug:
            _print_traceback()
        converted = _from_click(error, arguments)
        return _report(converted, as_json=as_json, exit_code=converted.exit_code)
    except Exception as error:  # noqa: BLE001  # nothing above this function reports errors
        if debug:
            _print_traceback()
        if isinstance(error, OSError) and _stdout_fails():
            return output_failed(error)
        converted = _from_system(error) or TorchyardError(
            f"internal error: {type(error).__name__}: {error}",
            why="this is a bug in Torchyard",
            hint="run the same command with --debug and report the output",
        )
        return _report(converted, as_json=as_json, exit_code=converted.exit_code)


def reader_gone() -> int:
    """Handle a closed output pipe, as with `head`: exit without a message."""
    # Python flushes stdout at exit, which would raise again.
    discard_stdout()
    return READER_GONE


def output_failed(error: OSError) -> int:
    """Report that stdout is closed or its disk is full; return the exit code."""
    discard_stdout()
    failure = NotAllowed(
        "cannot write to standard output",
        why=error.strerror or str(error),
        hint="free disk space or write elsewhere; a finished run is kept: `torchyard results list`",
    )
    print_error(failure, as_json=False, exit_code=failure.exit_code)
    return failure.exit_code


def _report(error: TorchyardError, *, as_json: bool, exit_code: int) -> int:
    """Print the error, on stderr alone if stdout cannot be written; return the exit code."""
    if not error.hint and exit_code != INTERRUPTED:
        error.hint = _HINTS.get(exit_code, "")
    try:
        print_error(error, as_json=as_json, exit_code=exit_code)
    except BrokenPipeError:
        discard_stdout()
    except OSError:
        discard_stdout()
        print_error(error, as_json=False, exit_code=exit_code)
    return exit_code


def _stdout_fails() -> bool:
    """Return whether stdout cannot be written."""
    try:
        sys.stdout.write("")
        sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return isinstance(sys.stdout, ClosedOutput)


def _from_system(error: Exception) -> TorchyardError | None:
    """Convert an exception caused by the operating system or the input; None for a bug."""
    if isinstance(error, OSError):
        place = f": {error.filename!r}" if error.filename else ""
        return NotAllowed(
            f"operating system error{place}",
            why=error.strerror or str(error),
            hint="check that the path exists, that you may access it, and that the disk is not full",
        )
    if isinstance(error, MemoryError):
        return NotAllowed("out of memory", hint="free memory, or reduce the request")
    if isinstance(error, RecursionError):
        return UsageError("the input is nested too deeply", hint="reduce the nesting")
    if isinstance(error, UnicodeError):
        return UsageError(
            "text cannot be encoded or decoded",
            why=str(error)[:300],
            hint="use UTF-8, and set LC_ALL=C.UTF-8",
        )
    if isinstance(error, RuntimeError) and "home directory" in str(error):
        return UsageError(
            "the home directory cannot be determined",
            why=str(error),
            hint="set HOME, or give an absolute path",
        )
    if isinstance(error, ValueError) and "null byte" in str(error):
        return UsageError("a name contains a null byte", hint="remove it")
    return None


def _run(arguments: list[str]) -> int:
    from torchyard.cli.main import COMPLETE_VARIABLE

    if COMPLETE_VARIABLE in os.environ:
        from click.shell_completion import shell_complete

        instruction = os.environ[COMPLETE_VARIABLE]
        return shell_complete(program, {}, "torchyard", COMPLETE_VARIABLE, instruction)
    _check_preconditions(arguments)
    defaults = read_defaults(Path.cwd(), tables=tuple(COMMANDS))
    try:
        with program.make_context("torchyard", list(arguments), default_map=defaults) as context:
            result = program.invoke(context)
    except Exit as end:
        sys.stdout.flush()
        return end.exit_code
    except (UsageError, click.UsageError) as error:
        if defaults is None:
            raise
        raise _with_source(_from_click(error, arguments), defaults) from error
    sys.stdout.flush()
    return result if isinstance(result, int) else 0


def _with_source(error: TorchyardError, defaults: ProjectDefaults) -> TorchyardError:
    """Name the keys of the project file that may have set the option of the error."""
    keys = defaults.keys_in(error.what)
    if keys:
        source = f"{defaults.path} sets {', '.join(keys)}"
        error.why = f"{error.why}; {source}" if error.why else source
    return error


def _check_preconditions(arguments: list[str]) -> None:
    """Reject overlong arguments and an unusable working directory."""
    longest = max(map(len, arguments), default=0)
    if longest > _LONGEST_ARGUMENT:
        raise UsageError(
            f"an argument has {longest} characters",
            hint=f"the maximum is {_LONGEST_ARGUMENT}; use a file",
        )
    try:
        Path.cwd()
    except OSError as error:
        raise NotAllowed(
            "the working directory cannot be used",
            why=f"{error.strerror}: it was deleted, or you have no permission",
            hint="change to another directory",
        ) from error


def _from_click(
    error: TorchyardError | click.ClickException, arguments: list[str]
) -> TorchyardError:
    """Convert an error of click; return others unchanged."""
    if isinstance(error, TorchyardError):
        return error
    hint = f"see `{_command_of(error, arguments)} --help`"
    if isinstance(error, click.NoSuchOption):
        return UsageError(
            f"there is no option {error.option_name!r}", hint=_nearest_option(error) or hint
        )
    if isinstance(error, click.BadParameter) and type(error) is click.BadParameter:
        return _bad_value(error, hint)
    return UsageError(error.format_message().rstrip("."), hint=hint)


def _bad_value(error: click.BadParameter, hint: str) -> UsageError:
    """Return an error that starts with the option, and names the nearest choice or the range."""
    parameter = error.param
    if parameter is None:
        return UsageError(error.format_message().rstrip("."), hint=hint)
    name = parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.metavar or ""
    name = name or str(parameter.human_readable_name)
    message = error.message.rstrip(".")
    kind = parameter.type
    if isinstance(kind, click.Choice):
        value, _, _ = message.removeprefix("'").partition("' is not one of")
        close = difflib.get_close_matches(value[:80], [str(one) for one in kind.choices], n=1)
        hint = f"did you mean {close[0]!r}?" if close else hint
    elif isinstance(kind, click.IntRange | click.FloatRange) and " is not in the range" in message:
        value, _, _ = message.partition(" is not in the range")
        message = f"{value!r} is out of range"
        bounds = [
            f"at {word} {int(bound) if bound == int(bound) else bound}"
            for word, bound in (("least", kind.min), ("most", kind.max))
            if bound is not None
        ]
        hint = f"give a number of {' and '.join(bounds)}"
    return UsageError(f"{name}: {message[:1].lower()}{message[1:]}", hint=hint)


def _command_of(error: click.ClickException, arguments: list[str]) -> str:
    """Return the command that raised the error, as typed."""
    if isinstance(error, click.UsageError) and error.ctx is not None:
        return error.ctx.command_path
    # Some errors of click have no context, so the command is taken from the command line.
    command = next((word for word in arguments if word in COMMANDS), "")
    return f"torchyard {command}".rstrip()


def _nearest_option(error: click.NoSuchOption) -> str:
    if error.ctx is None:
        return ""
    options = [
        word
        for parameter in error.ctx.command.get_params(error.ctx)
        for word in (*parameter.opts, *parameter.secondary_opts)
        if word.startswith("--")
    ]
    # Without the dashes, which all options share.
    close = difflib.get_close_matches(error.option_name.strip("-"), [o[2:] for o in options], n=1)
    return f"did you mean {f'--{close[0]}'!r}?" if close else ""


def _print_traceback() -> None:
    import traceback

    sys.stderr.write(traceback.format_exc())
