"""Find the steps of a script: calls of `Optimizer.step`, or of a function that the user names.

A name is looked up in the source of the script first: a function `train_step`, a method `Trainer.step`, or
calls of `trainer.step(...)` and objects assigned to `trainer`. The code is instrumented in memory; the file
is not changed. Otherwise the name is imported, as in `transformers.Trainer.training_step`.
"""

import ast
import functools
import importlib
import inspect
import types
from typing import Any, Callable, Dict, List, Optional

import torch

from torchyard.worker.workload import CannotBuild

_WATCH = "__torchyard_step__"
_WATCH_OBJECT = "__torchyard_step_object__"


class OptimizerSteps:
    """Steps of an optimizer; of several, that which made its first step last ends a step of the script."""

    def __init__(self, on_step: Callable[[Any], None]) -> None:
        self._on_step = on_step
        self._handle: Any = None
        self.optimizers: List[Any] = []
        self.late: int = 0
        """Number of optimizers that made their first step after `settle`."""
        self._chosen: Optional[Any] = None
        self._settled = False

    def install(self, required: bool) -> None:
        """Watch all optimizers of this process; raise CannotBuild if that is required and impossible."""
        module = importlib.import_module("torch.optim.optimizer")
        register = getattr(module, "register_optimizer_step_post_hook", None)
        if register is None and not required:
            return
        if register is None:
            raise CannotBuild(
                "torch " + torch.__version__ + " has no hooks of optimizers",
                hint="name the function of a step with --step",
            )

        def hook(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            self._stepped(optimizer)

        hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._handle = register(hook)

    def forget(self) -> None:
        """Start again with the optimizers of the next run of the script."""
        self.optimizers = []
        self._chosen = None
        self._settled = False

    def settle(self) -> None:
        """Keep the chosen optimizer from now on."""
        self._settled = True

    def parameters(self) -> List[Any]:
        """Return the parameters of all optimizers, in a stable order and without duplicates."""
        unique = {
            id(parameter): parameter
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return list(unique.values())

    def _stepped(self, optimizer: Any) -> None:
        if all(optimizer is not one for one in self.optimizers):
            self.optimizers.append(optimizer)
            if self._settled:
                self.late += 1
            else:
                self._chosen = optimizer
        if optimizer is self._chosen:
            self._on_step(optimizer)


class NamedSteps:
    """Calls of the function that the user named; a call inside another one does not count."""

    def __init__(self, name: str, on_step: Callable[[Any], None]) -> None:
        self.name = name
        self._on_step = on_step
        self._depth = 0

    def instrument(self, tree: ast.Module) -> bool:
        """Instrument the script; return whether it contains the name."""
        transformer = _Instrumentation(self.name)
        transformer.visit(tree)
        ast.fix_missing_locations(tree)
        return transformer.matched

    def names(self) -> Dict[str, Any]:
        """Return the globals that instrumented code uses."""
        return {_WATCH: self.watched, _WATCH_OBJECT: self._watched_object}

    def watch_import(self) -> None:
        """Watch the function of an imported module; raise CannotBuild if there is none."""
        parts = self.name.split(".")
        for length in range(len(parts) - 1, 0, -1):
            try:
                owner = importlib.import_module(".".join(parts[:length]))
            except ImportError:
                continue
            for part in parts[length:-1]:
                owner = getattr(owner, part, None)  # type: ignore[assignment]
            function = inspect.getattr_static(owner, parts[-1], None)
            if function is None or not callable(getattr(owner, parts[-1])):
                continue
            if not hasattr(function, "__torchyard_watched__"):
                setattr(owner, parts[-1], self.watched(function))
            return
        raise CannotBuild(
            "the script has no " + self.name + ", and it cannot be imported",
            hint="name a function or method of the script, as in --step train_step or --step "
            "Trainer.step, a variable, as in trainer.step, or an import, as in package.Trainer.step",
        )

    def watched(self, function: Any) -> Any:
        """Return the function with a step after each call."""
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self.watched(function.__func__))
        if not callable(function) or hasattr(function, "__torchyard_watched__"):
            return function

        @functools.wraps(function)
        def step(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                result = function(*args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                self._on_step(result)
            return result

        step.__torchyard_watched__ = True  # type: ignore[attr-defined]
        return step

    def _watched_object(self, value: Any, method: str) -> Any:
        """Watch a method of the object, where it has one."""
        function = getattr(value, method, None)
        if callable(function):
            watched = self.watched(getattr(function, "__func__", function))
            if inspect.ismethod(function):  # schedulers of learning rates need a method
                watched = types.MethodType(watched, function.__self__)
            try:
                setattr(value, method, watched)
            except (AttributeError, TypeError):
                return value  # calls in the script are watched where they are made
        return value


class _Instrumentation(ast.NodeTransformer):
    """Decorates definitions, and wraps calls and assigned objects, of one dotted name."""

    def __init__(self, name: str) -> None:
        self.matched = False
        self._name = name
        self._object, _, self._method = name.rpartition(".")
        self._scope: List[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        scope, self._scope = self._scope, []
        self.generic_visit(node)
        self._scope = scope
        if ".".join([*scope, node.name]) == self._name:
            self.matched = True
            node.decorator_list.insert(0, ast.Name(id=_WATCH, ctx=ast.Load()))
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if self._object and _dotted(node.func) == self._name:
            self.matched = True
            watch = ast.Name(id=_WATCH, ctx=ast.Load())
            node.func = ast.Call(func=watch, args=[node.func], keywords=[])
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        self.generic_visit(node)
        if self._object and any(_dotted(target) == self._object for target in node.targets):
            self.matched = True
            node.value = ast.Call(
                func=ast.Name(id=_WATCH_OBJECT, ctx=ast.Load()),
                args=[node.value, ast.Constant(value=self._method)],
                keywords=[],
            )
        return node


def _dotted(node: Any) -> str:
    """Return `a.b.c` for names and their attributes, and nothing for other expressions."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return before + "." + node.attr if before else ""
    return ""
