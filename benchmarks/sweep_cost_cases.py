"""The twenty workloads of `sweep_cost.py`: an iteration takes 50 to 200 ms of two slow cores.

Three kinds, because a rule is only as good as on the hardest: candidates that are the baseline again,
whose answer is known; `aot_eager`, which is often a little slower or the same; and `inductor` on
kernels that compile quickly, which differ for sure.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchyard.core.study import Mode, Workload


@dataclass(frozen=True, kw_only=True)
class Case:
    """A workload and the backend that eager is compared with."""

    workload: Workload
    backend: str

    @property
    def name(self) -> str:
        """As results and `--only` name it."""
        return f"{self.workload.label} {'again' if self.backend == 'eager' else self.backend}"


def _case(
    suite: str,
    name: str,
    backend: str,
    mode: Mode = "inference",
    /,
    batch: int | None = None,
    **sizes: int,
) -> Case:
    workload = Workload(
        suite=suite,
        name=name,
        mode=mode,
        batch_size=batch,
        parameters=tuple(sorted(sizes.items())),
    )
    return Case(workload=workload, backend=backend)


LONG_CASES = (
    _case("kernels", "matmul", "eager", size=2200),
    _case("kernels", "conv2d", "eager", batch=96),
    _case("models", "resnet", "eager", batch=128),
    _case("models", "gpt", "eager", "training", batch=8),
    _case("models", "resnet", "aot_eager", batch=128),
    _case("models", "resnet", "aot_eager", "training", batch=20),
    _case("models", "transformer-encoder", "aot_eager", batch=48),
    _case("models", "transformer-encoder", "aot_eager", "training", batch=12),
    _case("models", "unet", "aot_eager", batch=40),
    _case("models", "gpt", "aot_eager", batch=28),
    _case("models", "gpt", "aot_eager", "training", batch=8),
    _case("models", "lstm", "aot_eager", batch=384),
)
"""Iterations of a quarter to half a second on two cores, as models of the large suites have them."""

CASES = (
    _case("kernels", "matmul", "eager", size=1300),
    _case("kernels", "conv2d", "eager", batch=16),
    _case("kernels", "attention", "eager", batch=8, length=512),
    _case("kernels", "layer-norm", "eager", batch=128, length=512),
    _case("models", "resnet", "eager", batch=16),
    _case("models", "gpt", "eager", "training", batch=2),
    _case("models", "resnet", "aot_eager", batch=16),
    _case("models", "resnet", "aot_eager", "training", batch=4),
    _case("models", "transformer-encoder", "aot_eager", batch=8),
    _case("models", "transformer-encoder", "aot_eager", "training", batch=2),
    _case("models", "unet", "aot_eager", batch=4),
    _case("models", "gpt", "aot_eager", batch=4),
    _case("models", "gpt", "aot_eager", "training", batch=2),
    _case("models", "lstm", "aot_eager", batch=64),
    _case("kernels", "elementwise-chain", "inductor", batch=6144),
    _case("kernels", "softmax", "inductor", batch=64, length=512),
    _case("kernels", "rms-norm", "inductor", batch=128, length=512),
    _case("kernels", "layer-norm", "inductor", batch=128, length=512),
    _case("kernels", "cross-entropy", "inductor", batch=4096),
    _case("kernels", "avg-pool2d", "inductor", batch=160),
)
