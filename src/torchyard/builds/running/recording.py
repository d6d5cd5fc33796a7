"""Make the record of a finished build from its sources, wheels, tools and step states."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from torchyard import __version__
from torchyard.builds.activation import runtime_variables
from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.cmake_cache import read_cache
from torchyard.builds.compilers import chosen_tools, is_launcher
from torchyard.builds.meter.compile_costs import read_meter_log
from torchyard.builds.plan import Component, Plan, Step, fingerprints
from torchyard.builds.record import (
    BuildRecord,
    ComponentRecord,
    PackageRecord,
    PatchRecord,
    RecipeIdentity,
    SourceIdentity,
    StepTimes,
    ToolRecord,
    VerifyReport,
    WheelRecord,
)
from torchyard.builds.running.runner import read_state
from torchyard.builds.sources import source_identity, used_source_kind
from torchyard.builds.sources.fetch_plan import sha256_of
from torchyard.builds.verify.target_python import RunInTarget, list_packages
from torchyard.builds.verify.verification import cache_of, open_target
from torchyard.core.records import decode
from torchyard.errors import TorchyardError, UsageError

_CACHED: Final = {
    "cc": "CMAKE_C_COMPILER",
    "c++": "CMAKE_CXX_COMPILER",
    "nvcc": "CMAKE_CUDA_COMPILER",
}
"""Tool -> variable of CMakeCache.txt with its path."""
_VERSION: Final = re.compile(r"(\d+(?:\.\d+)+)")
_MAX_PREFIX_FILES: Final = 2000


@dataclass(frozen=True, kw_only=True)
class RecordInputs:
    """Values of a record that come from the caller."""

    recipe: RecipeIdentity
    times: Mapping[str, StepTimes]
    """Costs of the steps of this run; those of earlier runs are read from their states."""
    machine: Mapping[str, Any]
    python: str
    run: RunInTarget
    """Runs a command in the environment of the build."""
    earlier: BuildRecord | None = None
    """The record to replace; it provides the times of steps that were not run again."""


def make_record(plan: Plan, inputs: RecordInputs) -> BuildRecord:
    """Return the record of a build whose steps are all done."""
    folder = BuildFolder(folder=Path(plan.folder))
    states = [read_state(folder.state(step.name)) for step in plan.steps]
    start_times = [state.started_at for state in states if state is not None]
    end_times = [state.started_at + state.wall_s for state in states if state is not None]
    step_fingerprints = fingerprints(plan)
    digest = hashlib.sha256("".join(step_fingerprints.values()).encode()).hexdigest()
    return BuildRecord(
        torchyard=__version__,
        name=plan.name,
        recipe=inputs.recipe,
        plan_fingerprint=digest,
        components=tuple(
            _component(
                part,
                folder,
                _toolchain(plan, part, inputs.run),
                inputs.earlier.component(part.name) if inputs.earlier else None,
            )
            for part in plan.components
        ),
        times=tuple(_times(plan, folder, inputs)),
        machine=dict(inputs.machine),
        packages=_packages(plan, inputs.run),
        python=inputs.python,
        root=plan.steps[-1].root,
        variables=runtime_variables(plan),
        started=_utc_time(min(start_times)) if start_times else "",
        finished=_utc_time(max(end_times)) if end_times else "",
    )


def _component(
    part: Component,
    folder: BuildFolder,
    tools: tuple[ToolRecord, ...],
    earlier: ComponentRecord | None,
) -> ComponentRecord:
    recipe = part.recipe
    return ComponentRecord(
        name=part.name,
        version=recipe.version,
        recipe=recipe.name,
        variant=recipe.variant,
        needs=part.needs,
        source=_source(part, earlier),
        patches=tuple(
            PatchRecord(name=name, sha256=sha256_of(Path(recipe.folder, name)))
            for name in recipe.patches
        ),
        options=dict(recipe.options),
        toolchain=tools,
        wheels=tuple(
            WheelRecord(file=path.name, sha256=sha256_of(path), size_bytes=path.stat().st_size)
            for path in sorted(folder.dist(part.name).glob("*.whl"))
        ),
        prefix_files=_prefix_files(part),
        edited=_is_edited(part, folder),
        reused=folder.restored(part.name).read_text()
        if folder.restored(part.name).exists()
        else "",
        verified=_report(folder.report(part.name)),
    )


def _source(part: Component, earlier: ComponentRecord | None) -> SourceIdentity | None:
    """Identify the compiled source, from the working copy where possible.

    The fetched source may have been removed, or updated by another build.
    """
    place = Path(part.source)
    with suppress(TorchyardError, OSError):
        kind = used_source_kind(part.recipe.source, f"{part.name}: source")
        if kind == "git" and Path(part.tree, ".git").exists():
            place = Path(part.tree)
        if place.exists():
            return source_identity(part.recipe.source, place)
    return earlier.source if earlier else None


def _is_edited(part: Component, folder: BuildFolder) -> bool:
    """Whether `build rebuild` ran after the working copy was made."""
    copied = read_state(folder.state(f"{part.name}/tree"))
    try:
        edited_at = folder.edited(part.name).stat().st_mtime
    except OSError:
        return False
    return copied is None or edited_at > copied.started_at


def _report(path: Path) -> VerifyReport | None:
    try:
        return decode(VerifyReport, json.loads(path.read_text()), where=str(path), strict=False)
    except (OSError, ValueError, UsageError):
        return None


def _times(plan: Plan, folder: BuildFolder, inputs: RecordInputs) -> list[StepTimes]:
    """Return the total cost of each step, over all runs that contributed to the present result."""
    before = {one.step: one for one in inputs.earlier.times} if inputs.earlier else {}
    step_times = []
    for step in plan.steps:
        state = read_state(folder.state(step.name))
        times = inputs.times.get(step.name) or before.get(step.name)
        times = times or StepTimes(step=step.name, wall_s=0.0)
        if state is not None:
            times = replace(times, wall_s=state.wall_s + state.earlier_s)
        step_times.append(_measured(step, times, folder))
    return step_times


def _measured(step: Step, times: StepTimes, folder: BuildFolder) -> StepTimes:
    """Add the costs of a compile step from the log of the meter, which covers all runs.

    The latest run may have compiled only a few files, because an option changed or the run before
    was interrupted. Without a log or without object files, `times` is returned unchanged.
    """
    if not step.compiles or step.name.endswith("/configure"):
        return times
    tree = read_state(folder.state(f"{step.component}/tree"))
    log = read_meter_log(folder.meter_log(step.component)).since(tree.started_at if tree else 0.0)
    made = log.made()
    if not made.compiles:
        return times
    return replace(
        times,
        wall_s=max(times.wall_s, log.busy_s),
        cpu_s=made.cpu_s,
        compiles=len(made.compiles),
        peak_memory_mib=made.peak_mib or None,
    )


def _toolchain(plan: Plan, part: Component, run: RunInTarget) -> tuple[ToolRecord, ...]:
    """Return the tools of a component: those that CMake used, else those that the build chose."""
    script = (
        'for name; do path=$(command -v "$name") && break; done\n'
        '[ -n "$path" ] || exit 3; printf "%s\\n" "$path"; "$path" --version 2>/dev/null'
    )
    variables = {
        name: value
        for step in plan.steps
        if step.component == part.name and step.compiles
        for name, value in step.variables
    }
    cached = _tools_of_cmake(part)
    chosen = {
        tool: names
        for tool, names in chosen_tools(part.recipe, variables).items()
        # CMake caches the compilers of the languages that the project uses.
        if not cached or tool in cached or tool not in _CACHED
    }
    programs = {
        **chosen,
        **{tool: (path,) for tool, path in cached.items() if not is_launcher(path)},
        "cmake": ("cmake",),
        "ninja": ("ninja",),
    }
    tools = []
    for name, candidates in programs.items():
        completed = run(("sh", "-c", script, "sh", *candidates), {})
        lines = completed.stdout.splitlines()
        if completed.returncode or not lines:
            continue
        # `cc (Debian 12.2.0-14) 12.2.0`: the version in brackets is the packager's.
        version = _VERSION.search(re.sub(r"\([^)]*\)", "", "\n".join(lines[1:])))
        tools.append(ToolRecord(name=name, path=lines[0], version=version[1] if version else ""))
    return tuple(tools)


def _tools_of_cmake(part: Component) -> dict[str, str]:
    cache_file = cache_of(part)
    entries = read_cache(cache_file) if cache_file is not None else {}
    return {
        tool: entries[variable].value
        for tool, variable in _CACHED.items()
        if variable in entries and Path(entries[variable].value).is_absolute()
    }


def _packages(plan: Plan, run: RunInTarget) -> tuple[PackageRecord, ...]:
    with open_target(plan.components[-1], run) as target:
        return tuple(list_packages(target)) if target is not None else ()


def _prefix_files(part: Component) -> tuple[str, ...]:
    if part.recipe.builder == "python" or not part.recipe.verify.files:
        return ()
    return _files_like(Path(part.prefix), part.recipe.verify.files)


def _files_like(prefix: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    names = (str(path.relative_to(prefix)) for path in sorted(prefix.rglob("*")) if path.is_file())
    chosen = [name for name in names if any(fnmatch(name, f"{pattern}*") for pattern in patterns)]
    return tuple(chosen[:_MAX_PREFIX_FILES])


def _utc_time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
