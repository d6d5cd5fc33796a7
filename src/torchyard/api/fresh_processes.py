"""Compare callables in fresh processes: write them as a workload file, and run `bench` on it.

The file imports functions by name and loads modules and inputs from files, so that every launch starts
from the same state.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from torchyard.api.result import SUITE, Comparison, scope_of, short_name
from torchyard.bench.bench_run import run_bench
from torchyard.bench.launch import LaunchProcesses
from torchyard.core.comparison import Failure
from torchyard.core.events import ignore_events
from torchyard.core.study import (
    FILE_SUITE,
    Budget,
    MeasureSettings,
    Study,
    Variant,
    Workload,
)
from torchyard.errors import WorkerFailed
from torchyard.results.directory import new_run_folder, runs_home
from torchyard.worker.bench.backend_names import GIVEN

_MAIN: Final = "__main__"
_COMPILED_LATER: Final = "so not from empty caches"
"""End of a note about compile times, which the API does not report."""
_TEXT: Final = '''\
"""Workload of torchyard.compare."""

import importlib
import os
import sys

import torch

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.extend(path for path in {paths!r} if path not in sys.path)


def load(name):
    return torch.load(os.path.join(FOLDER, name), weights_only=False)


def find(module, name, file):
    value = importlib.import_module(module)
    if os.path.realpath(value.__file__) != os.path.realpath(file):
        raise ImportError("%s is %s here, not %s" % (module, value.__file__, file))
    for part in name.split("."):
        value = getattr(value, part)
    return value


def with_own_weights(value):
    if isinstance(value, torch.nn.Module):
        value.eval()
        value.own_weights = True
    return value


def make():
    args, kwargs = load("inputs.pt")
    if kwargs:
        return {model}, kwargs
    return {model}, args


def baseline(_):
    return with_own_weights({baseline})


def candidate(_):
    return with_own_weights({candidate})
'''


class WorkloadFile:
    """Two callables with their inputs, in a form that other processes can load.

    `why_not` says why they cannot; it is empty if they can.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        baseline: Callable[..., Any] | str,
        candidate: Callable[..., Any] | str,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
    ) -> None:
        self._name = short_name(model)
        self._files: dict[str, bytes] = {}
        self._paths = [str(Path(path).absolute()) for path in sys.path]
        self.why_not = ""
        sides = {"baseline": baseline, "candidate": candidate}
        name_of_model = next((name for name, side in sides.items() if side is model), "model")
        own = self._add(name_of_model, model)
        self._expressions = {"model": own}
        for name, side in sides.items():
            is_model = isinstance(side, str) or side is model
            self._expressions[name] = own if is_model else self._add(name, side)
        self._pickle("inputs", arguments)

    def compare(
        self, variants: Sequence[Variant], *, device: str, time_s: float, name: str = ""
    ) -> Comparison:
        """Run the comparison in fresh processes, and keep it in the results directory."""
        with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
            path = Path(folder) / f"{self._name}.py"
            path.write_text(_TEXT.format(paths=self._paths, **self._expressions), "utf-8")
            for file, data in self._files.items():
                (path.parent / file).write_bytes(data)
            study = Study(
                name="compare",
                baseline=variants[0],
                candidates=tuple(variants[1:]),
                workloads=(Workload(suite=SUITE, name=name or self._name, device=device),),
                budget=Budget(time_s=time_s),
                settings=MeasureSettings(),
            )
            run = new_run_folder(runs_home())
            result = run_bench(
                study,
                folder=run,
                command=["torchyard.compare"],
                listener=ignore_events,
                processes_of=partial(_file_processes, path, variants[0].name),
            )[0]
        if result.failure is not None:
            raise _error_of(result.failure)
        notes = tuple(note for note in result.notes if not note.endswith(_COMPILED_LATER))
        result = replace(result, notes=notes)
        return Comparison(result=result, scope=scope_of(result), run=run)

    def _add(self, name: str, value: Any) -> str:
        """Return the expression that finds or loads the object in another process."""
        from torchyard.worker.bench.this_process import is_module, uncompiled

        if is_module(value):
            if uncompiled(value) is not value:
                self._refuse(f"{name} is a compiled module")
            else:
                self._pickle(name, value)
            return f'load("{name}.pt")'
        reason = why_not_importable(value)
        if reason:
            self._refuse(f"{name} {reason}")
            return "None"
        module = sys.modules[value.__module__]
        root = Path(str(module.__file__)).absolute()
        for _ in range(value.__module__.count(".") + 1 + (root.name == "__init__.py")):
            root = root.parent
        self._paths.append(str(root))
        return f"find({value.__module__!r}, {value.__qualname__!r}, {str(module.__file__)!r})"

    def _pickle(self, name: str, value: Any) -> None:
        from torchyard.worker.bench.this_process import pickled

        if self.why_not:
            return
        try:
            data = pickled(value)
        except Exception as error:  # noqa: BLE001 - objects define how they are pickled
            self._refuse(f"{name} cannot be pickled: {type(error).__name__}: {error}")
            return
        if _MAIN.encode() in data:
            self._refuse(f"{name} contains an object that is defined in {_MAIN}")
        self._files[f"{name}.pt"] = data

    def _refuse(self, reason: str) -> None:
        self.why_not = self.why_not or reason


def _file_processes(
    path: Path,
    baseline: str,
    workload: Workload,
    variants: Sequence[Variant],
    *rest: Any,
    **options: Any,
) -> LaunchProcesses:
    """Return the processes of a launch, which load the file.

    Records name neither its path nor its functions: the file is temporary, and runs of the same
    callables are comparable.
    """
    from_file = [
        replace(one, backend=f"{path}:{'baseline' if one.name == baseline else 'candidate'}")
        if one.backend == GIVEN
        else one
        for one in variants
    ]
    file = replace(workload, suite=FILE_SUITE, name=str(path))
    return LaunchProcesses(file, from_file, *rest, **options)


def why_not_importable(value: Any) -> str:
    """Return why another process cannot import the callable by its name; empty if it can."""
    module_name = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None)
    if not isinstance(module_name, str) or not isinstance(name, str):
        return "has no importable name"
    if module_name == _MAIN:
        return f"is defined in {_MAIN}"
    if "<" in name:
        return "is a lambda or is defined in a function"
    module = sys.modules.get(module_name)
    if module is None or not getattr(module, "__file__", None):
        return f"is defined in {module_name}, which has no file"
    attribute = inspect.getattr_static(module, name.partition(".")[0], None)
    for part in name.split(".")[1:]:
        attribute = getattr(attribute, part, None)
    return "" if attribute is value else f"is not {module_name}.{name}"


def _error_of(failure: Failure) -> WorkerFailed:
    error = WorkerFailed(
        f"{failure.variant} failed ({failure.kind}, {failure.phase}): {failure.message}",
        hint=failure.hint,
        log=failure.log,
    )
    for text in (failure.hint, failure.log_tail):
        if text:
            error.add_note(text)
    return error
