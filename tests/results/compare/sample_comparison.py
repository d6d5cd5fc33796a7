"""A comparison of two runs and a gate outcome with every field set."""

from __future__ import annotations

from dataclasses import replace

from torchyard.core.comparison import Interval, Verdict
from torchyard.results.compare.model import (
    CrossComparison,
    CrossMean,
    CrossRow,
    CrossSide,
    FactDifference,
    SideNumbers,
    Unpaired,
)
from torchyard.results.gate.model import GateOutcome, GateRow, Policy

ONE = CrossSide(
    text="baseline:main",
    runs=("20250101T030405.678Z-1a2b", "20250102T030405.678Z-3c4d"),
    variants=("inductor",),
    started="2025-01-02T03:04:05.678Z",
    machine="example-9000-8c-1f3a",
    machine_text="yard: Example 9000, 8 cores",
    torch="2.9.0",
    revision="0123456789abcdef0123456789abcdef01234567",
)
OTHER = replace(
    ONE,
    text="latest",
    runs=("20250103T030405.678Z-5e6f",),
    started="2025-01-03T03:04:05.678Z",
    torch="2.10.0",
    revision="fedcba9876543210fedcba9876543210fedcba98",
)


def side(time_ns: float, speedup: float, **changes: object) -> SideNumbers:
    numbers = SideNumbers(
        variant="inductor",
        baseline="eager",
        time_ns=time_ns,
        speedup=speedup,
        interval=Interval(low=speedup * 0.99, high=speedup * 1.01),
        launches=12,
        baseline_ns=time_ns * speedup,
        compile_s=21.5,
        memory_bytes=412 * 2**20,
        dirty_share=0.04,
    )
    return replace(numbers, **changes)  # type: ignore[arg-type]


def supported(label: str, verdict: Verdict, ratio: float, half: float, p: float) -> CrossRow:
    return CrossRow(
        workload=label,
        one=side(9.13e6, 1.352, sessions=2, interval=None),
        other=side(9.13e6 / ratio * 1.03, 1.352 * ratio),
        support="common baseline",
        basis="speedups",
        alike=True,
        verdict=verdict,
        ratio=ratio,
        interval=Interval(low=ratio * (1 - half), high=ratio * (1 + half)),
        p_value=p,
        p_adjusted=min(1.0, 2 * p),
        log_error=half / 2,
        degrees=18.5,
    )


ROWS = (
    supported("kernels/matmul inference size=1000", Verdict.SLOWER, 0.934, 0.012, 0.0002),
    supported("kernels/embedding training", Verdict.SAME, 1.001, 0.006, 0.61),
    replace(
        supported("models/resnet inference b8", Verdict.UNDECIDED, 1.021, 0.03, 0.18),
        reasons=("excluded as untrusted: noisy machine: 9 of 10 pairs were disturbed (A)",),
    ),
    CrossRow(
        workload="models/lstm inference",
        one=side(9e6, 1.31),
        other=side(7e6, 1.62, trusted=False),
        support="not supported",
        basis="speedups",
        alike=True,
        verdict=Verdict.UNTRUSTED,
        ratio=1.62 / 1.31,
        untrusted=("noisy machine: 9 of 10 pairs were disturbed (B)",),
    ),
    CrossRow(
        workload="models/gpt training +step",
        one=side(88e6, 1.81),
        other=side(61e6, 1.79, launches=1),
        support="not supported",
        basis="times",
        ratio=88 / 61,
        reasons=(
            "not comparable: baseline differs in torch (2.9.0 vs 2.10.0), torch git (1a2b vs 3c4d)",
            "one launch does not show the process-to-process variation (B)",
        ),
    ),
)
TWO_RUNS = CrossComparison(
    one=ONE,
    other=OTHER,
    rows=ROWS,
    unpaired=(
        Unpaired(
            workload="models/lstm inference cuda",
            variants=("inductor", "inductor"),
            one="measured",
            other="failed",
            why="failed in latest: out-of-memory (killed by the kernel at 7.6 GiB)",
        ),
        Unpaired(
            workload="models/unet inference",
            variants=("inductor", "inductor"),
            one="absent",
            other="measured",
        ),
    ),
    facts=(
        FactDifference(name="governor", one="performance", other="powersave", blocks=True),
        FactDifference(name="candidate torch", one="2.9.0", other="2.10.0"),
        FactDifference(name="candidate variables", one="", other="TORCHINDUCTOR_FREEZING=1"),
        FactDifference(name="disturbed blocks", one="4%", other="21%"),
        FactDifference(name="host", one="yard", other="shed"),
    ),
    mean=CrossMean(ratio=0.984, interval=Interval(low=0.969, high=1.0), rows=3),
    confidence=0.95,
    margin=0.01,
    session_sd=0.005,
)
OUTCOME = GateOutcome(
    metric="speedup",
    one=ONE,
    other=OTHER,
    rows=(
        GateRow(
            workload="kernels/matmul inference size=1000",
            variants=("inductor", "inductor"),
            standing="crossed",
            action="fail",
            max_slowdown=0.02,
            slowdown=0.071,
            low=0.058,
            high=0.084,
            p_crossed=1e-6,
            support="common baseline",
        ),
        GateRow(
            workload="models/lstm inference cuda",
            variants=("inductor", "inductor"),
            standing="failing",
            action="fail",
            max_slowdown=0.05,
            why=("failed in latest: out-of-memory (killed by the kernel at 7.6 GiB)",),
        ),
        GateRow(
            workload="models/gpt training +step",
            variants=("inductor", "inductor"),
            standing="unsupported",
            action="fail",
            max_slowdown=0.05,
            slowdown=-0.31,
            support="not supported",
            why=("not comparable: baseline differs in torch (2.9.0 vs 2.10.0)",),
        ),
        GateRow(
            workload="models/lstm inference",
            variants=("inductor", "inductor"),
            standing="untrusted",
            action="untrusted",
            max_slowdown=0.02,
            slowdown=-0.19,
            support="not supported",
            why=("noisy machine: 9 of 10 pairs were disturbed (B)",),
        ),
        GateRow(
            workload="models/resnet inference b8",
            variants=("inductor", "inductor"),
            standing="undecided",
            action="warn",
            max_slowdown=0.02,
            slowdown=-0.02,
            low=-0.05,
            high=0.03,
            support="common baseline",
        ),
        GateRow(
            workload="kernels/embedding training",
            variants=("inductor", "inductor"),
            standing="kept",
            action="pass",
            max_slowdown=0.02,
            slowdown=-0.001,
            low=-0.007,
            high=0.005,
            support="common baseline",
        ),
        GateRow(
            workload="models/unet inference",
            variants=("inductor", "inductor"),
            standing="new",
            action="pass",
        ),
    ),
    facts=TWO_RUNS.facts,
    policy=Policy(),
    confidence=0.95,
)

HOSTILE = "</td><script>alert(1)</script>|`x`<img src=x onerror=alert(2)>@everyone\x1b[31m\n=1+1"


def hostile_comparison() -> CrossComparison:
    """The same with markup wherever a name, a reason or a fact can be."""
    return replace(
        TWO_RUNS,
        one=replace(ONE, text=HOSTILE, variants=(HOSTILE, "two"), revision=HOSTILE, torch=HOSTILE),
        rows=tuple(
            replace(
                row, workload=HOSTILE, reasons=(HOSTILE,), one=replace(row.one, variant=HOSTILE)
            )
            for row in ROWS
        ),
        unpaired=tuple(replace(item, workload=HOSTILE, why=HOSTILE) for item in TWO_RUNS.unpaired),
        facts=(FactDifference(name=HOSTILE, one=HOSTILE, other=HOSTILE, blocks=True),),
    )


def hostile_outcome() -> GateOutcome:
    """A gate over hostile names."""
    comparison = hostile_comparison()
    return replace(
        OUTCOME,
        one=comparison.one,
        rows=tuple(replace(row, workload=HOSTILE, why=(HOSTILE,)) for row in OUTCOME.rows),
        facts=comparison.facts,
    )
