"""How the processes of a launch are started: threads, caches, and one layout for all sides.

Threads are fixed in the environment before torch is imported: `torch.set_num_threads(1)` alone was
seen to leave a second busy BLAS thread. With a paired layout, kernel address randomisation is off
and Torchyard draws the start positions itself, the same for every side of a launch and new for each
launch: what both sides share of the layout cancels in the pair, what it costs on average does not.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

from torchyard.core.study import MeasureSettings
from torchyard.core.variant import Variant
from torchyard.process.launch import LaunchSpec

__all__ = ["LaunchDraw", "available_cores", "draw_launch", "launch_specs", "threads_of"]

_PAD_NAME = "TORCHYARD_PAD"
_MAX_PAD = 4096
_MAX_PAGES = 4096
_MAX_HEAP_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class LaunchDraw:
    """What chance decides for a launch, alike for all of its processes."""

    pad: int
    pages: int
    heap_bytes: int
    hash_seed: int


def draw_launch(chance: random.Random) -> LaunchDraw:
    """Stack offset, mapping offset, heap offset and the seed of Python's hashes."""
    return LaunchDraw(
        pad=chance.randrange(0, _MAX_PAD, 16),
        pages=chance.randrange(1, _MAX_PAGES),
        heap_bytes=chance.randrange(64, _MAX_HEAP_BYTES, 16),
        hash_seed=chance.randrange(1, 2**32),
    )


def available_cores() -> int:
    """Cores this process may use."""
    return max(1, len(os.sched_getaffinity(0)))


def threads_of(variant: Variant, settings: MeasureSettings) -> int:
    """Intra-op threads: the environment's, else the study's, else every core we may use."""
    return variant.environment.threads or settings.threads or available_cores()


def launch_specs(
    groups: dict[tuple[str, str], list[Variant]],
    settings: MeasureSettings,
    draw: LaunchDraw,
    cache: Path,
    working_folder: Path,
) -> dict[tuple[str, str], LaunchSpec]:
    """One specification per process, padded so that all environments have one size."""
    paired = settings.paired_layout and len(groups) > 1
    variables = {
        key: _variables(variants[0], settings, draw, cache.joinpath(*key))
        for key, variants in groups.items()
    }
    sizes = {key: _size_bytes(variants[0], variables[key]) for key, variants in groups.items()}
    largest = max(sizes.values())
    specs: dict[tuple[str, str], LaunchSpec] = {}
    for key, variants in groups.items():
        variant = variants[0]
        pad = draw.pad + largest - sizes[key] if paired else 0
        extra = ((_PAD_NAME, "." * pad),) if paired else ()
        specs[key] = LaunchSpec(
            name="+".join(key),
            python=variant.target.python,
            variables=(*variables[key], *extra),
            preload=variant.environment.preload,
            randomize_addresses=not paired,
            memory_limit_bytes=settings.memory_limit_bytes,
            start_limit_s=settings.start_limit_s,
            arguments=(f"--layout={draw.pages},{draw.heap_bytes}",) if paired else (),
            working_folder=str(working_folder),
            stopped_between=len(groups) > 1 and variant.environment.spins,
        )
    return specs


def _variables(
    variant: Variant, settings: MeasureSettings, draw: LaunchDraw, cache: Path
) -> tuple[tuple[str, str], ...]:
    threads = str(threads_of(variant, settings))
    found = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONHASHSEED": str(draw.hash_seed),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    found.update(variant.target.variables)
    found.update(variant.environment.variables)
    return tuple(sorted(found.items()))


def _size_bytes(variant: Variant, variables: tuple[tuple[str, str], ...]) -> int:
    """Bytes that the process's stack starts with and that differ between sides."""
    named = sum(len(name) + len(value) + 2 for name, value in variables)
    preload = ""
    if variant.environment.preload:
        names = [str(Path(library).absolute()) for library in variant.environment.preload]
        others = [value for name, value in variables if name == "LD_PRELOAD" and value]
        preload = ":".join(names) + (":" if others else "LD_PRELOAD==")
    return named + 2 * len(_path_of(variant.target.python)) + len(preload)


def _path_of(python: str) -> str:
    """The interpreter as it is started: its path stands twice on the stack."""
    if "/" in python:
        return str(Path(python).expanduser().absolute())
    return shutil.which(python) or python
