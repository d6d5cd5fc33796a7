"""How often are identical variants called different? A/A comparisons of generation, ranks and scripts.

    python benchmarks/identical_variants.py --repeats 40 --time 30
    python benchmarks/identical_variants.py --kind ranks --kind decode --repeats 20 --data more.jsonl

Each comparison is a whole run with its own processes and seed. The table counts false alarms (faster or
slower), intervals that exclude 1 (untrusted ones included), wrong results, and comparisons without a
verdict: untrusted on a noisy machine, or failed. With `--data`, comparisons are appended to a file, and the table includes earlier ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from torchyard.bench.bench_run import run_bench
from torchyard.core.comparison import AccuracyStatus, Verdict
from torchyard.core.events import ignore_events
from torchyard.core.study import (
    SCRIPT_FOLDER,
    SCRIPT_SUITE,
    Budget,
    MeasureSettings,
    Mode,
    Study,
    Target,
    Variant,
    Workload,
)
from torchyard.stats.suite import chance_of_at_least, wilson_interval

ALPHA: Final = 0.05
SCRIPT: Final = """\
import torch

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, goal = torch.randn(64, 256), torch.randn(64, 8)
while True:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(data), goal).backward()
    optimizer.step()
"""
GPT: Final = (("layers", 2), ("length", 64), ("width", 128))
TEXT: Final = (("generate", 8), ("layers", 2), ("prompt", 64), ("width", 128))


def _gpt(mode: Mode, **more: Any) -> Workload:
    parameters = TEXT if mode in ("prefill", "decode") else GPT
    return Workload(suite="models", name="gpt", mode=mode, parameters=parameters, **more)


WORKLOADS: Final[dict[str, Workload]] = {
    "prefill": _gpt("prefill"),
    "decode": _gpt("decode"),
    "ranks": _gpt("training", ranks=2),
    "ranks +step": _gpt("training", ranks=2, optimizer_step=True),
    "script": Workload(suite=SCRIPT_SUITE, name="", mode="training"),
}


def compare(kind: str, seed: int, time_s: float, launches: int) -> dict[str, Any]:
    """Compare a variant with itself."""
    workload = WORKLOADS[kind]
    base = Variant(
        name="base",
        target=Target(name="here", python=sys.executable),
        options=(("ddp", True),) if workload.ranks > 1 else (),
    )
    with tempfile.TemporaryDirectory(prefix="torchyard-") as name:
        folder = Path(name)
        if kind == "script":
            (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
            parameters = ((SCRIPT_FOLDER, str(folder)),)
            workload = Workload(
                suite=SCRIPT_SUITE,
                name=str(folder / "train.py"),
                mode="training",
                parameters=parameters,
            )
        study = Study(
            name=kind,
            baseline=base,
            candidates=(Variant(name="again", target=base.target, options=base.options),),
            workloads=(workload,),
            budget=Budget(time_s=time_s, min_launches=launches),
            settings=MeasureSettings(
                threads=1, seed=seed, reseat="off" if kind == "script" else "auto"
            ),
        )
        (row,) = run_bench(study, folder=folder / "run", command=[kind], listener=ignore_events)
    interval = row.estimate.interval if row.estimate else None
    return {
        "kind": kind,
        "seed": seed,
        "verdict": row.state.value,
        "wrong": row.accuracy is not None and row.accuracy.status is AccuracyStatus.FAIL,
        "interval": None if interval is None else [interval.low, interval.high],
        "failure": "" if row.failure is None else row.failure.message,
    }


def print_table(records: list[dict[str, Any]]) -> None:
    """Print one row for each kind of comparison."""
    print(
        "kind           runs  verdicts  false alarms  95 % CI of the rate   p  excluding 1  wrong  none"
    )
    for kind in dict.fromkeys(record["kind"] for record in records):
        own = [record for record in records if record["kind"] == kind]
        counts = Counter(record["verdict"] for record in own)
        none = sum(counts[state.value] for state in (Verdict.UNTRUSTED, Verdict.FAILED))
        alarms = counts[Verdict.FASTER.value] + counts[Verdict.SLOWER.value]
        judged = [record["interval"] for record in own if record["interval"]]
        outside = sum(not low <= 1.0 <= high for low, high in judged)
        wrong = sum(record["wrong"] for record in own)
        total = len(own) - none
        rate = wilson_interval(alarms, total) if total else None
        limits = "-" if rate is None else f"[{rate.low:.1%}, {rate.high:.1%}]"
        chance = f"{chance_of_at_least(alarms, total, ALPHA):.2f}" if total else "-"
        print(
            f"{kind:13} {len(own):5} {total:9} {alarms:13}  {limits:>19} {chance:>5}"
            f" {outside:8}/{len(judged):<3} {wrong:5} {none:5}"
        )
    for record in records:
        if record["failure"]:
            print(f"{record['kind']}, seed {record['seed']}: {record['failure']}")


def main() -> None:
    """Run the comparisons and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", action="append", choices=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=20, help="comparisons of each kind")
    parser.add_argument("--time", type=float, default=30.0, help="seconds of each comparison")
    parser.add_argument("--launches", type=int, default=3, help="fewest launches of a comparison")
    parser.add_argument("--data", type=Path, help="file that comparisons are appended to")
    options = parser.parse_args()
    records: list[dict[str, Any]] = []
    if options.data is not None and options.data.exists():
        records = [json.loads(line) for line in options.data.open(encoding="utf-8")]
    first = len(records)
    for repeat in range(options.repeats):
        for kind in options.kind or WORKLOADS:
            record = compare(kind, first + repeat + 1, options.time, options.launches)
            records.append(record)
            print(kind, record["verdict"], record["interval"], file=sys.stderr, flush=True)
            if options.data is not None:
                with options.data.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
    print_table(records)


if __name__ == "__main__":
    main()
