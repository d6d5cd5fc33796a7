"""How much CPU `torchyard --help` costs, as a multiple of starting Python.

    python benchmarks/startup.py [REPEATS]

Each command is started REPEATS times in turn (user + system time of the child; the minimum counts,
because noise only adds). The goal is a ratio of at most 2.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

GOAL = 2.0


def cpu_s(argv: list[str]) -> float:
    """CPU time of one child."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, env=_environment())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def measure(repeats: int) -> dict[str, float]:
    """The smallest CPU time of each command."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -m torchyard --help": [sys.executable, "-m", "torchyard", "--help"],
        "torchyard --help": [_script(), "--help"],
        "torchyard bench --help": [_script(), "bench", "--help"],
    }
    best = dict.fromkeys(commands, float("inf"))
    for _ in range(repeats):
        for name, argv in commands.items():
            best[name] = min(best[name], cpu_s(argv))
    return best


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    best = measure(repeats)
    bare = best["python -c pass"]
    for name, duration_s in best.items():
        print(f"{name:<28} {duration_s * 1e3:6.1f} ms   {duration_s / bare:4.2f} x")
    ratio = best["torchyard --help"] / bare
    print(f"ratio {ratio:.2f}, goal {GOAL:.1f}: {'met' if ratio <= GOAL else 'missed'}")


def _script() -> str:
    beside = Path(sys.executable).with_name("torchyard")
    return str(beside) if beside.exists() else shutil.which("torchyard") or "torchyard"


def _environment() -> dict[str, str]:
    kept = ("PATH", "HOME", "LD_LIBRARY_PATH", "LANG")
    return {name: os.environ[name] for name in kept if name in os.environ}


if __name__ == "__main__":
    main()
