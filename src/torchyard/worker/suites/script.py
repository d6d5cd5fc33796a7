"""The suite `script`: a whole program of the user's, run again and again. Runs inside the target.

An iteration runs the file as `python FILE` would, in this process, so that only the first one pays for
imports. Made for `torchyard tune`: settings of the process (allocator, threads, variables) act on it,
backends and precisions do not. What it prints goes to the worker's log.
"""

import os
import runpy
import shlex
import sys
from typing import Any, Dict, List, Optional

import torch
from torch import nn

from torchyard.worker.workload import Built, CannotBuild

ARGUMENTS = "arguments"


def names() -> List[str]:
    """Any file."""
    return []


def build(
    name: str,
    mode: str,
    batch_size: Optional[int],
    parameters: Dict[str, Any],
    device: Any,  # noqa: ARG001 - the program's own business
) -> Built:
    """The program as a module without weights."""
    if mode != "inference" or batch_size is not None:
        raise CannotBuild(
            "a program has no mode and no batch size of ours",
            hint="leave out --mode and --batch-size: the program decides",
        )
    unknown = [key for key in parameters if key != ARGUMENTS]
    if unknown:
        raise CannotBuild(
            "a program has no parameter " + repr(unknown[0]), hint="it has: " + ARGUMENTS
        )
    if not os.path.isfile(name):
        raise CannotBuild("there is no file " + repr(name), hint="give the path of a program")
    return Built(Program(name, shlex.split(str(parameters.get(ARGUMENTS, "")))))


class Program(nn.Module):
    """Calls of it are runs of the program."""

    def __init__(self, path: str, arguments: List[str]) -> None:
        super().__init__()
        self.path = path
        self.arguments = arguments

    def forward(self) -> None:
        """One run; an exit code other than 0 is an error."""
        argv, folder = sys.argv, os.getcwd()
        path = list(sys.path)
        sys.argv = [self.path, *self.arguments]
        sys.path.insert(0, os.path.dirname(os.path.abspath(self.path)))
        try:
            with torch.enable_grad():  # around a call of ours gradients are off
                runpy.run_path(self.path, run_name="__main__")
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise RuntimeError("the program ended with exit code %r" % (ended.code,)) from ended
        finally:
            sys.argv = argv
            sys.path[:] = path
            os.chdir(folder)
