"""Options that select machine settings, shared by `machine` commands and `torchyard bench`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from torchyard.cli.options import Count, all_options, section
from torchyard.errors import UsageError

if TYPE_CHECKING:
    from torchyard.machine.knob import Machine
    from torchyard.machine.model import QuietRequest
    from torchyard.machine.system.file_tree import FileTree

F = TypeVar("F", bound=Callable[..., Any])

PROFILES: Final = ("cpu", "gpu", "all")

_selection, _values = section("Knob selection"), section("Values")

_OPTIONS: Final = (
    _selection(
        "--profile",
        type=click.Choice(PROFILES),
        default="cpu",
        show_default=True,
        help="Knobs of the CPU and kernel, of the GPUs, or all.",
    ),
    _selection("--only", multiple=True, metavar="KNOB", help="Use only this knob; repeatable."),
    _selection(
        "--also",
        multiple=True,
        metavar="KNOB",
        help="Also use this knob, which is off by default; repeatable.",
    ),
    _selection(
        "--without", multiple=True, metavar="KNOB", help="Do not use this knob; repeatable."
    ),
    _values(
        "--cores",
        metavar="LIST|auto",
        help="CPUs to isolate for measuring, such as 2-7; auto: one NUMA node without the core of CPU 0.  [default: none]",
    ),
    _values(
        "--partition",
        type=click.Choice(("root", "isolated")),
        default="root",
        show_default=True,
        help="cpuset partition of isolated cores; only root balances load among them.",
    ),
    _values(
        "--frequency",
        metavar="MHZ|base|max",
        default="base",
        show_default=True,
        help="Fixed CPU clock.",
    ),
    _values(
        "--latency-us",
        type=Count(0),
        default=1,
        show_default=True,
        help="Maximum wake-up latency of idle states; 0: never sleep.",
    ),
    _values(
        "--aslr",
        type=click.Choice(("keep", "on", "off")),
        default="keep",
        show_default=True,
        help="Address space layout randomization.",
    ),
    _values(
        "--thp",
        type=click.Choice(("keep", "always", "madvise", "never")),
        default="keep",
        show_default=True,
        help="Transparent huge pages.",
    ),
    _values(
        "--gpu-clock",
        type=Count(1, 100_000),
        metavar="MHZ",
        help="Locked GPU clock.  [default: a clock below the throttling point]",
    ),
)


quiet_options: Final = all_options(_OPTIONS)
"""Adds the options that select knobs and their values."""


def root_option(command: F) -> F:
    """Add `--root`, which reads another machine's files."""
    return click.option(
        "--root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path("/"),
        metavar="DIR",
        help="Use /proc, /sys and /dev below this directory: a copy of a machine.",
    )(command)


@contextmanager
def machine_at(root: Path, *, gpus: bool) -> Iterator[Machine]:
    """Open the machine whose files are below `root`; with its GPU libraries only if `gpus` (slow)."""
    from torchyard.machine.gpu.library import open_gpu_libraries
    from torchyard.machine.knob import Machine
    from torchyard.machine.system.file_tree import FileTree

    files = FileTree(root.absolute())
    if not gpus:
        yield Machine(files=files)
        return
    with open_gpu_libraries(files) as libraries:
        yield Machine(files=files, gpus=libraries)


def request_from_options(
    files: FileTree, options: dict[str, Any]
) -> tuple[QuietRequest, tuple[str, ...]]:
    """Return the request, and notes for the user about its cores."""
    from torchyard.machine.model import PROFILE_CHOICES, QuietRequest
    from torchyard.machine.quieting.apply_settings import chosen_knobs

    also = list(options["also"])
    # A value other than `keep` selects its knob, unless --only lists the knobs.
    for option, knobs in (("aslr", ("aslr", "process-aslr")), ("thp", ("huge-pages",))):
        if options[option] != "keep" and not options["only"]:
            also += knobs
    request = QuietRequest(
        profiles=PROFILE_CHOICES[options["profile"]],
        only=tuple(options["only"]),
        also=tuple(dict.fromkeys(also)),
        without=tuple(options["without"]),
        partition=options["partition"],
        frequency_khz=_frequency_khz(files, options["frequency"]),
        latency_us=options["latency_us"],
        randomize=options["aslr"],
        huge_pages=options["thp"],
        gpu_clock_mhz=options["gpu_clock"],
    )
    chosen_knobs(request)  # check the knob names before anything else
    if options["cores"] is None:
        return request, ()
    return with_cores(files, request, options["cores"], user=options.get("user", False))


def with_cores(
    files: FileTree, request: QuietRequest, text: str, *, user: bool = False
) -> tuple[QuietRequest, tuple[str, ...]]:
    """Return the request with the cores of `--cores`, and notes for the user about them.

    SMT siblings that quieting takes offline are excluded.
    """
    from dataclasses import replace

    from torchyard.machine.knob import Machine
    from torchyard.machine.knobs import KNOBS
    from torchyard.machine.quieting.apply_settings import chosen_knobs
    from torchyard.machine.system.cores import choose_cores

    smt_off = (
        not user
        and "smt" in chosen_knobs(request)
        and not KNOBS["smt"].survey(Machine(files=files), request).unavailable
    )
    choice = choose_cores(files, text, smt_off=smt_off)
    return replace(request, cores=choice.cores), choice.notes


def _frequency_khz(files: FileTree, text: str) -> int | None:
    if text == "base":
        return None
    if text == "max":
        paths = files.paths("sys/devices/system/cpu/cpufreq/policy*/cpuinfo_max_freq")
        clocks_khz = [files.read(path).number for path in paths]
        return max((khz for khz in clocks_khz if khz is not None), default=None)
    try:
        mhz = float(text)
    except ValueError:
        mhz = 0.0
    if not 1 <= mhz < 1e6:  # noqa: PLR2004  # 1 THz or more is a mistake
        raise UsageError(
            f"--frequency: invalid clock {text!r}", hint="use MHz such as 2500, or base or max"
        )
    return round(mhz * 1000)
