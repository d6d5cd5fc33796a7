"""`torchyard workloads --suite torchbench`: the models of a checkout, and which of them can be loaded."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchyard.cli.output import print_data, print_json, printable, talk

if TYPE_CHECKING:
    from torchyard.worker.suites.torchbench_tree import Tree
    from torchyard.workflow.loading_check import Loading

__all__ = ["checkout_of", "list_checkout", "load_checkout"]


def checkout_of(torchbench: Path | None, suite: str | None) -> Tree | None:
    """The checkout that an option names, or the variable when its suite is asked for."""
    from torchyard.config.torchbench_choice import SUITE, tree_of
    from torchyard.errors import UsageError
    from torchyard.worker.suites.torchbench_tree import VARIABLE

    if torchbench is not None:
        if suite not in (None, SUITE):
            raise UsageError(
                f"--torchbench: the suite {suite!r} has no checkout", hint=f"say --suite {SUITE}"
            )
        return tree_of(torchbench, where="--torchbench")
    named = os.environ.get(VARIABLE, "")
    return tree_of(Path(named), where=VARIABLE) if named and suite == SUITE else None


def list_checkout(tree: Tree, *, as_json: bool) -> None:
    """Every model, with what is known of it without loading it."""
    from torchyard.worker.suites.torchbench_tree import listing

    rows = listing(tree)
    if as_json:
        print_json({"torchbench": tree.root, "models": rows})
        return
    lines = [f"{'torchbench/' + row['name']:<42} {_said(row)}".rstrip() for row in rows]
    print_data(printable("\n".join(lines)))


def load_checkout(tree: Tree, *, mode: str, python: str, limit: str, as_json: bool) -> None:
    """Load each model in a process of its own, and say what came of it."""
    from torchyard.cli.build_names import with_build_folder
    from torchyard.config.interpreters import parse_target
    from torchyard.core.records import encode
    from torchyard.core.units import parse_duration_s
    from torchyard.core.variant import Target
    from torchyard.core.workload import MODES, Workload
    from torchyard.errors import UsageError
    from torchyard.workflow.loading_check import LOADS, check_loading

    try:
        limit_s = parse_duration_s(limit)
    except UsageError as error:
        raise UsageError(f"--limit: {error.what}", hint=error.hint) from error
    target = Target(name="here", python=sys.executable)
    if python:
        target = parse_target(
            with_build_folder(python), folder=Path.cwd(), where="--target", default_name="target"
        )
    parameters = (("path", tree.root),)
    workloads = [
        Workload(suite="torchbench", name=model.name, mode=each, parameters=parameters)
        for model in tree.models()
        for each in MODES
        if each == mode
    ]
    found: list[Loading] = []
    try:
        for loading in check_loading(workloads, target, limit_s=limit_s):
            found.append(loading)
            talk(f"{len(found)}/{len(workloads)} {loading.name}: {loading.state}")
    finally:  # what is known is said, even when Ctrl-C ends it
        good = sum(loading.state == LOADS for loading in found)
        if as_json:
            counts = {"models": len(workloads), "checked": len(found), "load": good}
            rows = [encode(loading) for loading in found]
            print_json({"torchbench": tree.root, **counts, "loadings": rows})
        else:
            lines = [line for loading in found for line in _lines(loading)]
            ending = f"{good} of {len(workloads)} models load for {mode}"
            print_data(printable("\n".join([*lines, ending])))


def _said(row: dict[str, Any]) -> str:
    parts = ["canary"] if row["canary"] else []
    parts += ["has an install.py"] if row["install"] else []
    for rule in row["not_implemented"]:
        if isinstance(rule, dict) and set(rule) <= {"device", "test"}:
            parts.append("not " + " ".join(f"{key} {value}" for key, value in rule.items()))
    if row["metadata_trouble"]:
        parts.append(row["metadata_trouble"])
    return "; ".join(parts)


def _lines(loading: Loading) -> list[str]:
    name = f"{loading.name:<32}"
    if not loading.reason:
        loss = f", loss: {loading.loss}" if loading.loss else ""
        return [f"{name} {loading.state:<14} {loading.parameters} parameters{loss}"]
    reason = " ".join(loading.reason.split())
    return [f"{name} {loading.state:<14} {reason}"]
