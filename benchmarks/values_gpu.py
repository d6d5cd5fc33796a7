"""What the watch of values costs on a GPU: surveyed and closely watched steps beside native ones.

python benchmarks/values_gpu.py [--blocks 6] [--steps 5] [--models resnet50,bert]

ResNet-50 (64 pictures of 224x224) and BERT-base (16 sequences of 128 words), whole training steps.
Blocks of native and of surveyed steps take turns in one process; the ratio is taken between
neighbours, wall time from one synchronisation to the next. Every byte that an operator writes is
scanned in a surveyed step. Also shown: closely watched steps, the dispatch mode alone, and how fast
the scan reads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.profiling_session import ProfilingSession
from torchyard.worker.values.scanning.cpu_scan import TorchScanner, open_scanner
from torchyard.worker.values.scanning.scanners import Scanners

Step = Callable[[], object]


class Nothing(TorchDispatchMode):  # type: ignore[misc]
    """A mode that passes everything on."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One operator."""
        return func(*args, **(kwargs or {}))


def resnet50() -> Step:
    """Stochastic gradient descent with momentum."""
    from torchvision.models import resnet50 as of_torchvision

    model = of_torchvision().cuda().train()
    pictures = torch.randn(64, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (64,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()

    return step


def bert() -> Step:
    """AdamW as transformers' examples use it."""
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(BertConfig()).cuda().train()
    words = torch.randint(0, 30000, (16, 128), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()

    return step


def timed_s(step: Step, steps: int) -> float:
    """Of one step, on average over a few."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def measure(name: str, step: Step, blocks: int, steps: int) -> None:
    """Print what was measured of one model."""
    for _ in range(5):
        step()
    native_close = timed_s(step, 3)
    session = ProfilingSession(Options(prove=False, close_steps=3, graph=False))
    session.start()
    mode = session.mode
    followed = session.library is not None and session.library.wait()
    step()  # compiles the scan
    close = [timed_s(step, 1) for _ in range(2)]
    step()
    native, surveyed, passed = [], [], []
    written, operators = mode.counts.written_bytes, mode.counts.operators
    launches = mode.survey.launches
    done = 0
    for _ in range(blocks):
        mode.off = True
        mode.pause()
        torch.autograd.set_multithreading_enabled(True)  # as it is without the watch
        native.append(timed_s(step, steps))
        torch.autograd.set_multithreading_enabled(False)
        with Nothing():
            passed.append(timed_s(step, steps))
        mode.resume()
        mode.off = False
        surveyed.append(timed_s(step, steps))
        done += steps
    counts = mode.counts
    gigabytes = (counts.written_bytes - written) / done / 1e9
    print(
        f"{name}: native {1e3 * statistics.median(native):.1f} ms, surveyed "
        f"{_ratios(surveyed, native)}, mode alone {_ratios(passed, native)}, closely "
        f"{statistics.median(close) / native_close:.2f}x; {gigabytes:.1f} GB written and "
        f"{(counts.operators - operators) / done:.0f} operators a step, not seen "
        f"{counts.not_seen_bytes / 1e9:.3f} GB in all, "
        f"{(mode.survey.launches - launches) / done:.0f} launches a step, "
        f"{counts.steps_surveyed} surveyed, followed by "
        f"{'the compiled follower' if followed else 'Python'}"
    )
    session.stop()
    for finding in session.findings.all()[:12]:
        print(
            f"  {finding.pattern}: {finding.operator} {finding.place.file.rpartition('/')[2]}:"
            f"{finding.place.line} x{finding.count} {finding.detail}"
        )


def _ratios(ones: list[float], others: list[float]) -> str:
    ratios = sorted(one / other for one, other in zip(ones, others, strict=True))
    return f"{statistics.median(ratios):.3f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})"


def scan_speed() -> None:
    """How fast the scan reads, for tensors large and small."""
    device = torch.device("cuda", torch.cuda.current_device())
    scanner = Scanners(open_scanner() or TorchScanner()).on(device)
    print(
        f"scanner: {scanner.name}, {torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    )
    for count, size in ((1, 1 << 28), (16, 1 << 24), (256, 1 << 18), (512, 1 << 10)):
        tensors = [torch.randn(size, device=device) for _ in range(count)]
        for _ in range(3):
            scanner.rows(tensors)
        torch.cuda.synchronize()
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began = time.perf_counter()
        started.record()
        for _ in range(10):
            scanner.rows(tensors)
        ended.record()
        host_ms = 100 * (time.perf_counter() - began)
        torch.cuda.synchronize()
        ms = started.elapsed_time(ended) / 10
        print(
            f"  {count} x {size} float32: {count * size * 4 / ms / 1e9:.2f} TB/s, host {host_ms:.3f} ms"
        )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--models", default="resnet50,bert")
    given = parser.parse_args()
    scan_speed()
    makers: dict[str, Callable[[], Step]] = {"resnet50": resnet50, "bert": bert}
    for name in given.models.split(","):
        measure(name, makers[name](), given.blocks, given.steps)


if __name__ == "__main__":
    main()
