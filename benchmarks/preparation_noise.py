"""Whether cells that prepare on other cores disturb the one that is timed on reserved cores.

    python benchmarks/preparation_noise.py
    python benchmarks/preparation_noise.py --device cuda --workload torchvision/resnet18 --launches 6

Each launch times the same eager code twice (A and B) on the cores that a sweep would reserve. On the other
cores, processes compile with Inductor and g++ without caches, as preparing cells do. Rounds alternate in
random order between these processes running and stopped. Prints for each workload, with 95 % intervals
over launches: the time of a block with preparation relative to one without, and the ratio of A to B in both
cases. All should be 1. Prints why and stops where a sweep would reserve no cores.

Preparation here uses the CPU only: in a sweep, too, no other cell uses the device while one is timed.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from torchyard.bench.launch import LaunchProcesses, draw_launch
from torchyard.bench.preparation import PreparationState, warm_up
from torchyard.core.cpu_lists import cpu_list
from torchyard.core.study import MeasureSettings, Study, Target, Variant, Workload
from torchyard.machine.system.core_reservation import CoreReservation, reserve_cores
from torchyard.process.timing_turn import RESERVED_VARIABLE
from torchyard.process.tree import confined
from torchyard.process.worker_process import move_workers
from torchyard.stats.distributions import two_sided_critical

HERE = Target(name="here", python=sys.executable)
A, B = Variant(name="a", target=HERE), Variant(name="b", target=HERE)
DEFAULTS = {
    "cpu": ("kernels/layer-norm", "kernels/layered-mlp", "models/gpt"),
    "cuda": ("models/gpt", "models/resnet", "kernels/layer-norm"),
}
SETTLE_S = 0.3
"""Wait after preparing processes are stopped or continued."""
COMPILING = """
import itertools, os, sys, torch
torch.set_num_threads(1)
for number in itertools.count(1):
    torch._dynamo.reset()
    def function(x, k=float(number)):
        return torch.nn.functional.gelu(torch.layer_norm(x @ x, (64,)) * k).sin().sum(0) / (k + 1)
    torch.compile(function)(torch.randn(64, 64, requires_grad=True)).sum().backward()
    with open(sys.argv[1], "w") as file:
        file.write(str(number))
"""


class Preparation:
    """Processes that compile on their own cores, each the leader of its process group."""

    def __init__(self, count: int, folder: Path) -> None:
        variables = {
            "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        self._counts = [folder / f"compiled-{number}" for number in range(count)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", COMPILING, str(path)],
                env={**os.environ, **variables, "TORCHINDUCTOR_CACHE_DIR": f"{path}-cache"},
                start_new_session=True,
                stderr=subprocess.DEVNULL,
            )
            for path in self._counts
        ]

    def wait(self) -> None:
        """Wait until each process has compiled once."""
        while not all(path.exists() for path in self._counts):
            if any(process.poll() is not None for process in self._processes):
                sys.exit("a compiling process ended: does torch.compile work here?")
            time.sleep(0.2)

    def run(self, running: bool) -> None:
        """Continue or stop all of them."""
        self._signal(signal.SIGCONT if running else signal.SIGSTOP)
        time.sleep(SETTLE_S)

    def compiled(self) -> int:
        """Return the number of compilations so far."""
        return sum(int(path.read_text() or 0) for path in self._counts)

    def end(self) -> None:
        """Kill all of them."""
        self._signal(signal.SIGKILL)
        for process in self._processes:
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, number)


@contextmanager
def preparation(count: int) -> Iterator[Preparation]:
    with tempfile.TemporaryDirectory(prefix="torchyard-") as folder:
        others = Preparation(count, Path(folder))
        try:
            others.wait()
            yield others
        finally:
            others.end()


def launch(
    workload: Workload, cores: CoreReservation, others: Preparation, rounds: int, seed: int
) -> tuple[float, float, float]:
    """Return the logarithms of: time with by time without preparation, A by B with it, and without."""
    chance, prepared = random.Random(seed), PreparationState()
    times: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    others.run(False)
    with tempfile.TemporaryDirectory(prefix="torchyard-") as text:
        folder = Path(text)
        with LaunchProcesses(
            workload,
            [A, B],
            MeasureSettings(),
            draw=draw_launch(chance),
            log_folder=folder,
            scratch=folder,
        ) as processes:
            move_workers(cores.timed)
            for variant in (A, B):
                warm_up(processes, variant, prepared)
            for _ in range(rounds):
                for running in chance.sample((True, False), 2):
                    others.run(running)
                    order = chance.sample((A, B), 2)
                    taken = {one.name: _block_ns(processes, one, prepared) for one in order}
                    times[running].append((taken["a"], taken["b"]))
    pairs = zip(times[True], times[False], strict=True)
    slowdowns = [0.5 * math.log(on[0] * on[1] / (off[0] * off[1])) for on, off in pairs]
    ratios = {one: [math.log(a / b) for a, b in pairs] for one, pairs in times.items()}
    return (
        statistics.median(slowdowns),
        statistics.median(ratios[True]),
        statistics.median(ratios[False]),
    )


def _block_ns(processes: LaunchProcesses, variant: Variant, prepared: PreparationState) -> float:
    plan = prepared.plans[variant.name]
    answer = processes.ask(
        variant,
        "block",
        phase="timing",
        variant=variant.name,
        inner=plan.inner,
        samples=plan.samples,
        prime=plan.prime,
        settle=False,
        flush_l2=False,
    )
    return float(statistics.median(answer["samples_ns"]))


def interval(logs: Sequence[float]) -> str:
    """Return the geometric mean with a 95 % interval by Student's t over launches."""
    mean = statistics.mean(logs)
    if len(logs) == 1:
        return f"{math.exp(mean):.4f} [one launch]"
    half = statistics.stdev(logs) / math.sqrt(len(logs)) * two_sided_critical(0.05, len(logs) - 1)
    return f"{math.exp(mean):.4f} [{math.exp(mean - half):.4f}, {math.exp(mean + half):.4f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workload", action="append", default=[], metavar="SUITE/NAME")
    parser.add_argument("--launches", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=12, help="rounds of a launch")
    parser.add_argument("--preparing", type=int, default=5, help="processes that compile")
    parser.add_argument("--reserve-cores", type=int, help="[default: as a sweep on a GPU]")
    options = parser.parse_args()
    # The rule of a GPU sweep also for CPU workloads, which a sweep confines only on request.
    study = Study(
        name="rule",
        baseline=A,
        candidates=(B,),
        workloads=(Workload(suite="models", name="gpt", device="cuda"),),
    )
    cores = reserve_cores([study], at_most=2, requested=options.reserve_cores)
    if not cores.timed:
        print(f"skipped: {cores.why_not}")
        return
    os.environ[RESERVED_VARIABLE] = cpu_list(cores.timed)  # threads of the timed processes
    print(f"{cores.text}; {options.preparing} processes compile", flush=True)
    print("| workload | with / without preparation | A / B with | A / B without | compilations |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    with confined(cores.preparing), preparation(options.preparing) as others:
        for name in options.workload or DEFAULTS[options.device.partition(":")[0]]:
            suite, _, model = name.partition("/")
            workload = Workload(suite=suite, name=model, device=options.device)
            before = others.compiled()
            logs = [
                launch(workload, cores, others, options.rounds, seed)
                for seed in range(options.launches)
            ]
            shown = [interval(column) for column in zip(*logs, strict=True)]
            compiled = others.compiled() - before
            print("| " + " | ".join([name, *shown, str(compiled)]) + " |", flush=True)


if __name__ == "__main__":
    main()
