"""Two processes that run the same code differ: by how much, and what reduces it.

Each launch is a fresh pair of processes of one interpreter, compared with each other: the true
ratio is 1, so the standard deviation between launches is the error that one launch makes. The ways
to place memory are taken in turn, launch by launch, so that drift of the machine hits all alike.

    python benchmarks/placement.py --launches 12 --workload kernels/layered-mlp:inference

Prints one row per way: the deviation between launches with its 90 % interval, the deviation of pairs
inside a launch, how many launches the way needs relative to the first for the same interval, the mean
over all launches with its standard error, and for forked launches the mean of each template.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from torchyard.bench.launch import LaunchDraw, LaunchProcesses, draw_launch
from torchyard.bench.launch_templates import LaunchTemplates
from torchyard.bench.preparation import PreparationState, warm_up
from torchyard.bench.rounds import run_rounds
from torchyard.core.block import Block
from torchyard.core.study import Environment, MeasureSettings, Target, Variant, Workload
from torchyard.machine.guards.gpu_guard import GpuGuard
from torchyard.process.templates import TemplatePool
from torchyard.stats.pairs import pair_blocks

WAYS: dict[str, tuple[bool, str, bool, int]] = {
    # name: (paired layout, re-seating, draw a new layout for each launch, number of templates)
    "kernel randomises, data stays": (False, "off", True, 0),
    "kernel randomises, fresh pages": (False, "pages", True, 0),
    "one frozen layout, data stays": (True, "off", False, 0),
    "paired layout, data stays": (True, "off", True, 0),
    "paired layout, fresh pages": (True, "pages", True, 0),
    "paired layout, fresh heap": (True, "heap", True, 0),
    "fork of 1 template, data stays": (True, "off", True, 1),
    "fork of 3 templates, data stays": (True, "off", True, 3),
    "fork of 1 template, fresh pages": (True, "pages", True, 1),
    "fork of 3 templates, fresh pages": (True, "pages", True, 3),
}
FROZEN = LaunchDraw(pad=0, pages=1, heap_bytes=64, hash_seed=1)


def variants(python: str, backend: str, *, one_process: bool) -> list[Variant]:
    """Two equal variants, by default with different environments: each has templates of its own."""
    target = Target(name="here", python=python)
    return [
        Variant(
            name=name,
            target=target,
            backend=backend,
            environment=Environment(name="default")
            if one_process
            else Environment(name=name, variables=(("PLACEMENT", name),)),
        )
        for name in ("one", "two")
    ]


def one_launch(
    workload: Workload,
    settings: MeasureSettings,
    pair: list[Variant],
    prepared: PreparationState,
    draw: LaunchDraw,
    seconds: float,
    chance: random.Random,
    scratch: Path,
    templates: LaunchTemplates | None,
    number: int,
) -> list[float]:
    """The paired log ratios of one launch."""
    blocks: list[Block] = []
    logs = scratch / f"logs-{time.monotonic_ns()}"
    logs.mkdir()
    with LaunchProcesses(
        workload,
        pair,
        settings,
        draw=draw,
        log_folder=logs,
        scratch=scratch,
        templates=templates,
        number=number,
    ) as crew:
        reasons = {reason for reason in crew.not_forked.values() if reason}
        if reasons:
            sys.exit(f"not forked: {reasons}")
        for variant in crew.variants:
            warm_up(crew, variant, prepared)
        run_rounds(
            crew,
            prepared,
            launch=0,
            seconds=seconds,
            min_rounds=6,
            chance=chance,
            gpu=GpuGuard(workload.device),
            on_round=blocks.extend,
        )
    paired = pair_blocks(blocks, pair[0].name, pair[1].name)
    return list(paired.medians[0]) if paired.medians else []


def deviation_interval(values: list[float]) -> tuple[float, float, float]:
    """Standard deviation with a 90 % interval by the bootstrap."""
    chance = random.Random(1)
    deviation = statistics.stdev(values)
    again = sorted(statistics.stdev(chance.choices(values, k=len(values))) for _ in range(2000))
    return deviation, again[100], again[1899]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--launches", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workload", action="append", default=[])
    parser.add_argument("--ways", default="", help="numbers of ways, such as 0,1,4; all if empty")
    parser.add_argument("--one-process", action="store_true", help="both variants in one process")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    chance = random.Random(20)
    pair = variants(sys.executable, options.backend, one_process=options.one_process)
    chosen = list(WAYS.items())
    if options.ways:
        chosen = [chosen[int(number)] for number in options.ways.split(",")]
    kept: dict[str, dict[str, list[list[float]]]] = {}
    for text in options.workload or ["kernels/layered-mlp:inference"]:
        name, _, mode = text.partition(":")
        suite, _, short = name.partition("/")
        workload = Workload(
            suite=suite,
            name=short,
            mode="training" if mode == "training" else "inference",
            device=options.device,
        )
        prepared = PreparationState()
        rows: dict[str, list[list[float]]] = {way: [] for way, _ in chosen}
        with tempfile.TemporaryDirectory(prefix="torchyard-") as folder, TemplatePool() as pool:
            for number in range(options.launches):
                chance.shuffle(chosen)
                for way, (paired, reseat, draws, templates) in chosen:
                    settings = replace(
                        MeasureSettings(),
                        threads=options.threads,
                        paired_layout=paired,
                        reseat=reseat,  # type: ignore[arg-type]
                    )
                    draw = draw_launch(chance) if draws else FROZEN
                    pairs = one_launch(
                        workload,
                        settings,
                        pair,
                        prepared,
                        draw,
                        options.seconds,
                        chance,
                        Path(folder),
                        LaunchTemplates(pool, settings) if templates else None,
                        number % max(1, templates),
                    )
                    if pairs:
                        rows[way].append(pairs)
        kept[text] = rows
        report(text, rows, options.threads)
        if options.json:
            Path(options.json).write_text(json.dumps(kept))


def report(text: str, rows: dict[str, list[list[float]]], threads: int) -> None:
    print(f"\n{text}, {threads} thread(s)")
    print(
        f"{'way':34} {'launches':>8} {'SD between launches':>26} {'pair SD':>8} {'cost':>6}"
        f" {'mean (truth: 0)':>18} {'means by template':>18}"
    )
    first = None
    for way in WAYS:
        launches = rows.get(way, [])
        if len(launches) < 3:
            continue
        medians = [statistics.median(pairs) for pairs in launches]
        deviation, low, high = deviation_interval(medians)
        inside = [
            1.4826 * statistics.median(abs(p - statistics.median(pairs)) for p in pairs)
            for pairs in launches
        ]
        first = first or deviation
        print(
            f"{way:34} {len(launches):8d} {deviation:9.2%} [{low:6.2%},{high:7.2%}]"
            f" {math.sqrt(statistics.fmean(s * s for s in inside)):8.2%}"
            f" {(deviation / first) ** 2:6.2f}"
            f" {statistics.fmean(medians):+9.2%} ± {deviation / math.sqrt(len(medians)):.2%}"
            + "".join(
                f" {statistics.fmean(medians[template :: WAYS[way][3]]):+.2%}"
                for template in range(min(WAYS[way][3], len(medians)))
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
