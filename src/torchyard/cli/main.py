"""Entry point of the `torchyard` program.

Answers `--help` and `--version` without loading click and hands everything else to `invoke`.
Imports nothing heavy at the top: `torchyard --help` must cost hardly more than starting Python.
"""

import os
import sys

from torchyard import __version__

COMPLETE_VARIABLE = "_TORCHYARD_COMPLETE"


def main() -> None:
    """Run the command line of this process and end with its exit code."""
    from torchyard.cli.streams import give_up_stdout, make_safe

    try:
        make_safe()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # Before or after `invoke` could catch it: while modules load, or at the very end.
        code = 130
    try:
        sys.stdout.flush()
    except OSError:
        give_up_stdout()
    sys.exit(code)


def run(arguments: "list[str]") -> int:
    """Run one command line; the exit code."""
    if COMPLETE_VARIABLE not in os.environ:
        if arguments in ([], ["--help"], ["-h"]):
            from torchyard.cli.commands import root_help

            return _say(root_help())
        if arguments == ["--version"]:
            return _say(f"torchyard {__version__}\n")
    from torchyard.cli.invoke import invoke

    return invoke(arguments)


def _say(text: str) -> int:
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
