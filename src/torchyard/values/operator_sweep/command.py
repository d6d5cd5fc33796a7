"""`torchyard values sweep`: sweep the operators of a PyTorch build for wasted work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from torchyard.cli.options import FILE, FOLDER
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    print_message,
    printable,
    write_file,
)

_HELP = """
\b
Examples:
  torchyard values sweep --only '*_loss*'
  torchyard values sweep --target build:pytorch-2.6.0-trimmed --markdown waste.md
  torchyard values sweep --device cuda
  torchyard values sweep --resume FOLDER

Run hundreds of operators, forward and backward, inspect what they write internally, and test each
finding: with poison values, without the write, on other inputs, and without the profiler.
"""


@click.command(help=_HELP)
@click.option(
    "--target",
    metavar="PYTHON",
    help="Python interpreter or build:NAME. [default: this interpreter]",
)
@click.option("--device", metavar="DEVICE", help="cpu, cuda or cuda:1. [default: cpu]")
@click.option("--only", metavar="PATTERN", help="Only cases whose name matches, such as 'conv*'.")
@click.option(
    "--cases",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Python file with a list CASES of more cases.",
)
@click.option(
    "--resume",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Resume a sweep with its settings.",
)
@click.option(
    "--run-dir",
    type=FOLDER,
    metavar="FOLDER",
    help="Directory for the sweep; must be new or empty.",
)
@click.option("--markdown", type=FILE, metavar="FILE", help="Also write the table to a file.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print progress to stderr.")
@common_options
def sweep(as_json: bool, markdown: Path | None, resume: Path | None, **options: Any) -> None:
    """Search operators for wasted work."""
    from torchyard.core.records import encode
    from torchyard.errors import UsageError
    from torchyard.values.operator_sweep.model import resume_sweep, start_sweep
    from torchyard.values.operator_sweep.report import values_sweep_markdown, values_sweep_text

    if markdown is not None:
        check_writable(markdown, option="--markdown")
    say = (lambda _: None) if options["quiet"] else print_message
    if resume is not None:
        changed_options = [
            name for name in ("target", "device", "only", "cases", "run_dir") if options[name]
        ]
        if changed_options:
            raise UsageError(
                f"--resume uses the settings of {resume}",
                why="--" + ", --".join(changed_options).replace("_", "-") + " would change them",
                hint="start a new sweep to change settings",
            )
        result, folder = resume_sweep(resume, say=say)
    else:
        result, folder = start_sweep(_settings(options), folder=options["run_dir"], say=say)
    if markdown is not None:
        write_file(markdown, values_sweep_markdown(result), option="--markdown")
    if as_json:
        print_json({"sweep": encode(result), "folder": str(folder)})
    else:
        print_data(printable(values_sweep_text(result)))


def _settings(options: dict[str, Any]) -> Any:
    from torchyard.cli.build_target import target_or_here
    from torchyard.values.operator_sweep.model import SweepSettings

    target = target_or_here(options["target"])
    cases = options["cases"]
    return SweepSettings(
        python=target.python,
        target=target.name,
        device=_device(options["device"]),
        only=options["only"] or "*",
        cases_file=None if cases is None else str(cases.absolute()),
        variables=tuple(target.variables),
    )


def _device(text: str | None) -> str:
    from torchyard.core.variant_parts import PROFILED_DEVICES, check_device

    return check_device("cpu" if text is None else text, where="--device", kinds=PROFILED_DEVICES)
