"""`torchyard machine peak`: measure and store the peak arithmetic and memory rates."""

from __future__ import annotations

import click

from torchyard.cli.build_target import target_of_option
from torchyard.cli.options import Threads
from torchyard.cli.output import common_options, print_data, print_json, print_message, printable

_PRECISIONS = ("float32", "bfloat16", "float16", "amp")

_HELP = """
\b
Examples:
  torchyard machine peak
      of the CPU, in float32, with one thread per core
  torchyard machine peak --device cuda --precision bfloat16
  torchyard machine peak --threads 1 --measure
      measure again, ignoring the stored peak
  torchyard machine peak --target build:pytorch-2.6.0-trimmed --json

Measure the peak that `torchyard report --format roofline` compares kernels with: FLOP/s of matrix
products and bytes/s of memory. It is stored for 30 days, per machine, device, precision, number of
threads and torch version.
"""


@click.command(help=_HELP)
@click.option(
    "--device", metavar="DEVICE", default="cpu", help="cpu, cuda, cuda:1, xpu, ... [default: cpu]"
)
@click.option(
    "--precision",
    type=click.Choice(_PRECISIONS),
    default="float32",
    help="Precision of the matrix products. [default: float32]",
)
@click.option(
    "--threads",
    metavar="N",
    type=Threads(),
    help="PyTorch threads. [default: one per core]",
)
@click.option(
    "--target",
    metavar="PYTHON|build:NAME",
    help="Interpreter with PyTorch: a path, a virtual environment, or a build. [default: this one]",
)
@click.option("--measure", is_flag=True, help="Ignore a stored peak.")
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

    from torchyard.bench.roofline.machine_peak import MAX_AGE_DAYS, PeakRequest, peak_of_machine
    from torchyard.bench.roofline.report import peak_text
    from torchyard.cli.progress import ComparisonCollector, show_progress
    from torchyard.core.records import encode
    from torchyard.core.study import Precision
    from torchyard.core.variant_parts import check_device

    request = PeakRequest(
        target=target_of_option(target),
        device=check_device(device, where="--device"),
        precision=cast("Precision", precision),
        threads=threads,
    )
    with show_progress(ComparisonCollector(), quiet=quiet) as listener:
        stored = peak_of_machine(request, measure=measure, listener=listener)
    if as_json:
        print_json({"peak": encode(stored.peak), "fresh": stored.fresh, "kept": str(stored.path)})
    else:
        text = peak_text(stored.peak, fresh=stored.fresh, lasts_days=MAX_AGE_DAYS)
        print_data(printable(text))
    if not quiet:
        print_message(f"stored: {stored.path}")
