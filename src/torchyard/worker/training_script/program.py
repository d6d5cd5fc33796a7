"""Run a script as `python FILE ARGUMENTS` does, in this process, as often as needed."""

import ast
import gc
import os
import random
import sys
import types
from typing import Any, Dict, List, Optional

import torch

from torchyard.worker.training_script.boundaries import NamedSteps
from torchyard.worker.workload import CannotBuild


class Program:
    """A script, its arguments and the folder that it runs in."""

    def __init__(
        self, path: str, arguments: List[str], folder: str, seed: int, steps: Optional[NamedSteps]
    ) -> None:
        self.path = path
        self._arguments = arguments
        self._folder = folder
        self._seed = seed
        self._steps = steps

    def run(self) -> None:
        """Run the script to its end; a nonzero exit code is an error."""
        code = self._code()
        main = types.ModuleType("__main__")
        main.__file__ = self.path
        if self._steps is not None:
            vars(main).update(self._steps.names())
        before: Dict[str, Any] = {"main": sys.modules.get("__main__"), "argv": sys.argv}
        sys.modules["__main__"] = main
        sys.argv = [self.path, *self._arguments]
        os.chdir(self._folder)
        self._set_seeds()
        try:
            exec(code, vars(main))  # noqa: S102 - the program that the user wants to measure
        except SystemExit as exited:
            if exited.code not in (None, 0):
                raise RuntimeError("the script exited with code %r" % (exited.code,)) from exited
        finally:
            sys.modules["__main__"] = before["main"]
            sys.argv = before["argv"]
        del main
        gc.collect()  # ends the worker processes of its data loaders

    def _code(self) -> Any:
        folder = os.path.dirname(self.path)
        if sys.path[:1] != [folder]:
            sys.path.insert(0, folder)
        try:
            with open(self.path, "rb") as file:
                tree = ast.parse(file.read(), self.path)
        except (OSError, SyntaxError, ValueError) as error:
            raise CannotBuild(
                "cannot read the script: " + str(error), hint="check that `python FILE` runs it"
            ) from error
        if self._steps is not None and not self._steps.instrument(tree):
            self._steps.watch_import()
        return compile(tree, self.path, "exec", dont_inherit=True)

    def _set_seeds(self) -> None:
        """Set all seeds; a script that sets its own ones overrides them."""
        random.seed(self._seed)
        torch.manual_seed(self._seed)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self._seed % 2**32)
