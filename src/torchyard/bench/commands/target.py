"""`torchyard target`: start a worker in an interpreter and show its torch and devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchyard.cli.output import common_options, print_data, print_json, printable

_HELP = """
\b
Examples:
  torchyard target ~/nightly/venv
  torchyard target nightly=/opt/nightly/bin/python --json
  torchyard target build:pytorch-2.6.0-trimmed

Start a worker in an interpreter and show its torch, devices and threads. PYTHON is the path of a
Python interpreter, the folder of a virtual environment, a command on PATH, or build:NAME.
"""


@click.command(help=_HELP)
@click.argument("python", metavar="PYTHON|NAME=PYTHON")
@common_options
def target(python: str, as_json: bool) -> None:
    """Show what a worker in the target reports."""
    from torchyard.cli.build_target import with_build_folder
    from torchyard.core.records import encode
    from torchyard.core.variant_parts import parse_target

    parsed = parse_target(
        with_build_folder(python), folder=Path.cwd(), where="PYTHON", default_name="target"
    )
    from torchyard.bench.target_checks import inspect_target

    facts = inspect_target(parsed)
    if as_json:
        print_json({"target": encode(parsed), "facts": encode(facts)})
        return
    lines = [f"{'target':<14} {parsed.name}", f"{'interpreter':<14} {parsed.python}"]
    for key, value in facts.items():
        lines += _rows(str(key), value)
    print_data(printable("\n".join(lines)))


def _rows(key: str, value: Any) -> list[str]:
    """Return a value as lines under its key; nested values are indented."""
    label = f"{key.replace('_', ' '):<14}"
    if isinstance(value, dict):
        inner = [row for name, item in value.items() for row in _rows(str(name), item)]
        return [label.rstrip(), *(f"  {row}" for row in inner)] if inner else [f"{label} none"]
    if isinstance(value, (list, tuple)):
        if any(isinstance(item, (dict, list, tuple)) for item in value):
            return [row for n, item in enumerate(value) for row in _rows(f"{key} {n}", item)]
        return [f"{label} {', '.join(str(item) for item in value) or 'none'}"]
    first, *more = str(value).strip().splitlines() or [""]
    return [f"{label} {first}".rstrip(), *(f"{'':<14} {line}" for line in more)]
