"""`torchyard workloads`: list what can be measured, and the models of a TorchBench checkout.

Reads the catalog without torch. For a checkout it can also try which models load in a target.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.cli.output import common_options, print_data, print_json, print_message, printable

if TYPE_CHECKING:
    from torchyard.bench.target_checks import Loading
    from torchyard.worker.catalog import ListedWorkload
    from torchyard.worker.suites.torchbench.checkout import TorchbenchCheckout


def checkout_of(torchbench: Path | None, suite: str | None) -> TorchbenchCheckout | None:
    """Return the checkout named by the option, or by the variable if its suite is selected."""
    from torchyard.bench.workload_text import SUITE, tree_of
    from torchyard.errors import UsageError
    from torchyard.worker.suites.torchbench.checkout import TORCHBENCH_VARIABLE

    if torchbench is not None:
        if suite not in (None, SUITE):
            raise UsageError(
                f"--torchbench: the suite {suite!r} has no checkout", hint=f"use --suite {SUITE}"
            )
        return tree_of(torchbench, where="--torchbench")
    named = os.environ.get(TORCHBENCH_VARIABLE, "")
    return tree_of(Path(named), where=TORCHBENCH_VARIABLE) if named and suite == SUITE else None


def list_checkout(tree: TorchbenchCheckout, *, as_json: bool) -> None:
    """List every model with its metadata, without loading it."""
    from torchyard.worker.suites.torchbench.checkout import listing

    rows = listing(tree)
    if as_json:
        print_json({"torchbench": tree.root, "models": rows})
        return
    lines = [f"{'torchbench/' + row['name']:<42} {_remarks(row)}".rstrip() for row in rows]
    print_data(printable("\n".join(lines)))


def load_checkout(
    tree: TorchbenchCheckout, *, mode: str, python: str, limit: str, as_json: bool
) -> None:
    """Load each model in its own process and report the result."""
    from torchyard.bench.target_checks import LOADS, check_loading
    from torchyard.cli.build_target import target_or_here
    from torchyard.core.records import encode
    from torchyard.core.study import MODES, Workload
    from torchyard.core.units import parse_duration_s
    from torchyard.errors import UsageError

    try:
        limit_s = parse_duration_s(limit)
    except UsageError as error:
        raise UsageError(f"--limit: {error.what}", hint=error.hint) from error
    target = target_or_here(python)
    parameters = (("path", tree.root),)
    workloads = [
        Workload(suite="torchbench", name=model.name, mode=each, parameters=parameters)
        for model in tree.models()
        for each in MODES
        if each == mode
    ]
    loadings: list[Loading] = []
    try:
        for loading in check_loading(workloads, target, limit_s=limit_s):
            loadings.append(loading)
            print_message(f"{len(loadings)}/{len(workloads)} {loading.name}: {loading.state}")
    finally:  # after Ctrl-C, too
        loadable = sum(loading.state == LOADS for loading in loadings)
        if as_json:
            counts = {"models": len(workloads), "checked": len(loadings), "load": loadable}
            rows = [encode(loading) for loading in loadings]
            print_json({"torchbench": tree.root, **counts, "loadings": rows})
        else:
            lines = [line for loading in loadings for line in _lines(loading)]
            ending = f"{loadable} of {len(workloads)} models load for {mode}"
            print_data(printable("\n".join([*lines, ending])))


def _remarks(row: dict[str, Any]) -> str:
    parts = ["canary"] if row["canary"] else []
    parts += ["has an install.py"] if row["install"] else []
    for rule in row["not_implemented"]:
        if set(rule) <= {"device", "test"}:
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


# Repeated here to keep `--help` fast, which does not import `core`.
MODES: Final = ("inference", "training")

_HELP = """
\b
Examples:
  torchyard workloads
  torchyard workloads --suite models
  torchyard workloads --suite huggingface
  torchyard workloads --json
  torchyard workloads --torchbench ~/src/benchmark
  torchyard workloads --torchbench ~/src/benchmark --check --mode training

List the built-in workloads: name, modes, default batch size and parameters, which can be set:
kernels/matmul:size=500. Suites that accept any model name have a list, with batch sizes for a large
GPU and a large server.

With a checkout of pytorch/benchmark, list its models; --check loads each of them in its own
process without network access, and reports which cannot be loaded and why.
"""


@click.command(help=_HELP)
@click.option("--suite", metavar="SUITE", help="List only this suite.")
@click.option(
    "--torchbench",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="A checkout of pytorch/benchmark; with --suite torchbench also $TORCHYARD_TORCHBENCH.",
)
@click.option("--check", is_flag=True, help="Load each model of the checkout.")
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="inference",
    help="With --check: mode to load models for. [default: inference]",
)
@click.option(
    "--target",
    metavar="PYTHON",
    default="",
    help="With --check: interpreter with PyTorch. [default: this one]",
)
@click.option(
    "--limit",
    metavar="DURATION",
    default="5m",
    help="With --check: time limit for one model. [default: 5m]",
)
@common_options
def workloads(
    suite: str | None,
    torchbench: Path | None,
    check: bool,
    mode: str,
    target: str,
    limit: str,
    as_json: bool,
) -> None:
    """List the catalog or a checkout."""
    from torchyard.bench.workload_text import check_suite
    from torchyard.errors import UsageError
    from torchyard.worker.catalog import LISTS, OPEN_SUITES, SUITES

    if suite is not None:
        check_suite(suite, where="--suite")
    tree = checkout_of(torchbench, suite)
    if tree is not None and check:
        load_checkout(tree, mode=mode, python=target, limit=limit, as_json=as_json)
        return
    if tree is not None:
        list_checkout(tree, as_json=as_json)
        return
    if check:
        raise UsageError(
            "--check loads the models of a checkout",
            hint="give the checkout with --torchbench FOLDER",
        )
    chosen = {name: entries for name, entries in SUITES.items() if suite in (None, name)}
    chosen_open = {name: about for name, about in OPEN_SUITES.items() if suite in (None, name)}
    if as_json:
        listed = {name: [entry._asdict() for entry in entries] for name, entries in chosen.items()}
        lists = {
            name: [each._asdict() for each in entries]
            for name, entries in LISTS.items()
            if suite in (None, name)
        }
        print_json({"suites": listed, "open_suites": chosen_open, "lists": lists})
        return
    lines: list[str] = []
    for name, entries in chosen.items():
        for entry in entries:
            defaults = [f"batch-size={entry.batch_size}"] if entry.batch_size is not None else []
            defaults += [f"{key}={value}" for key, value in entry.parameters.items()]
            lines.append(f"{name + '/' + entry.name:<28} {entry.about}")
            lines.append(f"{'':<28} {', '.join(entry.modes)}; {', '.join(defaults)}")
        lines.append("")
    for name, about in chosen_open.items():
        count = f"; {len(LISTS[name])} listed" if name in LISTS else ""
        lines.append(f"{name + '/NAME':<28} {about}{count}")
    if suite in LISTS:
        lines += ["", *_listed_lines(suite, LISTS[suite])]
    print_data("\n".join(lines).strip("\n"))


def _listed_lines(suite: str, entries: list[ListedWorkload]) -> list[str]:
    """Return one line per workload of a list: name, modes, batch sizes, description."""
    width = max(len(entry.name) for entry in entries) + len(suite) + 1
    return [
        f"{suite + '/' + entry.name:<{width}}  {', '.join(entry.modes):<19}"
        f"  GPU {_count(entry.gpu_batch_size):>4}  CPU {_count(entry.cpu_batch_size):>4}"
        f"  {entry.about}"
        for entry in entries
    ]


def _count(batch_size: int | None) -> str:
    """Return the batch size, or a dash if the list for that device omits the workload."""
    return "-" if batch_size is None else str(batch_size)
