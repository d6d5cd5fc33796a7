"""The command `torchyard machine peak`: measure and keep peak arithmetic and memory rates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchyard.cli.options import Threads
from torchyard.cli.output import common_options, print_data, print_json, printable, talk

if TYPE_CHECKING:
    from torchyard.core.study import Target

__all__ = ["peak"]

_PRECISIONS = ("float32", "bfloat16", "float16", "amp")

_HELP = """
\b
Examples:
  torchyard machine peak
      of the processor, in float32, with one thread for each core
  torchyard machine peak --device cuda --precision bfloat16
  torchyard machine peak --threads 1 --measure
      measure again, though one is kept
  torchyard machine peak --target build:pytorch-2.6.0-trimmed --json

Measure what kernels are held against: operations per second of matrix products and bytes per second of
memory, each the best of many short runs. Takes about fifteen seconds, and is kept in the home folder
for 30 days, for each machine, device, precision, number of threads and torch. Reports of runs show
how near each kernel came, and a picture: `torchyard report --format roofline`.
"""


@click.command(help=_HELP)
@click.option(
    "--device", metavar="DEVICE", default="cpu", help="cpu (when left out), cuda, cuda:1, ..."
)
@click.option(
    "--precision",
    type=click.Choice(_PRECISIONS),
    default="float32",
    help="Of the products; float32 when left out.",
)
@click.option(
    "--threads",
    metavar="N",
    type=Threads(),
    help="Threads of torch; one for each core when left out.",
)
@click.option(
    "--target",
    metavar="PYTHON|build:NAME",
    help="Interpreter with torch: a path, a virtual environment, or a build. This one when left out.",
)
@click.option("--measure", is_flag=True, help="Measure now, though a peak is kept.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@common_options
def peak(
    device: str,
    precision: str,
    threads: int | None,
    target: str | None,
    measure: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Measure or show the peak."""
    from typing import cast

    from torchyard.bench.roofline.machine_peak import LASTS_DAYS, PeakWish, peak_of_machine
    from torchyard.bench.roofline.report import peak_text
    from torchyard.cli.progress import Heard, show_progress
    from torchyard.core.records import encode
    from torchyard.core.study import Precision
    from torchyard.core.variant_parts import check_device

    wish = PeakWish(
        target=_target(target),
        device=check_device(device, where="--device"),
        precision=cast("Precision", precision),
        threads=threads,
    )
    with show_progress(Heard(), quiet=quiet) as listener:
        found = peak_of_machine(wish, measure=measure, listener=listener)
    if as_json:
        print_json({"peak": encode(found.peak), "fresh": found.fresh, "kept": str(found.path)})
    else:
        text = peak_text(found.peak, fresh=found.fresh, lasts_days=LASTS_DAYS)
        print_data(printable(text))
    if not quiet:
        talk(f"kept: {found.path}")


def _target(text: str | None) -> Target:
    from torchyard.cli.build_target import with_build_folder
    from torchyard.core.variant_parts import parse_target

    return parse_target(
        with_build_folder(text or sys.executable),
        folder=Path.cwd(),
        where="--target",
        default_name="target",
    )
