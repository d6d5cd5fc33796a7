"""Where programs, headers and libraries are looked for: recipe first, environment, then system.

One place decides the order, so that compiler, linker and loader agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchyard.build.environments.base_variables import base_variables, joined_path
from torchyard.build.environments.contract import EnvironmentRequest
from torchyard.core.build_plan import Variables

__all__ = ["ordered_variables"]


def ordered_variables(
    request: EnvironmentRequest,
    *,
    programs: Sequence[str] = (),
    headers: Sequence[str] = (),
    libraries: Sequence[str] = (),
    loaded: Sequence[str] = (),
    prefixes: Sequence[str] = (),
    more: Variables = (),
) -> Variables:
    """All variables of later steps; the recipe's own `variables` win over everything.

    `libraries` are for the linker and `loaded` for the loader: an environment whose own programs
    find their libraries by themselves needs the first without the second.
    """
    table = request.table
    values = dict(base_variables(request.environ))
    values["PATH"] = joined_path(*table.path, *programs, values["PATH"])
    values.update(more)
    for name, folders in (
        ("CMAKE_PREFIX_PATH", tuple(prefixes)),
        ("CPATH", (*table.include, *headers)),
        ("LIBRARY_PATH", (*table.libraries, *libraries)),
        ("LD_LIBRARY_PATH", (*table.libraries, *loaded)),
    ):
        if folders:
            values[name] = joined_path(*folders)
    values.update(table.variables)
    return tuple(values.items())
