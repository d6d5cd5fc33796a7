"""The search space of a race: choices from a file that apply to and are available on this machine.

The dataclasses are the complete grammar of a space file. A choice that is omitted because something
is missing is reported with the package that provides it; one that does not apply (GPU settings on a
CPU) is not. Facts of machine, target and workload are read once per race.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from torchyard.bench.target_checks import inspect_target
from torchyard.bench.variant_text import check_cores, check_memory
from torchyard.core.number_checks import max_threads
from torchyard.core.records import decode
from torchyard.core.study import PHASES, Study, Variant, Workload
from torchyard.core.toml_file import parse_toml, read_text_file
from torchyard.errors import NothingToDo, UsageError
from torchyard.machine.system.cores import Topology
from torchyard.machine.system.file_tree import FileTree
from torchyard.process.start import find_library
from torchyard.tune.model import DEFAULT_NAME, Choice, Goal, Missing, Race, Space


@dataclass(frozen=True, kw_only=True)
class RaceContext:
    """Machine, target and workload of a race."""

    architecture: str = "x86_64"
    cores: int = 1
    """Logical cores that this process may use."""
    physical_cores: int = 1
    nodes: tuple[tuple[int, ...], ...] = ()
    """Usable cores of each NUMA node."""
    node_ids: tuple[int, ...] = ()
    """Numbers of these nodes, which need not start at 0 or be consecutive."""
    glibc: str = ""
    openmp: tuple[str, ...] = ()
    """OpenMP runtimes loaded by the target's torch: `gnu`, `intel`, `llvm`."""
    allocators: tuple[str, ...] = ()
    """Allocator libraries that the target loads by itself."""
    device: str = "cpu"
    """Kind of the device, without an index."""
    mode: str = "inference"
    backend: str = "eager"
    goal: str = "latency"


def context_of(
    workload: Workload, default: Variant, hello: Mapping[str, Any], *, goal: str = "latency"
) -> RaceContext:
    """Return the context of a race; `hello` is the handshake of a worker in the target."""
    cores = sorted(os.sched_getaffinity(0))
    nodes = usable_nodes(cores)
    names = [str(name) for name in hello.get("openmp") or ()]
    return RaceContext(
        architecture=platform.machine(),
        cores=len(cores),
        # All logical cores if the topology is unknown.
        physical_cores=sum(
            not set(core).isdisjoint(cores) for core in Topology.read(FileTree()).physical
        ),
        nodes=tuple(nodes.values()),
        node_ids=tuple(nodes),
        glibc=platform.libc_ver()[1] if platform.libc_ver()[0] == "glibc" else "",
        openmp=tuple(sorted({kind for name in names for kind in _openmp_kinds(name)})),
        allocators=tuple(str(name) for name in hello.get("allocators") or ()),
        device=workload.device.partition(":")[0],
        mode=workload.mode,
        backend=default.backend.partition(":")[0],
        goal=goal,
    )


def _openmp_kinds(library: str) -> tuple[str, ...]:
    if library.startswith("libgomp"):
        return ("gnu",)
    if library.startswith("libiomp"):
        return ("intel",)
    return ("llvm",) if library.startswith("libomp") else ()


def usable_nodes(
    cores: list[int], folder: Path = Path("/sys/devices/system/node")
) -> dict[int, tuple[int, ...]]:
    """Return the usable cores of each NUMA node that has some, by its number, in order."""
    nodes = {}
    for number in sorted(int(node.name.removeprefix("node")) for node in folder.glob("node[0-9]*")):
        inside = tuple(core for core in cores if (folder / f"node{number}" / f"cpu{core}").exists())
        if inside:
            nodes[number] = inside
    return nodes


DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_THREADS: Final = ("half", "physical", "node")
_INSTANCES: Final = ("nodes", "cores")


@dataclass(frozen=True, kw_only=True)
class WhenTable:
    """Conditions of a choice; all that are set must hold."""

    architecture: tuple[str, ...] = ()
    """`aarch64`, `x86_64`, ..."""
    device: tuple[str, ...] = ()
    """`cpu`, `cuda`."""
    mode: tuple[str, ...] = ()
    """`inference`, `training`."""
    backend: tuple[str, ...] = ()
    """Backend of the default variant, without its mode."""
    openmp: tuple[str, ...] = ()
    """OpenMP runtime loaded by torch: `gnu`, `intel`, `llvm`."""
    goal: tuple[str, ...] = ()
    """`latency`, `throughput`."""
    cores_at_least: int = 1
    nodes_at_least: int = 0
    hyperthreads: bool = False
    """Requires cores with more than one thread."""
    glibc_at_least: str = ""


@dataclass(frozen=True, kw_only=True)
class ChoiceTable:
    """One value of one dimension."""

    dimension: str
    """What is set; a configuration has at most one choice per dimension."""
    name: str
    """Letters, digits, dots, dashes and underscores."""
    about: str = ""
    variables: dict[str, str | int] = field(default_factory=dict)
    """Environment variables; `{node-cores}` is replaced by the cores of the first NUMA node, also in
    `cores`, `{node}` by the number of that node and `{nodes}` by those of all nodes, also in
    `memory`."""
    library: str = ""
    """Shared library to preload: a name that the loader finds, or a path relative to the file."""
    package: str = ""
    """The package that provides the library, shown if it is missing."""
    threads: int | str | None = None
    """Intra-op threads: a number, `half`, `physical` or `node`."""
    cores: str = ""
    """Cores that the process may use, such as `0-3`."""
    memory: str = ""
    """NUMA policy of its memory: `bind:{node}` or `interleave:{nodes}`."""
    instances: int | str = 1
    """Parallel processes: a number, `nodes` (one per NUMA node) or `cores`."""
    backend: str = ""
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Options of a variant, such as `channels-last = true`."""
    code: str = ""
    """Code that gives a program the same setting."""
    changes_results: bool = False
    """Results differ by design; tried only with `--with-changed-results`."""
    takes_long: bool = False
    """Compilation takes minutes; tried after the others, if time is left."""
    typical: float = 1.0
    """Typical speedup: choices with a larger one are tried first, where nothing is known about the workload."""
    when: WhenTable = field(default_factory=WhenTable)


@dataclass(frozen=True, kw_only=True)
class SpaceFile:
    """A search space: the choices of a race."""

    name: str = ""
    choices: tuple[ChoiceTable, ...] = ()


def load_space(text: str) -> SpaceFile:
    """Read and check the space `default` or a space file, independently of the machine."""
    if text == DEFAULT:
        raw = resources.files("torchyard.tune").joinpath("spaces/default.toml").read_text("utf-8")
    else:
        hint = "use `default` or the path of a TOML file"
        raw = read_text_file(Path(text).expanduser(), what="space", hint=hint)
    try:
        space = decode(SpaceFile, parse_toml(raw, where=text), where="")
    except UsageError as error:
        what = error.what.removeprefix(f"{text}: ")
        raise UsageError(f"{text}: {what}", why=error.why, hint=error.hint) from error
    names: set[str] = set()
    for index, table in enumerate(space.choices):
        _check(table, f"{text}: choices[{index}]", names)
    return space


def read_space(text: str, context: RaceContext, *, with_changes: bool = False) -> Space:
    """Return the choices of the space `default` or of a space file that are available here."""
    path = Path(text).expanduser()
    folder = Path() if text == DEFAULT else path.resolve().parent
    space_file = load_space(text)
    choices: list[Choice] = []
    missing: list[Missing] = []
    for index, table in enumerate(space_file.choices):
        where = f"{text}: choices[{index}]"
        if not _fits(table.when, context):
            continue
        if table.changes_results and not with_changes:
            continue
        choice = _made(table, context, folder, where)
        if isinstance(choice, Missing):
            missing.append(choice)
        else:
            choices.append(choice)
    if not choices:
        raise NothingToDo(
            f"{text}: no setting of this space is available here",
            why="; ".join(f"{one.name}: {one.why}" for one in missing),
            hint="install a missing package, or use another space",
        )
    return Space(name=space_file.name or path.stem, choices=tuple(choices), missing=tuple(missing))


def _check(table: ChoiceTable, where: str, seen: set[str]) -> None:
    """Check rules that the types do not express."""
    if not _NAME.fullmatch(table.name):
        raise UsageError(
            f"{where}.name: {table.name!r} is not a valid name",
            hint="use letters, digits, dots, dashes and underscores",
        )
    if table.name in seen:
        raise UsageError(f"{where}.name: {table.name!r} is used twice", hint="rename one of them")
    seen.add(table.name)
    for key in table.variables:
        if not _VARIABLE.fullmatch(key):
            raise UsageError(
                f"{where}.variables: {key!r} is not a valid variable name",
                hint="use letters, digits and underscores",
            )
        if key == "LD_PRELOAD":
            raise UsageError(
                f"{where}.variables: LD_PRELOAD is not allowed",
                why="the loader only warns if it cannot load a library, and continues",
                hint="use the key library, which checks that the library was loaded",
            )
    threads = table.threads
    words = isinstance(threads, str) and threads not in _THREADS
    most = max_threads()
    if words or (isinstance(threads, int) and not 1 <= threads <= most):
        raise UsageError(
            f"{where}.threads: {threads!r} is not a number of threads",
            hint=f"a number from 1 to {most}, or one of {', '.join(_THREADS)}",
        )
    instances = table.instances
    if instances not in _INSTANCES and not (isinstance(instances, int) and 1 <= instances <= most):
        raise UsageError(
            f"{where}.instances: {instances!r} is not a number of processes",
            hint=f"a number from 1 to {most}, or one of {', '.join(_INSTANCES)}",
        )
    sets = (table.variables, table.library, threads, table.backend, table.options)
    if not any((*sets, table.cores, table.memory, instances != 1)):
        raise UsageError(
            f"{where}: {table.name!r} sets nothing",
            hint="add variables, library, threads, cores, memory, instances, backend or options",
        )


def _fits(when: WhenTable, context: RaceContext) -> bool:
    one_of: Sequence[tuple[tuple[str, ...], tuple[str, ...]]] = (
        (when.architecture, (context.architecture,)),
        (when.device, (context.device,)),
        (when.mode, ("inference", context.mode) if context.mode in PHASES else (context.mode,)),
        (when.backend, (context.backend,)),
        (when.openmp, context.openmp),
        (when.goal, (context.goal,)),
    )
    return (
        all(not allowed or set(allowed) & set(present) for allowed, present in one_of)
        and context.cores >= when.cores_at_least
        and len(context.nodes) >= when.nodes_at_least
        and (not when.hyperthreads or context.physical_cores < context.cores)
        and (not when.glibc_at_least or _version(context.glibc) >= _version(when.glibc_at_least))
    )


def _made(table: ChoiceTable, context: RaceContext, folder: Path, where: str) -> Choice | Missing:
    preload: tuple[str, ...] = ()
    if table.library:
        library_path = _library(table.library, folder)
        if library_path is None:
            return Missing(
                dimension=table.dimension,
                name=table.name,
                why=f"{table.library} is not installed",
                package=table.package,
            )
        if any(table.library == loaded for loaded in context.allocators):
            return Missing(
                dimension=table.dimension, name=table.name, why="the target already loads it"
            )
        preload = (str(library_path),)
    variables = {key: _filled(str(value), context) for key, value in table.variables.items()}
    return Choice(
        dimension=table.dimension,
        name=table.name,
        about=table.about,
        variables=tuple(sorted(variables.items())),
        preload=preload,
        threads=_threads(table.threads, context),
        cores=check_cores(_filled(table.cores, context), where=f"{where}.cores"),
        memory=check_memory(_filled(table.memory, context), where=f"{where}.memory"),
        instances=_instances(table.instances, context),
        backend=table.backend,
        options=tuple(sorted(table.options.items())),
        code=table.code,
        changes_results=table.changes_results,
        takes_long=table.takes_long,
        typical=table.typical,
    )


def _library(name: str, folder: Path) -> Path | None:
    if "/" not in name:
        return find_library(name)
    path = folder / Path(name).expanduser()
    return path if path.is_file() else None


def _filled(text: str, context: RaceContext) -> str:
    node = ",".join(map(str, context.nodes[0])) if context.nodes else ""
    nodes = ",".join(map(str, context.node_ids))
    first = str(context.node_ids[0]) if context.node_ids else ""
    text = text.replace("{node-cores}", node).replace("{nodes}", nodes)
    return text.replace("{node}", first)


def _instances(setting: int | str, context: RaceContext) -> int:
    if setting == "nodes":
        return max(1, len(context.nodes))
    return context.cores if setting == "cores" else int(setting)


def _threads(setting: int | str | None, context: RaceContext) -> int | None:
    if setting == "half":
        return max(1, context.cores // 2)
    if setting == "physical":
        return context.physical_cores
    if setting == "node":
        return len(context.nodes[0]) if context.nodes else context.cores
    return int(setting) if setting is not None else None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


MAX_STEP_SHARE: Final = 0.25
"""Share of the time budget that one step may take: a choice that compiles longer cannot be measured."""
SHORTEST_LIMIT_S: Final = 30.0


def plan_race(
    study: Study,
    *,
    space: str,
    budget_s: float,
    with_changes: bool,
    goal: Goal = "latency",
    step_limit_given: bool = False,
) -> Race:
    """Return a race for the first workload of the study, with its baseline as the default."""
    settings = study.settings
    if not step_limit_given:
        limit_s = min(settings.step_limit_s, _step_limit_s(budget_s))
        settings = replace(settings, step_limit_s=limit_s)
    workload, default = study.workloads[0], study.baseline
    load_space(space)  # report an invalid file before starting a process
    started_s = time.monotonic()
    hello = inspect_target(default.target)
    import_s = time.monotonic() - started_s
    context = context_of(workload, default, hello, goal=goal)
    return Race(
        workload=workload,
        default=replace(default, name=DEFAULT_NAME),
        space=read_space(space, context, with_changes=with_changes),
        alpha=study.budget.alpha,
        budget_s=budget_s,
        goal=goal,
        settings=settings,
        import_s=import_s,
    )


def with_budget(race: Race, budget_s: float) -> Race:
    """Return the race with a larger time budget and step limit."""
    if budget_s < race.budget_s:
        raise UsageError(
            f"--budget: {budget_s:g} s is less than the current budget of {race.budget_s:g} s",
            why="finished rounds would be dropped",
            hint="use a larger budget, or start a new race",
        )
    limit_s = max(race.settings.step_limit_s, _step_limit_s(budget_s))
    settings = replace(race.settings, step_limit_s=limit_s)
    return replace(race, budget_s=budget_s, settings=settings)


def _step_limit_s(budget_s: float) -> float:
    return max(SHORTEST_LIMIT_S, MAX_STEP_SHARE * budget_s)
