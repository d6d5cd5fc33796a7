"""Run one command in a sandbox and exit with the exit code or signal of the command.

Executed by path as ``python -I -S sandbox_program.py OPTIONS -- COMMAND...``; the `sandbox` package
writes such lines.

--root FOLDER       root folder of the command [default: the root of this machine]
--no-network        loopback device only; names that are looked up go to --wanted-file FILE
--own-processes     a process namespace: background processes of the command end with it
--show FOLDER       mount this folder of the machine although it is below a system folder
--folder FOLDER     working folder; --folder-if-there FOLDER falls back to / if it does not exist
--set NAME=VALUE    a variable for the command that must not reach this interpreter (LD_PRELOAD)
--parent PID:TICKS  exit when this process is gone
--become            no supervision: this process itself becomes the command

Exit code 125: the sandbox could not be created. Without a command: create the sandbox and exit
with 0.

This file only starts the modules beside it, for which Python caches bytecode. Standard library
only, Python 3.8 or newer; nothing may be imported after the root has been entered.
"""
# ruff: noqa: PTH100, PTH120
# Not pathlib: importing it takes 10 ms.

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # make the two modules importable without any __init__
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
    SANDBOX_FAILED,
    Order,
    OuterProcess,
    become,
    print_error,
)


def main(arguments: list[str]) -> int:
    """Run the command in its sandbox; return its exit code, or 125 if that failed."""
    try:
        order = Order(arguments)
        if order.become:
            become(order)
        return OuterProcess(order).run()
    except Refused as refusal:
        print_error(f"cannot {refusal}")
    except OSError as error:
        print_error(f"{error.strerror}: {error.filename}")
    return SANDBOX_FAILED


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))  # skips the interpreter's cleanup, which takes 3 ms
