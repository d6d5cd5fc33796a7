"""The search space of a race: choices from a file that apply and are installed here.

The dataclasses are the complete grammar of a space file. A choice that is omitted because something
is missing is reported with the package that provides it; one that does not apply (GPU settings on a
CPU) is not. Facts of machine, target and workload are read once per race.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

from torchyard.bench.target_checks import inspect_target
from torchyard.bench.variant_text import check_cores, check_memory
from torchyard.core.number_checks import most_threads
from torchyard.core.records import decode
from torchyard.core.study import Scalar, Study, Variant, Workload
from torchyard.core.toml_file import parse_toml, read_text_file
from torchyard.errors import NothingToDo, UsageError
from torchyard.process.start import find_library
from torchyard.tune.model import DEFAULT_NAME, Choice, Goal, Missing, Race, Space


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a race is run, and of what."""

    architecture: str = "x86_64"
    cores: int = 1
    """Logical ones that this process may use."""
    physical_cores: int = 1
    nodes: tuple[tuple[int, ...], ...] = ()
    """Cores of each NUMA node that may be used."""
    glibc: str = ""
    openmp: tuple[str, ...] = ()
    """`gnu`, `intel`, `llvm`: what the target's torch has loaded."""
    allocators: tuple[str, ...] = ()
    """Libraries that the target loads by itself."""
    device: str = "cpu"
    """Its kind, without a number."""
    mode: str = "inference"
    backend: str = "eager"
    goal: str = "latency"


def place_of(
    workload: Workload, default: Variant, hello: Mapping[str, Any], *, goal: str = "latency"
) -> Place:
    """The facts; `hello` is what a worker of the target said of itself."""
    cores = sorted(os.sched_getaffinity(0))
    names = [str(name) for name in hello.get("openmp") or ()]
    return Place(
        architecture=platform.machine(),
        cores=len(cores),
        physical_cores=_physical(cores),
        nodes=_nodes(cores),
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


def _physical(cores: list[int]) -> int:
    """Cores that are not threads of one another; all of them where the kernel does not say."""
    groups = set()
    for core in cores:
        path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        try:
            groups.add(path.read_text(encoding="ascii").strip())
        except OSError:
            return len(cores)
    return max(1, len(groups))


def _nodes(cores: list[int]) -> tuple[tuple[int, ...], ...]:
    found = []
    for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
        inside = tuple(core for core in cores if (node / f"cpu{core}").exists())
        if inside:
            found.append(inside)
    return tuple(found)


DEFAULT: Final = "default"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_THREADS: Final = ("half", "physical", "node")
_INSTANCES: Final = ("nodes", "cores")


@dataclass(frozen=True, kw_only=True)
class WhenTable:
    """Where a choice makes sense; everything that is said must hold."""

    architecture: tuple[str, ...] = ()
    """`aarch64`, `x86_64`, ..."""
    device: tuple[str, ...] = ()
    """`cpu`, `cuda`."""
    mode: tuple[str, ...] = ()
    """`inference`, `training`."""
    backend: tuple[str, ...] = ()
    """Of the default variant, without its mode."""
    openmp: tuple[str, ...] = ()
    """What torch has loaded: `gnu`, `intel`, `llvm`."""
    goal: tuple[str, ...] = ()
    """`latency`, `throughput`."""
    cores_at_least: int = 1
    nodes_at_least: int = 0
    hyperthreads: bool = False
    """Only where cores have more than one thread."""
    glibc_at_least: str = ""


@dataclass(frozen=True, kw_only=True)
class ChoiceTable:
    """One value of one dimension."""

    dimension: str
    """What is set; a contender has at most one choice of it."""
    name: str
    """Letters, digits, dots, dashes and underscores."""
    about: str = ""
    variables: dict[str, str | int] = field(default_factory=dict)
    """Environment variables; `{node-cores}` stands for the cores of the first NUMA node, also in
    `cores`, and `{nodes}` for the numbers of all nodes, also in `memory`."""
    library: str = ""
    """Shared library to preload: a name that the loader knows, or a path relative to the file."""
    package: str = ""
    """The package that has the library, for whoever misses it."""
    threads: int | str | None = None
    """Threads inside operators: a number, `half`, `physical` or `node`."""
    cores: str = ""
    """Processors that the process may use, such as `0-3`."""
    memory: str = ""
    """NUMA nodes that its memory comes from: `bind:0`, or `interleave:{nodes}`."""
    instances: int | str = 1
    """Processes side by side: a number, `nodes` (one for each NUMA node) or `cores`."""
    backend: str = ""
    options: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Options of a variant, such as `channels-last = true`."""
    code: str = ""
    """What a program writes to get the same."""
    changes_results: bool = False
    """Numbers come out differently by design: tried only when asked for."""
    takes_long: bool = False
    """It compiles for minutes: tried after the others, if time is left."""
    when: WhenTable = field(default_factory=WhenTable)


@dataclass(frozen=True, kw_only=True)
class SpaceFile:
    """A space: the choices of a race."""

    name: str = ""
    choices: tuple[ChoiceTable, ...] = ()


def load_space(text: str) -> SpaceFile:
    """Read and check the space `default`, or that of a file, for whatever machine."""
    if text == DEFAULT:
        raw = resources.files("torchyard.tune").joinpath("spaces/default.toml").read_text("utf-8")
    else:
        raw = _read(Path(text).expanduser())
    try:
        said = decode(SpaceFile, parse_toml(raw, where=text), where="")
    except UsageError as error:
        what = error.what.removeprefix(f"{text}: ")
        raise UsageError(f"{text}: {what}", why=error.why, hint=error.hint) from error
    seen: set[str] = set()
    for index, table in enumerate(said.choices):
        _check(table, f"{text}: choices[{index}]", seen)
    return said


def read_space(text: str, place: Place, *, with_changes: bool = False) -> Space:
    """The space `default`, or that of a file, as far as it exists here."""
    path = Path(text).expanduser()
    folder = Path() if text == DEFAULT else path.resolve().parent
    said = load_space(text)
    choices: list[Choice] = []
    missing: list[Missing] = []
    for index, table in enumerate(said.choices):
        where = f"{text}: choices[{index}]"
        if not _fits(table.when, place):
            continue
        if table.changes_results and not with_changes:
            continue
        made = _made(table, place, folder, where)
        if isinstance(made, Missing):
            missing.append(made)
        else:
            choices.append(made)
    if not choices:
        raise NothingToDo(
            f"{text}: nothing can be tried here",
            why="; ".join(f"{one.name}: {one.why}" for one in missing),
            hint="install what is missing, or give another space",
        )
    return Space(name=said.name or path.stem, choices=tuple(choices), missing=tuple(missing))


def _read(path: Path) -> str:
    return read_text_file(path, what="space", hint="give `default` or the path of a TOML file")


def _check(table: ChoiceTable, where: str, seen: set[str]) -> None:
    """What the grammar does not say by itself."""
    if not _NAME.fullmatch(table.name):
        raise UsageError(
            f"{where}.name: {table.name!r} is no name",
            hint="use letters, digits, dots, dashes and underscores",
        )
    if table.name in seen:
        raise UsageError(f"{where}.name: {table.name!r} is there twice", hint="rename one")
    seen.add(table.name)
    for key in table.variables:
        if not _VARIABLE.fullmatch(key):
            raise UsageError(f"{where}.variables: {key!r} is no variable", hint="mend the name")
        if key == "LD_PRELOAD":
            raise UsageError(
                f"{where}.variables: LD_PRELOAD is not set here",
                why="the loader only warns of a library that it cannot load, and goes on",
                hint="name it as library: then it is checked that it was loaded",
            )
    threads = table.threads
    words = isinstance(threads, str) and threads not in _THREADS
    most = most_threads()
    if words or (isinstance(threads, int) and not 1 <= threads <= most):
        raise UsageError(
            f"{where}.threads: {threads!r} is no number of threads",
            hint=f"a number from 1 to {most}, or one of {', '.join(_THREADS)}",
        )
    many = table.instances
    if many not in _INSTANCES and not (isinstance(many, int) and 1 <= many <= most):
        raise UsageError(
            f"{where}.instances: {many!r} is no number of processes",
            hint=f"a number from 1 to {most}, or one of {', '.join(_INSTANCES)}",
        )
    sets = (table.variables, table.library, threads, table.backend, table.options)
    if not any((*sets, table.cores, table.memory, many != 1)):
        raise UsageError(
            f"{where}: {table.name!r} sets nothing",
            hint="add variables, library, threads, cores, memory, instances, backend or options",
        )


def _fits(when: WhenTable, place: Place) -> bool:
    one_of: Sequence[tuple[tuple[str, ...], tuple[str, ...]]] = (
        (when.architecture, (place.architecture,)),
        (when.device, (place.device,)),
        (when.mode, (place.mode,)),
        (when.backend, (place.backend,)),
        (when.openmp, place.openmp),
        (when.goal, (place.goal,)),
    )
    return (
        all(not wanted or set(wanted) & set(there) for wanted, there in one_of)
        and place.cores >= when.cores_at_least
        and len(place.nodes) >= when.nodes_at_least
        and (not when.hyperthreads or place.physical_cores < place.cores)
        and (not when.glibc_at_least or _version(place.glibc) >= _version(when.glibc_at_least))
    )


def _made(table: ChoiceTable, place: Place, folder: Path, where: str) -> Choice | Missing:
    preload: tuple[str, ...] = ()
    if table.library:
        found = _library(table.library, folder)
        if found is None:
            return Missing(
                dimension=table.dimension,
                name=table.name,
                why=f"there is no {table.library} here",
                package=table.package,
            )
        if any(table.library == loaded for loaded in place.allocators):
            return Missing(
                dimension=table.dimension, name=table.name, why="the target loads it by itself"
            )
        preload = (str(found),)
    return Choice(
        dimension=table.dimension,
        name=table.name,
        about=table.about,
        variables=_variables(table.variables, place),
        preload=preload,
        threads=_threads(table.threads, place),
        cores=check_cores(_filled(table.cores, place), where=f"{where}.cores"),
        memory=check_memory(_filled(table.memory, place), where=f"{where}.memory"),
        instances=_instances(table.instances, place),
        backend=table.backend,
        options=_sorted(table.options),
        code=table.code,
        changes_results=table.changes_results,
        takes_long=table.takes_long,
    )


def _library(name: str, folder: Path) -> Path | None:
    if "/" not in name:
        return find_library(name)
    path = folder / Path(name).expanduser()
    return path if path.is_file() else None


def _variables(said: Mapping[str, str | int], place: Place) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, _filled(str(value), place)) for key, value in said.items()))


def _filled(text: str, place: Place) -> str:
    node = ",".join(map(str, place.nodes[0])) if place.nodes else ""
    nodes = ",".join(map(str, range(len(place.nodes))))
    return text.replace("{node-cores}", node).replace("{nodes}", nodes)


def _instances(said: int | str, place: Place) -> int:
    if said == "nodes":
        return max(1, len(place.nodes))
    return place.cores if said == "cores" else int(said)


def _threads(said: int | str | None, place: Place) -> int | None:
    if said == "half":
        return max(1, place.cores // 2)
    if said == "physical":
        return place.physical_cores
    if said == "node":
        return len(place.nodes[0]) if place.nodes else place.cores
    return int(said) if said is not None else None


def _sorted(options: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    return tuple(sorted(options.items()))


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


LONGEST_STEP: Final = 0.25
"""Of the time: a choice that takes longer to compile could not be raced, and the others would not be."""
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
    """A race for the first workload of the study, with its baseline as the default."""
    settings = study.settings
    if not step_limit_given:
        limit_s = min(settings.step_limit_s, _step_limit_s(budget_s))
        settings = replace(settings, step_limit_s=limit_s)
    workload, default = study.workloads[0], study.baseline
    load_space(space)  # a wrong file is told before a process is started
    place = place_of(workload, default, inspect_target(default.target), goal=goal)
    return Race(
        workload=workload,
        default=replace(default, name=DEFAULT_NAME),
        space=read_space(space, place, with_changes=with_changes),
        alpha=study.budget.alpha,
        budget_s=budget_s,
        goal=goal,
        settings=settings,
    )


def with_budget(race: Race, budget_s: float) -> Race:
    """The same race with more time, also for a step."""
    if budget_s < race.budget_s:
        raise UsageError(
            f"--budget: {budget_s:g} s are less than the {race.budget_s:g} s that the race has",
            why="what was measured in that time would be left out",
            hint="give it more, or begin another race",
        )
    limit_s = max(race.settings.step_limit_s, _step_limit_s(budget_s))
    settings = replace(race.settings, step_limit_s=limit_s)
    return replace(race, budget_s=budget_s, settings=settings)


def _step_limit_s(budget_s: float) -> float:
    return max(SHORTEST_LIMIT_S, LONGEST_STEP * budget_s)
