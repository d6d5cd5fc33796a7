"""Does `torchyard why` find a planted difference? Programs in which one operator is slower by design.

Each case is a small transformer and a copy of it with one change: more work, a slower implementation,
a copy of a tensor, a detour over another data type, time on the host, a graph break, an eager
kernel. The change is in a known module. Reported: whether that module is ranked first among the named
parts, whether the interval of its contribution holds the true difference (known for busy-waiting
operators and host code), and whether identical programs name nobody.

    python benchmarks/attribution_truth.py --cases 40 --launches 5 --seconds 8
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from torchyard.core.study import Environment, MeasureSettings, Target, Variant, Workload
from torchyard.why.attribution import attribute
from torchyard.why.measurement import AttributionSession
from torchyard.why.model import Attribution, Part

PROGRAM = '''
import copy
import time

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)

    def forward(self, x):
        query, key, value = self.inner(x).chunk(3, dim=-1)
        scores = torch.softmax(query @ key.transpose(-1, -2) / 16.0, dim=-1)
        return self.outer(scores @ value)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self, width=256, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 64)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def example_inputs(self):
        return (torch.randn(4, 128, 256),)


def spin(duration_s):
    end = time.perf_counter() + duration_s
    while time.perf_counter() < end:
        pass


def spin_operator(x, duration_s):
    spin(duration_s)
    return x


if not hasattr(torch.ops.planted, "spin"):  # a worker may load this file twice
    LIBRARY = torch.library.Library("planted", "FRAGMENT")
    LIBRARY.define("spin(Tensor(a) x, float duration_s) -> Tensor(a)")
    LIBRARY.impl("spin", spin_operator, "CPU")
    torch.ops.planted.kept = LIBRARY


class Planted(nn.Module):
    """A module followed by extra work that does not change its result."""

    def __init__(self, inner, kind, amount):
        super().__init__()
        self.inner, self.kind, self.amount = inner, kind, amount

    def forward(self, x):
        result = self.inner(x)
        if self.kind == "work":
            for _ in range(self.amount):
                result = result + torch.exp(result) * 0.0
        elif self.kind == "copy":
            for _ in range(self.amount):
                result = result.transpose(0, 1).contiguous().transpose(0, 1).contiguous()
        elif self.kind == "detour":
            for _ in range(self.amount):
                result = result.double().float()
        elif self.kind == "matmul":
            for _ in range(self.amount):
                result = result + 0.0 * (result @ torch.ones(result.shape[-1], result.shape[-1]))
        elif self.kind == "loop":
            rows = [result[index] * 1.0 for index in range(result.shape[0])] * self.amount
            result = torch.stack(rows[: result.shape[0]])
        elif self.kind == "again":
            for _ in range(self.amount):
                self.inner(x)
        elif self.kind == "sleep":
            spin(self.amount * 2e-4)
        elif self.kind == "spin":
            torch.ops.planted.spin(result, self.amount * 2e-4)
        return result


def planted(module, place, kind, amount):
    changed = copy.deepcopy(module)
    parent, _, name = place.rpartition(".")
    owner = changed.get_submodule(parent)
    setattr(owner, name, Planted(getattr(owner, name), kind, amount))
    return changed
'''

PLACES = ("blocks.1.norm", "blocks.0.attention", "blocks.1.act", "blocks.0.down", "head")
KINDS = ("work", "copy", "detour", "matmul", "loop", "again", "sleep", "spin", "spin")
EXACT = ("sleep", "spin")
"""Kinds whose true difference is known: 0.2 ms for each unit of work."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A planted difference; `kind` is empty for identical programs."""

    place: str
    kind: str
    amount: int
    backend: str = "eager"


def cases(count: int, seed: int) -> list[Case]:
    """Return all combinations of place and kind in random order, then again with more work."""
    chance = random.Random(seed)
    pairs = [(place, kind, amount) for amount in (2, 5) for place in PLACES for kind in KINDS]
    chance.shuffle(pairs)
    return [Case(place=place, kind=kind, amount=amount) for place, kind, amount in pairs[:count]]


def measure(
    case: Case, *, launches: int, seconds: float, threads: int, preload: str = ""
) -> Attribution:
    """Return the attribution of a case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "program.py"
        call = (
            f"planted(module, {case.place!r}, {case.kind!r}, {case.amount})"
            if case.kind
            else ("copy.deepcopy(module)")
        )
        program.write_text(f"{PROGRAM}\n\ndef candidate(module):\n    return {call}\n")
        target = Target(name="here", python=sys.executable)
        environment = Environment(name="same", preload=(preload,) if preload else ())
        session = AttributionSession(
            Workload(suite="file", name=f"{program}:Net"),
            Variant(name="baseline", target=target, environment=environment),
            Variant(
                name="candidate",
                target=target,
                environment=environment,
                backend=f"{program}:candidate",
            ),
            MeasureSettings(threads=threads),
            launches=launches,
            seconds=seconds,
            folder=folder / "why",
            listener=lambda _event: None,
        )
        measured = session.run()
        return attribute(
            Workload(suite="file", name="planted"), "baseline", "candidate", measured.rounds
        )


def is_guilty(part: Part, case: Case) -> bool:
    """Whether a part is the planted one."""
    if case.kind == "sleep":
        return part.kind == "host"
    module = ".".join("*" if word.isdecimal() else word for word in case.place.split("."))
    return any(
        source.module == module or source.module.startswith(module + ".") for source in part.sources
    )


def main() -> None:
    """Measure all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--null", type=int, default=10, help="comparisons of identical programs")
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--preload", default="", help="allocator of both sides, such as libjemalloc.so.2"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no case after this time")
    options = parser.parse_args()
    started_s = time.monotonic()
    first = held = exact = summed = done = silent = silent_done = 0
    todo = cases(options.cases, options.seed)
    todo += [Case(place="", kind="", amount=0)] * options.null
    random.Random(options.seed).shuffle(todo)
    for case in todo:
        if time.monotonic() - started_s > 60.0 * options.minutes:
            break
        result = measure(
            case,
            launches=options.launches,
            seconds=options.seconds,
            threads=options.threads,
            preload=options.preload,
        )
        named = [part for part in result.parts if part.named]
        if not case.kind:
            silent_done += 1
            silent += not named
            print(f"identical: named {[part.name for part in named]}", flush=True)
            continue
        done += 1
        guilty = [part for part in result.parts if is_guilty(part, case)]
        is_first = bool(named) and is_guilty(named[0], case)
        true_ns = 2e5 * case.amount if case.kind in EXACT else None
        holds = None
        if true_ns is not None:
            low_ns = sum(part.low_ns for part in guilty)
            holds = low_ns <= true_ns <= sum(part.high_ns for part in guilty)
            exact += 1
        attributed = sum(part.difference_ns for part in result.parts if part.kind != "profiler")
        agrees = result.low_ns <= attributed <= result.high_ns
        first, held, summed = first + is_first, held + bool(holds), summed + agrees
        own_ns = sum(part.difference_ns for part in guilty)
        print(
            f"{case.place:20} {case.kind:7} {case.amount}  attributed {own_ns / 1e3:8.1f} us  "
            f"true {'-' if true_ns is None else f'{true_ns / 1e3:.1f}'}  end to end "
            f"{result.difference_ns / 1e3:.1f} [{result.low_ns / 1e3:.1f}, "
            f"{result.high_ns / 1e3:.1f}]  first {is_first}  holds {holds}  sum {agrees}",
            flush=True,
        )
    print(
        f"planted: {done}; ranked first {first}; interval holds the exact truth {held} of {exact}; "
        f"sum within the end-to-end interval {summed}"
    )
    print(f"identical: {silent_done}; nobody named {silent}")


if __name__ == "__main__":
    main()
