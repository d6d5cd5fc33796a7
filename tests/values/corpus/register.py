"""The lists of programs: every public function of the modules named here."""

from __future__ import annotations

import inspect
from types import ModuleType

from tests.values.corpus import (
    clean_inference,
    clean_models,
    clean_training,
    clean_unavoidable,
    historic,
    planted_computation,
    planted_gradients,
    planted_in_torch,
    planted_steps,
    planted_values,
    planted_writes,
)
from tests.values.corpus.program import Program, program_of


def _programs(*modules: ModuleType) -> tuple[Program, ...]:
    found: list[Program] = []
    for module in modules:
        found += [
            program_of(function)
            for name, function in vars(module).items()
            if inspect.isfunction(function)
            and function.__module__ == module.__name__
            and not name.startswith("_")
        ]
    return tuple(found)


PLANTED = _programs(
    planted_writes,
    planted_computation,
    planted_values,
    planted_steps,
    planted_gradients,
    planted_in_torch,
    historic,
)
CLEAN = _programs(clean_models, clean_training, clean_inference, clean_unavoidable)
