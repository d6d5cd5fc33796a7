"""`torchyard batch-size`: find the largest batch that fits, with memory and throughput."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.bench.commands.options import LIMIT_OPTIONS, MODES, PLACE_OPTIONS, PRECISIONS
from torchyard.cli.options import SectionedCommand, all_options, section
from torchyard.cli.output import common_options, print_data, print_json, print_message, printable

if TYPE_CHECKING:
    from torchyard.bench.batch_search import BatchTry
    from torchyard.core.study import Study


LARGEST_TRIED: Final = 1024
"""Equals `batch_search.LARGEST_TRIED`, which is not imported to keep `--help` fast; a test compares both."""
_BACKENDS: Final = ("eager", "inductor")

_HELP = """
\b
Examples:
  torchyard batch-size models/gpt
      the largest batch that fits with both eager and inductor
  torchyard batch-size models/resnet --mode training --memory-limit 4GiB
      with at most 4 GiB for each worker
  torchyard batch-size huggingface/BertForMaskedLM --device cuda --precision bfloat16
      on a GPU, up to its memory
  torchyard batch-size mine.py --backend inductor:max-autotune --largest 256

Find the largest batch size that fits in memory. Sizes are doubled until one fails, then bisected, each
in a fresh process. The table shows memory and throughput of every size, and where larger batches stop
paying off.
"""

# Same headings as in the other commands.
_what, _run, _how = section("What to run"), section("What to compare"), section("How to measure")

_MODES: Final = tuple(mode for mode in MODES if mode != "generate")


_OPTIONS: Final = (
    _what("--mode", type=click.Choice(_MODES), help="[default: inference]"),
    _what("--device", metavar="DEVICE", help="cpu, cuda, cuda:1, xpu, ... [default: cpu]"),
    _run(
        "--backend",
        "backends",
        multiple=True,
        metavar="SPEC",
        help="Variant that the batch must fit with. May be repeated. [default: eager and inductor]",
    ),
    _run(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="Precision of every variant that names none. [default: float32]",
    ),
    *PLACE_OPTIONS,
    _how("--largest", metavar="N", help=f"Largest size to try. [default: {LARGEST_TRIED}]"),
    *LIMIT_OPTIONS,
    _how("-q", "--quiet", is_flag=True, help="No progress on stderr."),
)


@click.command("batch-size", cls=SectionedCommand, help=_HELP)
@click.argument("workload", metavar="WORKLOAD")
@all_options(_OPTIONS)
@common_options
def batch_size(workload: str, as_json: bool, **options: Any) -> int:
    """Run the search and print its result."""
    from torchyard.bench.batch_search import (
        find_batch_size,
        search_json,
        search_text,
        tries_text,
        try_line,
    )
    from torchyard.bench.target_checks import check_devices
    from torchyard.core.number_checks import CHECKS

    largest = LARGEST_TRIED
    if options["largest"] is not None:
        largest = CHECKS["batch_size"].read(options["largest"], where="--largest")
    study, backends = _study(workload, options)
    check_devices([study])
    tries: list[BatchTry] = []

    def on_try(one: BatchTry) -> None:
        tries.append(one)
        if not options["quiet"]:
            print_message(try_line(one))

    try:
        search = find_batch_size(
            study.workloads[0],
            study.variants[:backends],
            study.settings,
            largest=largest,
            on_try=on_try,
        )
    except KeyboardInterrupt:
        if tries and not as_json:
            print_data(printable(tries_text(tries)))
        raise
    if as_json:
        print_json(search_json(search))
    else:
        print_data(printable(search_text(search)))
    return 0 if search.batch_size is not None else 5


def _study(workload: str, options: dict[str, Any]) -> tuple[Study, int]:
    """Return the study that the options describe, and how many of its variants to try."""
    from dataclasses import replace

    from torchyard.bench.commands.options import request_of_study_options, spec_of_option
    from torchyard.bench.study_assembly import assemble
    from torchyard.bench.workload_text import choose_workload

    folder = Path.cwd()
    specs = [spec_of_option(text, "--backend", folder) for text in options["backends"] or _BACKENDS]
    request = replace(
        request_of_study_options(options),
        workloads=(choose_workload(spec_of_option(workload, "WORKLOAD", folder)),),
        modes=(options["mode"] or "inference",),
        precision=options["precision"],
        baseline=specs[0],
        candidates=tuple(specs[1:]),
    )
    return assemble(request, here=sys.executable), len(specs)
