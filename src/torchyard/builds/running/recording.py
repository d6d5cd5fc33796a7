"""Gather what a finished build was made of into its record.

Reads sources, wheels, tools and step states after the build; decides nothing.
"""

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
from torchyard.builds.meter import read_meter_log
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
from torchyard.builds.sources import source_identity, used_kind
from torchyard.builds.verify import RunInTarget, list_packages, open_target
from torchyard.core.records import decode
from torchyard.errors import TorchyardError, UsageError

__all__ = ["RecordInputs", "make_record"]

_TOOLS: Final = ("cc", "c++", "ld", "cmake", "ninja", "nvcc", "hipcc")
_VERSION: Final = re.compile(r"(\d+(?:\.\d+)+)")
_MOST_PREFIX_FILES: Final = 2000


@dataclass(frozen=True, kw_only=True)
class RecordInputs:
    """What only the caller knows."""

    recipe: RecipeIdentity
    times: Mapping[str, StepTimes]
    """Steps of this run; those done before come from their states."""
    machine: Mapping[str, Any]
    python: str
    run: RunInTarget
    """Runs commands where the build's commands ran."""
    earlier: BuildRecord | None = None
    """The record that this one replaces: times of steps that were not run again stay."""


def make_record(plan: Plan, inputs: RecordInputs) -> BuildRecord:
    """The record of a build whose steps are all done."""
    folder = BuildFolder(folder=Path(plan.folder))
    tools = _toolchain(inputs.run)
    states = [read_state(folder.state(step.name)) for step in plan.steps]
    begun = [state.started_at for state in states if state is not None]
    ended = [state.started_at + state.wall_s for state in states if state is not None]
    prints = fingerprints(plan)
    digest = hashlib.sha256("".join(prints.values()).encode()).hexdigest()
    return BuildRecord(
        torchyard=__version__,
        name=plan.name,
        recipe=inputs.recipe,
        plan_fingerprint=digest,
        components=tuple(
            _component(
                part,
                folder,
                tools,
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
        started=_iso(min(begun)) if begun else "",
        finished=_iso(max(ended)) if ended else "",
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
            PatchRecord(name=name, sha256=_sha256(Path(recipe.folder, name)))
            for name in recipe.patches
        ),
        options=dict(recipe.options),
        toolchain=tools,
        wheels=_wheels(folder.dist(part.name)),
        prefix_files=_prefix_files(part),
        edited=_is_edited(part, folder),
        verified=_report(folder.report(part.name)),
    )


def _source(part: Component, earlier: ComponentRecord | None) -> SourceIdentity | None:
    """What was compiled. The fetched source may be gone, or moved on by another build's update."""
    place = Path(part.source)
    with suppress(TorchyardError, OSError):
        kind = used_kind(part.recipe.source, f"{part.name}: source")
        if kind == "git" and Path(part.tree, ".git").exists():
            place = Path(part.tree)
        if place.exists():
            return source_identity(part.recipe.source, place)
    return earlier.source if earlier else None


def _is_edited(part: Component, folder: BuildFolder) -> bool:
    """Compiled again by hand since the working copy was made."""
    copied = read_state(folder.state(f"{part.name}/tree"))
    try:
        at = folder.edited(part.name).stat().st_mtime
    except OSError:
        return False
    return copied is None or at > copied.started_at


def _report(path: Path) -> VerifyReport | None:
    try:
        return decode(VerifyReport, json.loads(path.read_text()), where=str(path), strict=False)
    except (OSError, ValueError, UsageError):
        return None


def _times(plan: Plan, folder: BuildFolder, inputs: RecordInputs) -> list[StepTimes]:
    """What the steps took to make what is there now, in however many runs."""
    before = {one.step: one for one in inputs.earlier.times} if inputs.earlier else {}
    found = []
    for step in plan.steps:
        state = read_state(folder.state(step.name))
        known = inputs.times.get(step.name) or before.get(step.name)
        known = known or StepTimes(step=step.name, wall_s=0.0)
        if state is not None:
            known = replace(known, wall_s=state.wall_s + state.earlier_s)
        found.append(_measured(step, known, folder))
    return found


def _measured(step: Step, known: StepTimes, folder: BuildFolder) -> StepTimes:
    """With the costs of a compiling step from the meter's log, which outlives single runs.

    The latest run may have compiled three files of a thousand, because an option had changed or
    because the one before was cut off. Without a log, or without the objects, what is known stays.
    """
    if not step.compiles or step.name.endswith("/configure"):
        return known
    tree = read_state(folder.state(f"{step.component}/tree"))
    log = read_meter_log(folder.meter_log(step.component)).since(tree.started_at if tree else 0.0)
    made = log.made()
    if not made.compiles:
        return known
    return replace(
        known,
        wall_s=max(known.wall_s, log.busy_s),
        cpu_s=made.cpu_s,
        compiles=len(made.compiles),
        peak_memory_mib=made.peak_mib or None,
    )


def _toolchain(run: RunInTarget) -> tuple[ToolRecord, ...]:
    script = 'path=$(command -v "$1") || exit 3; printf "%s\\n" "$path"; "$1" --version 2>/dev/null'
    found = []
    for name in _TOOLS:
        ended = run(("sh", "-c", script, "sh", name), {})
        lines = ended.stdout.splitlines()
        if ended.returncode or not lines:
            continue
        # `cc (Debian 12.2.0-14) 12.2.0`: what stands in brackets is the packager's.
        version = _VERSION.search(re.sub(r"\([^)]*\)", "", "\n".join(lines[1:])))
        found.append(ToolRecord(name=name, path=lines[0], version=version[1] if version else ""))
    return tuple(found)


def _packages(plan: Plan, run: RunInTarget) -> tuple[PackageRecord, ...]:
    with open_target(plan.components[-1], run) as target:
        return tuple(list_packages(target)) if target is not None else ()


def _wheels(dist: Path) -> tuple[WheelRecord, ...]:
    return tuple(
        WheelRecord(file=path.name, sha256=_sha256(path), size_bytes=path.stat().st_size)
        for path in sorted(dist.glob("*.whl"))
    )


def _prefix_files(part: Component) -> tuple[str, ...]:
    if part.recipe.builder == "python" or not part.recipe.verify.files:
        return ()
    return _files_like(Path(part.prefix), part.recipe.verify.files)


def _files_like(prefix: Path, patterns: Sequence[str]) -> tuple[str, ...]:
    names = (str(path.relative_to(prefix)) for path in sorted(prefix.rglob("*")) if path.is_file())
    chosen = [name for name in names if any(fnmatch(name, f"{one}*") for one in patterns)]
    return tuple(chosen[:_MOST_PREFIX_FILES])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
