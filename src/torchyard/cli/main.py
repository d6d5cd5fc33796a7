"""Entry point of the `torchyard` program.

Answers `--help` and `--version` without loading click and hands everything else to `invoke`.
Imports no large modules at the top: `torchyard --help` should take little longer than starting Python.
"""

import os
import sys

from torchyard import __version__

COMPLETE_VARIABLE = "_TORCHYARD_COMPLETE"


def main() -> None:
    """Run the command line of this process and end with its exit code."""
    from torchyard.cli.streams import discard_stdout, make_streams_safe

    try:
        make_streams_safe()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # Outside of `invoke`: while modules are loaded, or at exit.
        code = 130
    try:
        sys.stdout.flush()
    except OSError:
        discard_stdout()
    sys.exit(code)


def run(arguments: "list[str]") -> int:
    """Run one command line and return its exit code."""
    if COMPLETE_VARIABLE not in os.environ:
        if arguments in ([], ["--help"], ["-h"]):
            from torchyard.cli.commands import root_help

            return _print(root_help())
        if arguments == ["--version"]:
            return _print(f"torchyard {__version__}\n")
    from torchyard.cli.invoke import invoke

    return invoke(arguments)


def _print(text: str) -> int:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        from torchyard.cli.invoke import reader_gone

        return reader_gone()
    except OSError as error:
        from torchyard.cli.invoke import output_failed

        return output_failed(error)
    return 0
