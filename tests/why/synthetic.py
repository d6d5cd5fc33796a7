"""Synthetic rounds of two variants with known contributions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from torchyard.why.model import MeasuredRound, MeasuredSide, OperatorRow, Source


def source(module: str, operator: str, *, line: int = 1, file: str = "/code/model.py") -> Source:
    return Source(
        phase="forward",
        module=module,
        kind="Linear",
        file=file,
        line=line,
        text=f"line {line}",
        operator=operator,
    )


def row(name: str, *sources: Source, us: float = 1.0) -> OperatorRow:
    return OperatorRow(name=name, sources=sources, duration_ns=1e3 * us, calls=1.0)


def with_profiler(
    measured: list[MeasuredRound],
    *,
    sd: float,
    bias: float = 1.0,
    events: float = 60.0,
    seed: int = 1,
) -> list[MeasuredRound]:
    """Give profiled blocks their own noise, a cost of 1.5 us for each event, and the candidate a bias."""
    chance = random.Random(seed)

    def profiled(side: MeasuredSide, factor: float) -> MeasuredSide:
        return replace(
            side,
            instrumented_ns=side.plain_ns * factor + 1500.0 * events,
            events=events,
            rows=tuple(replace(one, duration_ns=one.duration_ns * factor) for one in side.rows),
        )

    return [
        replace(
            one,
            baseline=profiled(one.baseline, chance.gauss(1.0, sd)),
            candidate=profiled(one.candidate, bias * chance.gauss(1.0, sd)),
        )
        for one in measured
    ]


def rounds(
    baseline: Mapping[Source, float],
    candidate: Mapping[Source, float],
    *,
    host_us: tuple[float, float] = (50.0, 50.0),
    launches: int = 6,
    count: int = 5,
    launch_sd: float = 0.01,
    round_sd: float = 0.01,
    seed: int = 1,
) -> list[MeasuredRound]:
    """Return rounds in which operators take these times in us, with noise of launches and rounds."""
    chance = random.Random(seed)
    result = []
    for launch in range(launches):
        own = {one: chance.gauss(1.0, launch_sd) for one in {**baseline, **candidate}}
        for _ in range(count):
            sides = []
            for times, host in ((baseline, host_us[0]), (candidate, host_us[1])):
                rows = tuple(
                    row(one.operator, one, us=us * own[one] * chance.gauss(1.0, round_sd))
                    for one, us in times.items()
                )
                plain_ns = sum(one.duration_ns for one in rows) + 1e3 * host
                plain_ns *= chance.gauss(1.0, round_sd / 3)
                sides.append(
                    MeasuredSide(
                        plain_ns=plain_ns, instrumented_ns=plain_ns + 2e4, events=0.0, rows=rows
                    )
                )
            result.append(MeasuredRound(launch=launch, baseline=sides[0], candidate=sides[1]))
    return result
