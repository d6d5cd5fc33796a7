"""`torchyard workloads`: what can be measured. Reads the catalogue; needs no torch."""

from __future__ import annotations

import click

from torchyard.cli.output import common_options, print_data, print_json

__all__ = ["workloads"]

_HELP = """
\b
Examples:
  torchyard workloads
  torchyard workloads --suite models
  torchyard workloads --json

List the built-in workloads: name, modes, default batch size and parameters. Give a
name to `torchyard bench --only`, with other parameters as in kernels/matmul:size=500.
"""


@click.command(help=_HELP)
@click.option("--suite", metavar="SUITE", help="Only this suite.")
@common_options
def workloads(suite: str | None, as_json: bool) -> None:
    """List the catalogue."""
    from torchyard.config.workload_spec import check_suite
    from torchyard.worker.catalog import OPEN_SUITES, SUITES

    if suite is not None:
        check_suite(suite, where="--suite")
    chosen = {name: entries for name, entries in SUITES.items() if suite in (None, name)}
    chosen_open = {name: about for name, about in OPEN_SUITES.items() if suite in (None, name)}
    if as_json:
        listed = {name: [entry._asdict() for entry in entries] for name, entries in chosen.items()}
        print_json({"suites": listed, "open_suites": chosen_open})
        return
    lines: list[str] = []
    for name, entries in chosen.items():
        for entry in entries:
            defaults = [f"batch-size={entry.batch_size}"] if entry.batch_size is not None else []
            defaults += [f"{key}={value}" for key, value in entry.parameters.items()]
            lines.append(f"{name + '/' + entry.name:<28} {entry.about}")
            lines.append(f"{'':<28} {', '.join(entry.modes)}; {', '.join(defaults)}")
        lines.append("")
    lines += [f"{name + '/NAME':<28} {about}" for name, about in chosen_open.items()]
    print_data("\n".join(lines).strip("\n"))
