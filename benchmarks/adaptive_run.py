"""One workload as Torchyard measures it, in a process of its own, with what each part cost. Started by `sweep_cost.py`.

A sweep's cell is an ordinary bench run; this is one, with a listener that notes the clock and the CPU
time of all processes when preparing ends and measuring begins.

    python benchmarks/adaptive_run.py REQUEST.json ANSWER.json
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from torchyard.bench.bench_run import run_bench
from torchyard.core.events import Event
from torchyard.core.records import decode
from torchyard.core.study import Study


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    study = decode(Study, request["study"], where="study")
    marks: list[list[Any]] = []

    def mark(name: str) -> None:
        marks.append([name, time.time() - request["began"], cpu_s()])

    def listen(event: Event) -> None:
        if event.kind == "phase" and event.text.endswith(("starting", "measuring")):
            mark(event.text.rpartition(" ")[2])

    run_bench(study, folder=Path(request["folder"]), command=sys.argv, listener=listen)
    mark("end")
    Path(sys.argv[2]).write_text(json.dumps({"marks": marks}))


def cpu_s() -> float:
    """Of this process and all below it, those included that have ended and were waited for."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


if __name__ == "__main__":
    main()
