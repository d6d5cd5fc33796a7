"""How the meter gets into a build: the actions that make it, the variables that switch it on.

The program itself is `meter.c`. Knows nothing of recipes and of what compiles cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Final

from torchyard.build.compiler_cache import CacheChoice
from torchyard.core.build_plan import Action, Command, WriteFile
from torchyard.errors import UsageError
from torchyard.results.durable import replace_file

__all__ = [
    "DEFAULT_PATH",
    "UNIT_MIB",
    "memory_units",
    "meter_actions",
    "meter_variables",
    "step_variables",
    "write_table",
]

UNIT_MIB: Final = 64
"""Memory is admitted in steps of this size: fine enough for small C files, few enough to lock."""

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_METER_FILES: Final = ("meter.c", "command_line.h", "make_meter.sh")
_MOST_UNITS: Final = (1 << 20) - 1
"""What meter.c accepts; 64 TiB."""
_LANGUAGES: Final = ("C", "CXX", "CUDA", "HIP", "Fortran")
_LINKED_LANGUAGES: Final = ("C", "CXX")


def meter_actions(folder: Path) -> tuple[Action, ...]:
    """Compile the meter in `folder`, in the step's own root, and link compiler names to it."""
    files = resources.files("torchyard.build.meter")
    texts = (
        WriteFile(path=str(folder / name), text=(files / name).read_text(encoding="utf-8"))
        for name in _METER_FILES
    )
    script = str(folder / "make_meter.sh")
    return (*texts, Command(argv=("sh", script, str(folder)), folder=str(folder)))


def memory_units(memory_mib: int) -> int:
    """Whole units in that much memory; at least one."""
    return min(max(memory_mib // UNIT_MIB, 1), _MOST_UNITS)


def meter_variables(
    folder: Path,
    *,
    jobs: int,
    memory_mib: int,
    masquerade: bool,
    cache: CacheChoice | None,
    default_mib: int = 1024,
    path: str = DEFAULT_PATH,
) -> dict[str, str]:
    """Variables that put the meter (and a compiler cache behind it) before every compile.

    CMake takes launchers from the environment at the first configure. Projects that start the
    compiler themselves get a folder of links before `path`. With both, a compile is still metered
    once: the meter marks its children. Log and table are each step's own: see `step_variables`.
    """
    meter = str(folder / "meter")
    if ";" in meter or ":" in meter:
        raise UsageError(
            f"the build folder {folder} has a ';' or ':' in its name",
            why="CMake and PATH split names there",
            hint="choose another folder with TORCHYARD_HOME or --name",
        )
    variables = {
        "TORCHYARD_METER_LOCKS": str(folder / "locks"),
        "TORCHYARD_METER_JOBS": str(max(jobs, 1)),
        "TORCHYARD_METER_UNITS": str(memory_units(memory_mib)),
        "TORCHYARD_METER_UNIT_MIB": str(UNIT_MIB),
        "TORCHYARD_METER_DEFAULT_MIB": str(default_mib),
        **step_variables(log=folder / "compiles.log", table=folder / "table"),
    }
    if cache is not None:
        # The meter starts the cache, so that each run of a build chooses anew: CMake keeps the
        # launcher of the first configure for good, and a cache that is gone would end the build.
        variables.update(cache.variables)
        variables["TORCHYARD_METER_CACHE"] = cache.program
    if masquerade:
        variables["PATH"] = f"{folder / 'bin'}:{path or DEFAULT_PATH}"
        return variables
    variables.update({f"CMAKE_{name}_COMPILER_LAUNCHER": meter for name in _LANGUAGES})
    variables.update({f"CMAKE_{name}_LINKER_LAUNCHER": meter for name in _LINKED_LANGUAGES})
    return variables


def step_variables(*, log: Path, table: Path) -> dict[str, str]:
    """Where one step's compiles are logged, and the table of what its files need."""
    return {"TORCHYARD_METER_LOG": str(log), "TORCHYARD_METER_TABLE": str(table)}


def write_table(path: Path, needs_mib: Mapping[str, int]) -> None:
    """Write what files need, in MiB, by basename or glob; the first glob that matches counts.

    `kind:link` and `kind:compile` stand for all links and compiles that nothing else matches.
    """
    lines = (
        f"{name}\t{mib}\n"
        for name, mib in needs_mib.items()
        # The meter reads lines of names and tabs; such a file falls back to the default.
        if name and not set(name) & set("\t\n\r\0") and not name.startswith("#")
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, "".join(lines))
