"""`torchyard batch-size`: find the largest batch that fits, with memory and throughput."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.bench.commands.options import LIMIT_OPTIONS, MODES, PLACE_OPTIONS, PRECISIONS
from torchyard.cli.options import SectionedCommand, section
from torchyard.cli.output import common_options, print_data, print_json, printable, talk

if TYPE_CHECKING:
    from torchyard.bench.batch_sizes import BatchTry
    from torchyard.core.study import Study

__all__ = ["batch_size"]

MOST: Final = 1024
"""Written out because the workflow must not be loaded for `--help`; a test holds the two together."""
_BACKENDS: Final = ("eager", "inductor")

_HELP = """
\b
Examples:
  torchyard batch-size models/gpt
      the largest batch that eager and inductor both take
  torchyard batch-size models/resnet --mode training --memory-limit 4GiB
      with 4 GiB for each worker
  torchyard batch-size huggingface/BertForMaskedLM --device cuda --precision bfloat16
      on a GPU, until it is full
  torchyard batch-size mine.py --backend inductor:max-autotune --largest 256

Find the largest batch with which WORKLOAD fits into memory. Sizes are doubled and then halved in
between; each is tried in a fresh process, so that lack of memory ends nothing else. The table shows
memory and throughput of every size, and from where on a larger one hardly pays.
"""

# Headings of the options that other commands have, too.
_what, _run, _how = section("What to run"), section("What to compare"), section("How to measure")


def _options(command: Any) -> Any:
    for option in reversed(
        (
            _what("--mode", type=click.Choice(MODES), help="inference when left out."),
            _what("--device", metavar="DEVICE", help="cpu (when left out), cuda, cuda:1, ..."),
            _run(
                "--backend",
                "backends",
                multiple=True,
                metavar="SPEC",
                help="What the batch must fit with: a backend or any variant, as in `bench "
                "--candidate`. Give it several times; eager and inductor when left out.",
            ),
            _run(
                "--precision",
                type=click.Choice(PRECISIONS),
                help="For every variant that names none; float32 when left out.",
            ),
            *PLACE_OPTIONS,
            _how("--largest", metavar="N", help=f"No larger size is tried; {MOST}."),
            *LIMIT_OPTIONS,
            _how("-q", "--quiet", is_flag=True, help="No progress on stderr."),
        )
    ):
        command = option(command)
    return command


@click.command("batch-size", cls=SectionedCommand, help=_HELP)
@click.argument("workload", metavar="WORKLOAD")
@_options
@common_options
def batch_size(workload: str, as_json: bool, **options: Any) -> int:
    """Search and show what was found."""
    from torchyard.bench.batch_search import find_batch_size
    from torchyard.bench.batch_sizes import search_json, search_text, tries_text, try_line
    from torchyard.bench.target_checks import check_devices
    from torchyard.core.number_checks import CHECKS

    most = MOST
    if options["largest"] is not None:
        most = CHECKS["batch_size"].read(options["largest"], where="--largest")
    study, backends = _study(workload, options)
    check_devices([study])
    heard: list[BatchTry] = []

    def told(one: BatchTry) -> None:
        heard.append(one)
        if not options["quiet"]:
            talk(try_line(one))

    try:
        found = find_batch_size(
            study.workloads[0], study.variants[:backends], study.settings, most=most, told=told
        )
    except KeyboardInterrupt:
        if heard and not as_json:
            print_data(printable(tries_text(heard)))
        raise
    if as_json:
        print_json(search_json(found))
    else:
        print_data(printable(search_text(found)))
    return 0 if found.batch_size is not None else 5


def _study(workload: str, options: dict[str, Any]) -> tuple[Study, int]:
    """The study that the options mean, of which only the first variants were asked for."""
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
