"""The lists of programs: every public function of the modules named here."""

from __future__ import annotations

import inspect
from types import ModuleType

from tests.values.adversary import false_control, false_memory, false_source, true_waste
from tests.values.adversary.program import Program, program_of


def _programs(*modules: ModuleType) -> tuple[Program, ...]:
    return tuple(
        program_of(function)
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and function.__module__ == module.__name__
        and not name.startswith("_")
    )


FALSE = _programs(false_control, false_memory, false_source)
TRUE = _programs(true_waste)
