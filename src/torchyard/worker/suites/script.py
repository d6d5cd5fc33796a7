"""The suite `script`: a whole user program, run repeatedly. Runs inside the target.

An iteration runs the file as `python FILE` would, in this process, so that only the first one pays for
imports. For `torchyard tune`: settings of the process (allocator, threads, variables) apply to it,
backends and precisions do not. Its output goes to the worker's log.
"""

import os
import runpy
import shlex
import sys
from typing import Any, Dict, List, Optional

import torch
from torch import nn

from torchyard.worker.workload import BuiltWorkload, CannotBuild

ARGUMENTS = "arguments"


def names() -> List[str]:
    """Return nothing: any file can be given."""
    return []


def build(
    name: str,
    mode: str,
    batch_size: Optional[int],
    parameters: Dict[str, Any],
    device: Any,  # noqa: ARG001 - chosen by the program
) -> BuiltWorkload:
    """Return the program as a module without weights."""
    if mode != "inference" or batch_size is not None:
        raise CannotBuild(
            "a program has no mode and no batch size",
            hint="remove --mode and --batch-size: the program sets them",
        )
    unknown = [key for key in parameters if key != ARGUMENTS]
    if unknown:
        raise CannotBuild(
            "a program has no parameter " + repr(unknown[0]), hint="its parameter is " + ARGUMENTS
        )
    if not os.path.isfile(name):
        raise CannotBuild(
            "the file " + repr(name) + " does not exist", hint="give the path of a program"
        )
    return BuiltWorkload(Program(name, shlex.split(str(parameters.get(ARGUMENTS, "")))))


class Program(nn.Module):
    """A module whose call runs the program."""

    def __init__(self, path: str, arguments: List[str]) -> None:
        super().__init__()
        self.path = path
        self.arguments = arguments

    def forward(self) -> None:
        """Run the program once; a nonzero exit code is an error."""
        argv, folder = sys.argv, os.getcwd()
        path = list(sys.path)
        sys.argv = [self.path, *self.arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(self.path)))
        try:
            with torch.enable_grad():  # gradients are off around calls in inference
                runpy.run_path(self.path, run_name="__main__")
        except SystemExit as exited:
            if exited.code not in (None, 0):
                raise RuntimeError("the program exited with code %r" % (exited.code,)) from exited
        finally:
            sys.argv = argv
            sys.path[:] = path
            os.chdir(folder)
