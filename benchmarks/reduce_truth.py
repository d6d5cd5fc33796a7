"""How often `torchyard reduce` finds a planted operator, on random models.

Run as `python -m benchmarks.reduce_truth [MODELS [FIRST_SEED [EFFECT]]]`. Each model is a chain of 12 random
operators, one of which differs in the candidate, a backend that runs the graph operator by operator: it takes 0.5 to
3 ms longer (`slow`), has wrong results (`wrong`), or allocates 1 MB (`memory`). By default there are also a quarter
as many models of the last two effects. `layered-slow`, `layered-wrong` and `layered-memory` are models of repeated
modules with residual connections, branches, views, strides, bfloat16 and in-place operators; the operator is in the
modules, after them, or there is one in each place, and takes 0.5 to 1 ms longer.
A reduction is right if at most 3 operators remain and a planted one is among them. All models run in
this process; dimensions are not shortened.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tests.reduce.planted_model import layered_model_text, model_text
from torchyard.core.records import encode
from torchyard.core.study import FILE_SUITE, Workload
from torchyard.errors import TorchyardError
from torchyard.reduce.model import Metric
from torchyard.reduce.search import ReductionSearch, Round, Sizes
from torchyard.worker.bench.service import WorkerService
from torchyard.worker.reduce.service import ReductionService

MOST_LEFT = 3
SECONDS = 1800.0
METRICS: dict[str, Metric] = {"slow": "time", "wrong": "wrong", "memory": "memory"}


def reduce_one(seed: int, effect: str) -> tuple[bool, str]:
    """Return whether the reduction of a model is right, and a line about it."""
    layers, _, effect = effect.rpartition("-")
    # A backend is registered once in a process.
    backend = f"planted_{layers}_{effect}_{seed}"
    planted: Sequence[str]
    if layers:
        text, planted = layered_model_text(seed, effect, backend=backend)
    else:
        text, *planted = model_text(seed, effect, backend=backend)
    metric = METRICS[effect]
    started_s = time.process_time()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.py"
        path.write_text(text, encoding="utf-8")
        service = WorkerService()
        variants = [
            {"name": name, "backend": compiler, "precision": "float32", "options": [], "file": ""}
            for name, compiler in (("eager", "eager"), ("planted", f"dynamo:{backend}"))
        ]
        workload = Workload(suite=FILE_SUITE, name=f"{path}:net")
        service.build(workload=encode(workload), variants=variants, seed=seed)
        reduction = ReductionService(service)

        def measure(units: Sequence[int], sizes: Sizes, rounds: int) -> list[Round]:
            answer = reduction.measure(metric, "eager", "planted", list(units), list(sizes), rounds)
            return [(a, b, c, d) for a, b, c, d in answer["rounds"]]

        operators = reduction.capture("planted")["operators"]
        search = ReductionSearch(
            operators, measure, seconds=SECONDS, listener=lambda _: None, metric=metric
        )
        try:
            search.run(lambda _: [])
        except TorchyardError as error:
            return False, f"{seed:3} {'+'.join(planted):<12} {error.what}: {error.why}"
    names = [operators[unit].rpartition(".")[2] for unit in search.units]
    right = len(names) <= MOST_LEFT and any(one in names for one in planted)
    took_s = time.process_time() - started_s
    before = len(operators)
    return (
        right,
        f"{seed:3} {'+'.join(planted):<12} {before:3} -> {', '.join(names)}  {took_s:.0f} s CPU",
    )


def main() -> None:
    models = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    counts = {"slow": models, "wrong": max(5, models // 4), "memory": max(5, models // 4)}
    if len(sys.argv) > 3:
        counts = {sys.argv[3]: models}
    torch.set_num_threads(1)
    for effect, count in counts.items():
        right = 0
        for seed in range(first, first + count):
            is_right, line = reduce_one(seed, effect)
            right += is_right
            print(f"{'found' if is_right else 'lost '} {effect:<6} {line}", flush=True)
        print(
            f"{effect}: {right} of {count} models: at most {MOST_LEFT} operators with a planted one",
            flush=True,
        )


if __name__ == "__main__":
    main()
