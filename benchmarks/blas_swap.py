"""The same numpy product with the BLAS it came with and with a library built here, in turns.

The library is put before numpy's own by LD_PRELOAD, so the numpy must take its BLAS from a shared
library (Debian's does; wheels from an index bring their own copy inside).

    torchyard build openblas --set source.use=debian --name blas
    python benchmarks/blas_swap.py ~/.local/share/torchyard/builds/blas/prefix/lib/libopenblas.so
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from pathlib import Path

PROGRAM = """
import json, sys, time
import numpy
size, count = int(sys.argv[1]), int(sys.argv[2])
a = numpy.random.default_rng(0).standard_normal((size, size), dtype=numpy.float32)
a @ a
begin = time.perf_counter()
for _ in range(count):
    c = a @ a
wall = time.perf_counter() - begin
used = sorted({line.split()[-1] for line in open("/proc/self/maps") if "blas" in line})
print(json.dumps({"seconds": wall / count, "sum": float(c.sum()), "used": used}))
"""


def run(python: str, size: int, count: int, preload: str) -> tuple[float, float, list[str]]:
    variables = {**os.environ, "LD_PRELOAD": preload} if preload else dict(os.environ)
    ended = subprocess.run(
        [python, "-c", PROGRAM, str(size), str(count)],
        env=variables,
        check=True,
        capture_output=True,
        text=True,
    )
    answer = json.loads(ended.stdout)
    return answer["seconds"], answer["sum"], answer["used"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--python", default="/usr/bin/python3")
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    library = str(options.library.resolve())
    times: dict[str, list[float]] = {"its own": [], "built": []}
    sums: dict[str, float] = {}
    for number in range(options.rounds):
        order = [("its own", ""), ("built", library)]
        for word, preload in order if number % 2 == 0 else reversed(order):
            seconds, total, used = run(options.python, options.size, options.count, preload)
            times[word].append(seconds)
            sums[word] = total
            if number == 0:
                print(f"{word}: {', '.join(Path(path).name for path in used)}")
    ratios = sorted(own / ours for own, ours in zip(times["its own"], times["built"], strict=True))
    flop = 2 * options.size**3
    for word, found in times.items():
        middle = statistics.median(found)
        print(f"{word:<8} {middle * 1e3:8.1f} ms, {flop / middle / 1e9:6.1f} GFLOP/s")
    print(
        f"the built library is {statistics.median(ratios):.2f} times as fast "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f} over {len(ratios)} pairs)"
    )
    difference = abs(sums["built"] - sums["its own"]) / max(abs(sums["its own"]), 1.0)
    print(f"sums of the product differ by {difference:.1e} of their size")


if __name__ == "__main__":
    main()
