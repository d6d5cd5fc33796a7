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
    from torchyard.machine.model import Profile, Wish
    from torchyard.machine.system.file_tree import FileTree

__all__ = [
    "PROFILES",
    "machine_at",
    "profiles_of",
    "root_option",
    "wish_of_options",
    "wish_options",
]

F = TypeVar("F", bound=Callable[..., Any])

PROFILES: Final = ("cpu", "gpu", "all")

_which, _how = section("Which knobs"), section("What to set them to")

_OPTIONS: Final = (
    _which(
        "--profile",
        type=click.Choice(PROFILES),
        default="cpu",
        show_default=True,
        help="Knobs of the processor and kernel, of the GPUs, or both.",
    ),
    _which("--only", multiple=True, metavar="KNOB", help="This knob and no other; repeatable."),
    _which("--also", multiple=True, metavar="KNOB", help="A knob that is off by default, too."),
    _which("--without", multiple=True, metavar="KNOB", help="Not this knob; repeatable."),
    _how(
        "--cores",
        metavar="LIST|auto",
        help="Set these processors apart for measuring, such as 2-7; auto: one NUMA node without "
        "the core of processor 0. None when left out.",
    ),
    _how(
        "--partition",
        type=click.Choice(("root", "isolated")),
        default="root",
        show_default=True,
        help="How cores are set apart: with load balancing among them, or without.",
    ),
    _how(
        "--frequency",
        metavar="MHZ|base|max",
        default="base",
        show_default=True,
        help="Fixed clock of the processor.",
    ),
    _how(
        "--latency-us",
        type=Count(0),
        default=1,
        show_default=True,
        help="Longest wake-up of idle states; 0 never sleeps (hot).",
    ),
    _how(
        "--aslr",
        type=click.Choice(("keep", "on", "off")),
        default="keep",
        show_default=True,
        help="Address randomisation.",
    ),
    _how(
        "--thp",
        type=click.Choice(("keep", "always", "madvise", "never")),
        default="keep",
        show_default=True,
        help="Transparent huge pages.",
    ),
    _how(
        "--gpu-clock",
        type=Count(1, 100_000),
        metavar="MHZ",
        help="Locked clock of GPUs; below where they throttle when left out.",
    ),
)


def wish_options(command: F) -> F:
    """Every option that says what to tune."""
    return all_options(_OPTIONS)(command)


def root_option(command: F) -> F:
    """`--root`: another machine's files."""
    return click.option(
        "--root",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=Path("/"),
        metavar="FOLDER",
        help="Use the /proc, /sys and /dev in this folder: a copy of a machine.",
    )(command)


@contextmanager
def machine_at(root: Path, *, gpus: bool) -> Iterator[Machine]:
    """The machine whose files are in the folder; its GPUs only where they matter (slow to open)."""
    from torchyard.machine.gpu.library import open_gpu_libraries
    from torchyard.machine.knob import Machine
    from torchyard.machine.system.file_tree import FileTree

    files = FileTree(root.absolute())
    if not gpus:
        yield Machine(files=files)
        return
    with open_gpu_libraries(files) as libraries:
        yield Machine(files=files, gpus=libraries)


def profiles_of(name: str) -> tuple[Profile, ...]:
    """The profiles that `--profile` names."""
    if name == "all":
        return ("cpu", "gpu")
    return ("gpu",) if name == "gpu" else ("cpu",)


def wish_of_options(files: FileTree, options: dict[str, Any]) -> tuple[Wish, tuple[str, ...]]:
    """The wish, and what the user should know about its cores."""
    from torchyard.machine.model import Wish
    from torchyard.machine.quieting.apply_settings import chosen_knobs

    also = list(options["also"])
    # Asking for a value is asking for its knob, unless the knobs are named.
    for option, knobs in (("aslr", ("aslr", "process-aslr")), ("thp", ("huge-pages",))):
        if options[option] != "keep" and not options["only"]:
            also += knobs
    wish = Wish(
        profiles=profiles_of(options["profile"]),
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
    chosen_knobs(wish)  # names of knobs are checked before anything else
    if options["cores"] is None:
        return wish, ()
    return with_cores(files, wish, options["cores"], user=options.get("user", False))


def with_cores(
    files: FileTree, wish: Wish, text: str, *, user: bool = False
) -> tuple[Wish, tuple[str, ...]]:
    """The wish with the cores of `--cores`, and what the user should know about them.

    Second threads that the tune itself takes offline cannot be among them.
    """
    from dataclasses import replace

    from torchyard.machine.knob import Machine
    from torchyard.machine.knobs import KNOBS
    from torchyard.machine.quieting.apply_settings import chosen_knobs
    from torchyard.machine.system.cores import choose_cores

    smt_off = (
        not user
        and "smt" in chosen_knobs(wish)
        and not KNOBS["smt"].survey(Machine(files=files), wish).unavailable
    )
    choice = choose_cores(files, text, smt_off=smt_off)
    return replace(wish, cores=choice.cores), choice.notes


def _frequency_khz(files: FileTree, text: str) -> int | None:
    if text == "base":
        return None
    if text == "max":
        paths = files.paths("sys/devices/system/cpu/cpufreq/policy*/cpuinfo_max_freq")
        found = [files.read(path).number for path in paths]
        return max((khz for khz in found if khz is not None), default=None)
    try:
        mhz = float(text)
    except ValueError:
        mhz = 0.0
    if not 1 <= mhz < 1e6:  # noqa: PLR2004  # a terahertz is a mistake
        raise UsageError(
            f"--frequency: {text!r} is no clock", hint="write MHz such as 2500, base or max"
        )
    return round(mhz * 1000)
