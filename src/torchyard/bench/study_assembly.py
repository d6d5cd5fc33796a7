"""Complete a request to a `Study`: defaults, names, and fully specified variants and workloads.

Variants and workloads are checked together: ranks and their wrappers, and user files, which are parsed
and not imported. Names that only running a file shows (`from x import *`, `globals()`, ...) are left to
the worker.
"""

from __future__ import annotations

import ast
import os
import symtable
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import decode_source
from pathlib import Path
from typing import Final

from torchyard.bench.request import Request, SpecText, WorkloadChoice
from torchyard.bench.variant_text import Parts, parse_variant, with_short_names
from torchyard.bench.workload_text import choose_file, expand
from torchyard.core.records import nearest_hint
from torchyard.core.short_names import short_texts
from torchyard.core.study import (
    DEFAULT_NAME,
    FILE_SUITE,
    SCRIPT_SUITE,
    Budget,
    MeasureSettings,
    Study,
    Target,
    Variant,
    Workload,
    split_user_file,
)
from torchyard.core.variant_parts import DEFAULT_TARGET, check_device, check_names
from torchyard.errors import NothingToDo, UsageError
from torchyard.files.safe_reading import read_document
from torchyard.worker.bench import options
from torchyard.worker.bench.backend_names import is_user_function


def assemble(request: Request, *, here: str) -> Study:
    """Return the study of a request; `here` is the interpreter that Torchyard runs in."""
    check_names(request.targets, request.environments)
    parts = Parts(
        targets=request.targets,
        environments=request.environments,
        here=Target(name=DEFAULT_TARGET, python=here),
        default_precision=request.precision or "float32",
    )
    if request.files:
        variants = _file_variants(request, parts)
    elif request.backend is not None:
        raise UsageError(
            "--backend has no effect",
            why="it applies to two or more files",
            hint="choose backends with --baseline and --candidate",
        )
    else:
        variants = with_short_names(_variants(request, parts))
    _check_user_files(request, variants, here=here)
    workloads = _workloads(request)
    check_ranks(variants, workloads)
    return Study(
        name=request.name or DEFAULT_NAME,
        baseline=variants[0],
        candidates=variants[1:],
        workloads=workloads,
        budget=_budget(request),
        settings=replace(MeasureSettings(), **request.settings),
    )


def _check_user_files(request: Request, variants: Sequence[Variant], *, here: str) -> None:
    """Check the Python files of workloads and backends; each error names its option or key."""
    names = [
        (choice.where, choice.name) for choice in request.workloads if choice.suite == FILE_SUITE
    ]
    names += [
        (f"the variant {variant.name!r}", variant.backend)
        for variant in variants
        if is_user_function(variant.backend)
    ]
    names += [("FILE.py", variant.file) for variant in variants if variant.file]
    same_python = any(variant.target.python == here for variant in variants)
    for where, text in names:
        path, name = split_user_file(text)
        # A missing file was rejected when its option or key was read.
        if os.path.isfile(path):  # noqa: PTH113 - False for impossible names, too
            check_user_file(Path(path), name, where=where, same_python=same_python)


def _file_variants(request: Request, parts: Parts) -> tuple[Variant, ...]:
    """Return one variant per file, named like it; the baseline runs the workload's own module."""
    conflicting = {
        "--baseline": request.baseline,
        "--candidate": request.candidates,
        "several --target": len(request.targets) > 1,
        "--only or --suite": len(request.workloads) > 1,
    }
    for option, value in conflicting.items():
        if value:
            raise UsageError(
                f"{option} and several Python files are given",
                why="the files are the variants: the first is the baseline, every other a candidate",
                hint="choose how all of them run with --backend, or give one file",
            )
    spec = request.backend or _default_spec("eager")
    common = parse_variant(spec, parts)
    own = request.workloads[0].name
    files = [choose_file(one) for one in request.files]
    labels = short_texts(f"{FILE_SUITE}/{name}" for name in (own, *files))
    variants: list[Variant] = []
    for number, file in enumerate((own, *files)):
        words = [labels[f"{FILE_SUITE}/{file}"]]
        words += [] if request.backend is None else [spec.text]
        words += (
            [] if common.precision in ("float32", *spec.text.split("+")) else [common.precision]
        )
        name = "+".join(words)
        if any(one.name == name for one in variants):
            name += "-again"
        if any(one.name == name for one in variants):
            raise UsageError(f"{name!r} is given more than once", hint="remove the repetition")
        variants.append(replace(common, name=name, file=file if number else ""))
    return tuple(variants)


def _variants(request: Request, parts: Parts) -> Sequence[Variant]:
    """Return the variants, baseline first; missing ones are derived from targets and environments."""
    pool = [_default_spec(text) for text in _default_pool(request)]
    if request.baseline is None and not request.candidates:
        return [parse_variant(spec, parts) for spec in pool]
    baseline = parse_variant(request.baseline or pool[0], parts)
    if request.candidates:
        return [baseline, *(parse_variant(spec, parts) for spec in request.candidates)]
    others = [parse_variant(spec, parts) for spec in pool]
    candidates = [variant for variant in others if replace(variant, name=baseline.name) != baseline]
    return [baseline, *candidates]


def _default_pool(request: Request) -> list[str]:
    named = request.baseline is not None or bool(request.candidates)
    several_targets = len(request.targets) > 1
    if several_targets and request.environments and not named:
        raise UsageError(
            "both targets and environments are given, but no variant",
            why="it is ambiguous which of them to compare",
            hint="name the variants with --baseline and --candidate, such as --candidate "
            f"{list(request.targets)[1]}+{next(iter(request.environments))}",
        )
    if several_targets:
        return list(request.targets)
    if request.environments:
        return ["eager", *request.environments]
    return ["eager", "inductor"]


def _default_spec(text: str) -> SpecText:
    return SpecText(text=text, where="the default", folder=Path())


def _workloads(request: Request) -> tuple[Workload, ...]:
    if not request.workloads:
        raise NothingToDo(
            "no workload given",
            hint="use --suite models, --only kernels/matmul or a FILE.py; `torchyard workloads` lists "
            "the built-in ones",
        )
    workloads: dict[Workload, None] = {}
    for choice in request.workloads:
        settled = replace(choice.overridden(request), device=_device(request, choice))
        workloads.update(dict.fromkeys(expand(settled)))
    if not workloads:
        raise NothingToDo(
            "the request selects no workload",
            why="no workload of the suite supports the mode",
            hint="choose another --mode",
        )
    training_options = {
        "--optimizer-step": request.optimizer_step,
        "--eval-mode": request.eval_mode,
    }
    useless = [option for option, value in training_options.items() if value]
    if useless and all(workload.mode != "training" for workload in workloads):
        raise UsageError(
            f"{useless[0]} has no effect",
            why="every workload runs in inference mode",
            hint="choose the mode training, or remove the option",
        )
    return tuple(workloads)


def _device(request: Request, choice: WorkloadChoice) -> str:
    """Return the device; the option overrides the study file."""
    if request.device is not None:
        return check_device(request.device, where="--device")
    if choice.device is not None:
        return check_device(choice.device, where=f"{choice.where}.device")
    return "cpu"


def _budget(request: Request) -> Budget:
    budget = replace(Budget(), **request.budget)
    if budget.max_launches < budget.min_launches:
        if "min_launches" in request.budget:
            raise UsageError(
                f"max-launches is {budget.max_launches}, below min-launches, which is {budget.min_launches}",
                hint="raise max-launches or lower min-launches",
            )
        budget = replace(budget, min_launches=budget.max_launches)
    return budget


_WRAPPERS = " or ".join(options.WRAPPERS)


def check_ranks(variants: Sequence[Variant], workloads: Sequence[Workload]) -> None:
    """Raise UsageError for a wrapper without ranks, and for ranks without a wrapper in training."""
    same = [variant for variant in variants if dict(variant.options).get(options.SAME_BATCH)]
    if same and len(same) < len(variants):
        raise UsageError(
            f"the variant {same[0].name!r} has {options.SAME_BATCH}, and others do not",
            why="variants with one batch per rank do more work in an iteration",
            hint=f"give all variants {options.SAME_BATCH}, or none",
        )
    for variant in variants:
        wrappers = options.wrappers_of(dict(variant.options))
        if len(wrappers) > 1:
            raise UsageError(
                f"the variant {variant.name!r} has {' and '.join(wrappers)}",
                hint="keep one; write two variants as two candidates",
            )
        for workload in workloads:
            _check(variant, workload, wrappers)


def _check(variant: Variant, workload: Workload, wrappers: Sequence[str]) -> None:
    if workload.ranks % workload.nodes:
        raise UsageError(
            f"{workload.ranks} ranks cannot be spread evenly over {workload.nodes} nodes",
            hint=f"use --ranks {workload.nodes * max(1, round(workload.ranks / workload.nodes))}",
        )
    if workload.ranks == 1:
        if wrappers or dict(variant.options).get(options.SAME_BATCH):
            raise UsageError(
                f"the variant {variant.name!r} needs several ranks",
                why=f"{workload.label} has one process",
                hint="add --ranks 2",
            )
        return
    refusals = {
        f"the mode {workload.mode}": workload.mode not in ("inference", "training"),
        "several instances": variant.environment.instances > 1,
        "several Python files": bool(variant.file),
        "a script": workload.suite == SCRIPT_SUITE,
    }
    for what, is_present in refusals.items():
        if is_present:
            raise UsageError(
                f"{workload.label}: {what} cannot be combined with several ranks",
                hint="use one rank, or inference or training",
            )
    if wrappers and workload.mode != "training":
        raise UsageError(
            f"the variant {variant.name!r} supports training only",
            hint=f"add --mode training, or remove {wrappers[0]}",
        )
    if workload.mode == "training" and not wrappers and not is_user_function(variant.backend):
        raise UsageError(
            f"the variant {variant.name!r} does not combine the gradients of {workload.ranks} ranks",
            why=f"it has neither {_WRAPPERS} nor a function of the user",
            hint="write --baseline ddp --candidate inductor+ddp, or FILE.py:FUNCTION",
        )


_DYNAMIC_NAMES: Final = frozenset({"globals", "locals", "vars", "exec", "eval", "setattr"})
_DYNAMIC_ATTRIBUTES: Final = frozenset({"modules", "__dict__"})


def check_user_file(path: Path, name: str, *, where: str, same_python: bool) -> None:
    """Raise UsageError if the file is unusable or does not bind `name`; an empty name is not checked.

    `same_python`: whether a target has this Python. The syntax of another Python may be newer, so
    that a file which cannot be parsed here is left to the worker.
    """
    try:
        source = read_document(path)
    except OSError as error:
        raise UsageError(
            f"{where}: {path} cannot be read",
            why=error.strerror or str(error),
            hint="give a Python file that you may read",
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            text = decode_source(source)
            tree = ast.parse(text, str(path))
            compile(tree, str(path), "exec", dont_inherit=True)
            bound_names = _bound_names(tree, symtable.symtable(text, str(path), "exec"))
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, encoding
        if not same_python:
            return
        line = error.lineno if isinstance(error, SyntaxError) else None
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise UsageError(
            f"{where}: {path} has a syntax error" + (f" in line {line}" if line else ""),
            why=message,
            hint=f"fix the file; `python -m py_compile {path}` shows the position",
        ) from error
    except (RecursionError, MemoryError):
        return
    if name and bound_names is not None and name not in bound_names:
        public = [each for each in bound_names if not each.startswith("_")]
        defined = [each for each in public if not bound_names[each]]
        raise UsageError(
            f"{where}: {path} has no function or class {name!r}",
            hint=nearest_hint(name, defined or public),
        )


def _bound_names(tree: ast.Module, table: symtable.SymbolTable) -> dict[str, bool] | None:
    """Return the names bound at module level, and whether each is imported.

    None if only running the file shows them.
    """
    names = {
        symbol.get_name(): symbol.is_imported()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names.update(dict.fromkeys(node.names, False))
        elif (
            (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
            or (isinstance(node, ast.Name) and node.id in _DYNAMIC_NAMES)
            or (isinstance(node, ast.Attribute) and node.attr in _DYNAMIC_ATTRIBUTES)
        ):
            return None
    return None if "__getattr__" in names else names
