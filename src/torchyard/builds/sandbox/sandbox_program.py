"""Run one command in a sandbox and exit with the exit code or signal of the command.

Executed by path as ``python -I -S sandbox_program.py OPTIONS -- COMMAND...``; the `sandbox` package
writes such lines.

--root FOLDER       the command's / (default: this machine's)
--no-network        only a loopback device; looked-up names go to --wanted-file FILE
--own-processes     a process namespace: processes that the command leaves running end with it
--show FOLDER       of the machine, in a root that has that system folder of its own
--folder FOLDER     working folder; --folder-if-there FOLDER is / where the root does not have it
--set NAME=VALUE    a variable for the command that must not reach this interpreter (LD_PRELOAD)
--parent PID:TICKS  end when this process is gone
--become            no supervision: this process itself becomes the command

Exit code 125: the sandbox could not be made. No command: make the sandbox and exit with 0.

This file only starts the modules beside it, which Python keeps compiled. Standard library only,
Python 3.8 or newer; nothing may be imported after the root has been entered.
"""
# ruff: noqa: PTH100, PTH120
# Importing pathlib takes 10 ms, longer than all that is done with paths here.

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # only the two neighbours are made importable, and no __init__ is run
    _sandbox_folder = os.path.dirname(os.path.abspath(__file__))
    _builds_folder = os.path.dirname(_sandbox_folder)
    for _name, _folder in (
        ("torchyard", os.path.dirname(_builds_folder)),
        ("torchyard.builds", _builds_folder),
        ("torchyard.builds.sandbox", _sandbox_folder),
    ):
        sys.modules[_name] = type(sys)(_name)
        sys.modules[_name].__path__ = [_folder]

from torchyard.builds.sandbox.namespaces import Refused
from torchyard.builds.sandbox.supervisor import (
    COULD_NOT_MAKE,
    Order,
    OuterProcess,
    become,
    complain,
)

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Run the command in its sandbox; returns only when that could not be done, or the exit code."""
    try:
        order = Order(arguments)
        if order.become:
            become(order)
        return OuterProcess(order).run()
    except Refused as refusal:
        complain(f"cannot {refusal}")
    except OSError as error:
        complain(f"{error.strerror}: {error.filename}")
    return COULD_NOT_MAKE


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # nothing is left to tidy, and Python takes 3 ms for that
