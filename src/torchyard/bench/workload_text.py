"""Workloads from text and from the catalog: `models/gpt`, `matmul:size=500`, `mine.py:thing`.

Checks the names and modes of the catalog. Parameters, and files of the user, are interpreted by the
suite, in the worker.

One text may name several shapes: `A|B|C` are these values, `A..B` doubles from A to B, `A..BxF`
multiplies by F, and `A..B+S` adds S; B is included only if it is reached exactly. Several such
parameters give every combination, the last one changing fastest.

The TorchBench checkout is found through a variable of the controller and becomes the parameter
`path`, since workers get no `TORCHYARD_` variables: what a run measured is then part of its study.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from torchyard.bench.request import Scalar, SpecText, WorkloadChoice
from torchyard.core.number_checks import CHECKS
from torchyard.core.records import nearest_hint
from torchyard.core.study import MODES, PHASES, Mode, Workload
from torchyard.errors import UsageError
from torchyard.worker.catalog import LISTS, OPEN_SUITES, SUITES, entry_of
from torchyard.worker.catalog.entry import BOTH, GENERATING_SUITES, GENERATION
from torchyard.worker.suites.torchbench.checkout import (
    TORCHBENCH_VARIABLE,
    TorchbenchCheckout,
    find_checkout,
)
from torchyard.worker.workload import CannotBuild

MAX_GRID_SIZE: Final = 1000
"""More workloads than this from one text are likely a mistake."""
_RANGE: Final = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})(?:([x+])([0-9]{1,18}))?")
_DOUBLING: Final = ("x", "2")
RANKS: Final = "ranks"
NODES: Final = "nodes"
"""Parameters of every workload: `models/gpt:ranks=4,nodes=2`. Without ranks, `nodes` is one of its own."""
_PYTHON_FILE: Final = re.compile(r"(.*?\.py)((?::.*)?)", re.DOTALL)


def grid_of(choice: WorkloadChoice, parse: Callable[[str], Scalar]) -> list[WorkloadChoice]:
    """Return one choice per combination of parameter values."""
    values = [_values(choice, key, value, parse) for key, value in choice.parameters]
    count = 1
    for several in values:
        count *= len(several)
    if count > MAX_GRID_SIZE:
        raise UsageError(
            f"{choice.where}: {choice.suite}/{choice.name} expands to {count} workloads",
            why=f"one text may expand to at most {MAX_GRID_SIZE}",
            hint="use fewer values",
        )
    keys = [key for key, _ in choice.parameters]
    return [
        replace(choice, parameters=tuple(zip(keys, combination, strict=True)))
        for combination in product(*values)
    ]


def _values(
    choice: WorkloadChoice, key: str, value: Scalar, parse: Callable[[str], Scalar]
) -> list[Scalar]:
    if not isinstance(value, str):
        return [value]
    if "|" not in value:
        return _range(choice, key, value) or [value]
    values: list[Scalar] = []
    for part in value.split("|"):
        text = part.strip()
        if not text:
            raise UsageError(
                f"{choice.where}: {key}={value!r} has an empty value",
                hint=f"write {key}=A|B|C, such as size=256|1024",
            )
        values += _range(choice, key, text) or [parse(text)]
    return list(dict.fromkeys(values))


def _range(choice: WorkloadChoice, key: str, text: str) -> list[Scalar]:
    """Return the numbers of a range; empty if the text is not a range."""
    match = _RANGE.fullmatch(text)
    if match is None:
        return []
    first, last = int(match[1]), int(match[2])
    kind, amount_text = (match[3], match[4]) if match[3] else _DOUBLING
    amount = int(amount_text)
    # A step that does not increase would never end.
    stuck = amount < 2 or first == 0 if kind == "x" else amount < 1  # noqa: PLR2004
    if first > last or stuck:
        raise UsageError(
            f"{choice.where}: {key}={text!r} is not a range",
            why="its end is below its start" if first > last else "its step does not increase",
            hint="write A..B to double, A..Bx4 to multiply or A..B+256 to add, with A <= B",
        )
    numbers: list[Scalar] = []
    number = first
    while number <= last and len(numbers) <= MAX_GRID_SIZE:
        numbers.append(number)
        number = number * amount if kind == "x" else number + amount
    return numbers


SUITE: Final = "torchbench"
_PATH: Final = "path"


def with_checkout(choice: WorkloadChoice) -> WorkloadChoice:
    """Return the choice with the absolute path of the checkout, if a parameter or variable names one.

    Without one, the target must be able to import the package, which only the worker can check.
    """
    parameters = dict(choice.parameters)
    named = (
        str(parameters[_PATH]) if _PATH in parameters else os.environ.get(TORCHBENCH_VARIABLE, "")
    )
    if not named:
        return choice
    root = tree_of(
        Path(named), where=choice.where if _PATH in parameters else TORCHBENCH_VARIABLE
    ).root
    return replace(choice, parameters=tuple({**parameters, _PATH: root}.items()))


def models_of(choice: WorkloadChoice) -> list[str]:
    """Return every model of the checkout; raise UsageError if none is named."""
    path = dict(choice.parameters).get(_PATH)
    if path is None:
        raise UsageError(
            f"{choice.where}: the suite {SUITE!r} needs a checkout, and none is given",
            hint=f"set {TORCHBENCH_VARIABLE} to the folder of a checkout of pytorch/benchmark",
        )
    models = [model.name for model in tree_of(Path(str(path)), where=choice.where).models()]
    if not models:
        raise UsageError(
            f"{choice.where}: the checkout {path} has no models",
            hint="check that the clone is complete: torchbenchmark/models has one folder per model",
        )
    return models


def tree_of(path: Path, *, where: str) -> TorchbenchCheckout:
    """Return the checkout in a folder."""
    try:
        return find_checkout(str(path.expanduser().absolute()))
    except CannotBuild as refused:
        raise UsageError(
            f"{where}: {str(path)!r} is not a checkout of pytorch/benchmark",
            why="it has no torchbenchmark/__init__.py",
            hint="give the folder of the cloned repository",
        ) from refused


# Parameters that are paths.
PATHS: Final = {"torchbench": "path", "huggingface": "config"}


def is_python_file(text: str) -> bool:
    """Whether the text is FILE.py, FILE.py:NAME or FILE.py:NAME:key=value."""
    return _PYTHON_FILE.fullmatch(text) is not None


def choose_workload(spec: SpecText) -> WorkloadChoice:
    """Return the workload that `--only` or the `name` of a study file describes."""
    if ".py" in spec.text and (chosen := _file_choice(spec)) is not None:
        return chosen
    path, colon, parameters_text = spec.text.partition(":")
    parameters = _parameters(parameters_text, spec) if colon else ()
    suite, slash, name = path.partition("/")
    if not slash:
        suite, name = _suite_of(path, spec), path
    check_suite(suite, where=spec.where)
    parameters = located(suite, parameters, folder=spec.folder)
    if not name:
        raise UsageError(f"{spec.where}: {spec.text!r} names no workload", hint=_known_hint(suite))
    if suite in SUITES and name not in _names(suite):
        raise UsageError(
            f"{spec.where}: the suite {suite!r} has no workload {name!r}",
            hint=nearest_hint(name, _names(suite), what="name"),
        )
    return WorkloadChoice(where=spec.where, suite=suite, name=name, parameters=parameters)


def choose_file(spec: SpecText) -> str:
    """Return the absolute path, and the name, of FILE.py or FILE.py:NAME."""
    choice = choose_workload(spec)
    if choice.parameters:
        raise UsageError(
            f"{spec.where}: {spec.text!r} has parameters",
            why="the parameters of the first file apply to all files",
            hint="give them to the first file, and only there",
        )
    return choice.name


def located(
    suite: str, parameters: Iterable[tuple[str, Scalar]], *, folder: Path
) -> tuple[tuple[str, Scalar], ...]:
    """Return parameters with absolute paths: workers may start in other folders."""
    return tuple(
        (key, str(folder.absolute() / Path(str(value)).expanduser()))
        if key == PATHS.get(suite)
        else (key, value)
        for key, value in parameters
    )


def check_suite(suite: str, *, where: str) -> None:
    """Raise UsageError for a suite that is not in the catalog."""
    suites = [*SUITES, *OPEN_SUITES]
    if suite not in suites:
        raise UsageError(
            f"{where}: unknown suite {suite!r}", hint=nearest_hint(suite, suites, what="suite")
        )


def expand(choice: WorkloadChoice) -> list[Workload]:
    """Return every workload of a choice: the whole suite if it names none, one per mode and shape.

    For a whole suite, modes that a workload does not support are skipped; a named workload must
    support them. A suite that accepts any name expands to its list for the kind of device.
    """
    check_suite(choice.suite, where=choice.where)
    _check_parameters(choice)
    choice, *others = grid_of(choice, parse_parameter_value)
    if others:
        return [workload for each in (choice, *others) for workload in expand(each)]
    if RANKS in dict(choice.parameters):
        choice = _with_count(choice, NODES)
    choice = _with_count(choice, RANKS)
    device = choice.device or "cpu"
    checkout: list[str] = []
    if choice.suite == SUITE:
        choice = with_checkout(choice)
        checkout = [] if choice.name else models_of(choice)
    elif not choice.name and choice.suite in OPEN_SUITES and choice.suite not in LISTS:
        raise UsageError(
            f"{choice.where}: the suite {choice.suite!r} accepts any name, so it has no fixed set of workloads",
            why=f"it contains {OPEN_SUITES[choice.suite]}",
            hint=_known_hint(choice.suite),
        )
    offered: dict[str, tuple[str, ...]] = {
        entry.name: entry.modes
        for entry in SUITES.get(choice.suite, ())
        if choice.name in ("", entry.name)
    }
    if not choice.name and choice.suite in LISTS:
        offered = _listed(choice.suite, device)
    any_modes = MODES if choice.suite in GENERATING_SUITES else BOTH
    offered = offered or dict.fromkeys(checkout or [choice.name], any_modes)
    workloads: list[Workload] = []
    for name, offered_modes in offered.items():
        for mode in choice.modes or ("inference",):
            if mode not in offered_modes:
                if not choice.name:
                    continue
                raise UsageError(
                    f"{choice.where}: {choice.suite}/{name} has no mode {mode!r}",
                    hint="supported modes: " + ", ".join(offered_modes),
                )
            _check_generation(choice, mode)
            workloads.append(
                Workload(
                    suite=choice.suite,
                    name=name,
                    mode=mode,
                    device=device,
                    batch_size=choice.batch_size,
                    optimizer_step=bool(choice.optimizer_step) and mode == "training",
                    eval_mode=bool(choice.eval_mode) and mode == "training",
                    ranks=choice.ranks or 1,
                    nodes=choice.nodes or 1,
                    parameters=choice.parameters,
                )
            )
    return workloads


def _with_count(choice: WorkloadChoice, name: str) -> WorkloadChoice:
    """Return the choice with the number of ranks or nodes that one of its parameters gives."""
    parameters = dict(choice.parameters)
    if name not in parameters:
        return choice
    value, count = parameters.pop(name), getattr(choice, name)
    own = int(CHECKS[name].read(value, where=f"{choice.where}: {name}"))
    if count not in (None, own):
        raise UsageError(
            f"{choice.where}: {name}={own} and --{name} {count} are given", hint="keep one of them"
        )
    counts: dict[str, Any] = {name: own}
    return replace(choice, parameters=tuple(parameters.items()), **counts)


def _check_generation(choice: WorkloadChoice, mode: Mode) -> None:
    """Check the parameters of text generation, which have no effect in other modes."""
    for key, value in choice.parameters:
        if key not in GENERATION or choice.suite not in GENERATING_SUITES:
            continue
        if mode not in PHASES:
            raise UsageError(
                f"{choice.where}: the parameter {key!r} has no effect in mode {mode}",
                hint="use --mode generate, or remove it",
            )
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or (value not in (0, 1) if key == "static" else int(value) < 1):
            raise UsageError(
                f"{choice.where}: invalid parameter {key}: {value!r}",
                hint=f"give {key} {'0 or 1' if key == 'static' else 'a positive integer'}",
            )


def parse_parameter_value(text: str) -> Scalar:
    """Parse an integer, a float or a boolean; return other text unchanged."""
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_parameters(choice: WorkloadChoice) -> None:
    """Check parameters of built-in workloads against the catalog; the worker checks all others."""
    entry = entry_of(choice.suite, choice.name)
    keys: set[str] = set()
    for key, _ in choice.parameters:
        if key in keys:
            raise UsageError(
                f"{choice.where}: the parameter {key!r} is given twice", hint="keep one of them"
            )
        keys.add(key)
        if key == RANKS or (key == NODES and RANKS in dict(choice.parameters)):
            continue
        if entry is None and (
            choice.suite in SUITES or (choice.suite in LISTS and not choice.name)
        ):
            raise UsageError(
                f"{choice.where}: parameters need the name of a workload", hint="add name = ..."
            )
        valid = [] if entry is None else [*entry.parameters]
        if entry is not None and "decode" in entry.modes:
            valid += GENERATION
        if entry is not None and key not in valid:
            raise UsageError(
                f"{choice.where}: {choice.suite}/{entry.name} has no parameter {key!r}",
                hint=nearest_hint(key, valid, what="parameter"),
            )


def _parameters(text: str, spec: SpecText) -> tuple[tuple[str, Scalar], ...]:
    parameters: dict[str, Scalar] = {}
    for item in text.split(","):
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals or not all(part.isidentifier() for part in key.split(".")) or not value:
            raise UsageError(
                f"{spec.where}: {item!r} in {spec.text!r} is not a parameter",
                hint="write NAME:key=value,key=value, such as kernels/matmul:size=500",
            )
        if key in parameters:
            raise UsageError(
                f"{spec.where}: {spec.text!r} gives {key!r} twice", hint="keep one of them"
            )
        parameters[key] = parse_parameter_value(value.strip())
    return tuple(parameters.items())


def _file_choice(spec: SpecText) -> WorkloadChoice | None:
    match = _PYTHON_FILE.fullmatch(spec.text.removeprefix("file/"))
    if match is None:
        return None
    path_text, rest = match[1], match[2]
    object_name = ""
    parameters: tuple[tuple[str, Scalar], ...] = ()
    for segment in rest.split(":")[1:]:
        if "=" in segment:
            parameters = _parameters(segment, spec)
        elif segment.isidentifier() and not object_name:
            object_name = segment
        else:
            raise UsageError(
                f"{spec.where}: {segment!r} in {spec.text!r} is not a name in a file",
                hint="write FILE.py, FILE.py:THING or FILE.py:THING:key=value",
            )
    path = spec.folder / Path(path_text).expanduser()
    if not path.is_file():
        raise UsageError(
            f"{spec.where}: no such file: {path_text!r}",
            why=f"looked for {path}",
            hint="give the path of a Python file",
        )
    name = f"{path.resolve()}:{object_name}" if object_name else str(path.resolve())
    return WorkloadChoice(where=spec.where, suite="file", name=name, parameters=parameters)


def _suite_of(name: str, spec: SpecText) -> str:
    holders = [suite for suite in SUITES if name in _names(suite)]
    if len(holders) == 1:
        return holders[0]
    if holders:
        raise UsageError(
            f"{spec.where}: {name!r} is in more than one suite",
            hint="use " + " or ".join(f"{suite}/{name}" for suite in holders),
        )
    full_names = [f"{suite}/{entry}" for suite in SUITES for entry in _names(suite)]
    if name in SUITES or name in LISTS:
        first = _names(name)[0] if name in SUITES else LISTS[name][0].name
        raise UsageError(
            f"{spec.where}: {name!r} is a suite, not a workload",
            hint=f"use --suite {name}, or one of its workloads: {name}/{first}",
        )
    short_names = [entry for suite in SUITES for entry in _names(suite)]
    raise UsageError(
        f"{spec.where}: unknown workload {name!r}",
        hint=nearest_hint(name, [*short_names, *full_names], what="workload")
        if nearest_hint(name, short_names).startswith("did")
        else "`torchyard workloads` lists them; write other suites in full, such as timm/NAME",
    )


def _names(suite: str) -> list[str]:
    return [entry.name for entry in SUITES[suite]]


def _listed(suite: str, device: str) -> dict[str, tuple[str, ...]]:
    """Return names and modes of a suite's list that have a batch size for the kind of device."""
    on_cpu = device.partition(":")[0] == "cpu"
    return {
        each.name: each.modes
        for each in LISTS[suite]
        if (each.cpu_batch_size if on_cpu else each.gpu_batch_size) is not None
    }


def _known_hint(suite: str) -> str:
    examples = {
        "huggingface": "name a model class: huggingface/BertForMaskedLM",
        "timm": "name a model: timm/resnet18",
        "torchbench": "name a model: torchbench/resnet50:path=FOLDER",
        "file": "give the path of a Python file: mine.py or mine.py:thing",
    }
    return examples.get(suite) or f"name a workload: {suite}/{_names(suite)[0]}"
