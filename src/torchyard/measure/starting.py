"""How the processes of a launch are started: threads, caches, and one layout for all sides.

Threads are fixed in the environment before torch is imported: `torch.set_num_threads(1)` alone was
seen to leave a second busy BLAS thread. With a paired layout, kernel address randomisation is off
and Torchyard draws the start positions itself, the same for every side of a launch and new for each
launch: what both sides share of the layout cancels in the pair, what it costs on average does not.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from torchyard.core.processor_lists import cpu_list
from torchyard.core.study import MeasureSettings
from torchyard.core.variant import Environment, Variant
from torchyard.machine.own_cores import cores_of
from torchyard.process.launch import LaunchSpec
from torchyard.worker.placement import CORES, MEMORY

__all__ = ["LaunchDraw", "draw_launch", "launch_specs", "threads_of"]

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


def threads_of(variant: Variant, settings: MeasureSettings) -> int:
    """Intra-op threads: the environment's, else the study's, else one for every core of a process."""
    environment = variant.environment
    if environment.instances > 1:  # the study's number is for one process
        return environment.threads or len(cores_of(environment)[0])
    return environment.threads or settings.threads or len(cores_of(environment)[0])


def launch_specs(
    groups: dict[tuple[str, str], list[Variant]],
    settings: MeasureSettings,
    draw: LaunchDraw,
    cache: Path,
    working_folder: Path,
) -> dict[tuple[str, str], list[LaunchSpec]]:
    """One specification per process, padded so that all environments have one size.

    A key has as many as its environment has instances.
    """
    paired = settings.paired_layout and len(groups) > 1
    variables = {
        key: _variables(variants[0], settings, draw, cache.joinpath(*key))
        for key, variants in groups.items()
    }
    sizes = {key: _size_bytes(variants[0], variables[key]) for key, variants in groups.items()}
    largest = max(sizes.values())
    specs: dict[tuple[str, str], list[LaunchSpec]] = {}
    for key, variants in groups.items():
        variant = variants[0]
        pad = draw.pad + largest - sizes[key] if paired else 0
        extra = ((_PAD_NAME, "." * pad),) if paired else ()
        one = LaunchSpec(
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
        specs[key] = [_placed(one, variant.environment, part) for part in _parts(variant)]
    return specs


def _parts(variant: Variant) -> range:
    return range(variant.environment.instances)


def _placed(spec: LaunchSpec, environment: Environment, part: int) -> LaunchSpec:
    """The specification of one instance, on its own cores."""
    if environment.instances == 1:
        return spec
    placed = dict(spec.variables) | _placement(environment, part)
    return replace(spec, name=f"{spec.name}-{part + 1}", variables=tuple(placed.items()))


def _placement(environment: Environment, part: int = 0) -> dict[str, str]:
    found = {}
    if environment.instances > 1 or environment.cores:
        found[CORES] = cpu_list(cores_of(environment)[part])
    if environment.memory:
        found[MEMORY] = environment.memory
    return found


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
    found.update(_placement(variant.environment))
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
