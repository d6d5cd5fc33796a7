"""The worker's service: the workload that it was asked to build, its variants, and the answer to each request.

Warm-up lasts until the time of an iteration is stable, not for a fixed number of iterations.
"""

import os
import time
from statistics import median
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker import suites
from torchyard.worker.bench import dynamo_graphs, metrics, timing
from torchyard.worker.bench.accuracy import judge as accuracy
from torchyard.worker.bench.accuracy.checks import Checks
from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.metrics import put_channels_last, try_other_batches
from torchyard.worker.bench.relocation import Seater
from torchyard.worker.bench.timing import run_block
from torchyard.worker.bench.variant import DTYPES, Model, Side, convert
from torchyard.worker.devices import cuda_device
from torchyard.worker.workload import Built, CannotBuild, flatten

CHUNK_S = 0.08
STABLE_WITHIN = 0.03
MIN_CHUNKS = 3
LONG_S = 0.2
"""An iteration that takes longer is as warm after three calls as it will be, unless it still gets faster."""


def is_stable(chunks: List[float]) -> bool:
    """Three chunks in a row agree within 3 %, or six show no way down.

    The second rule is for times that are noisy by nature, such as short GPU kernels: they never
    agree, but they no longer get faster either.
    """
    recent, before = chunks[-MIN_CHUNKS:], chunks[-2 * MIN_CHUNKS : -MIN_CHUNKS]
    if len(recent) < MIN_CHUNKS:
        return False
    agree = max(recent) <= (1 + STABLE_WITHIN) * min(recent)
    if agree and min(recent) <= (1 + STABLE_WITHIN) * min(chunks):
        return True
    return len(before) == MIN_CHUNKS and median(recent) >= (1 - STABLE_WITHIN) * median(before)


def still_gets_faster(chunks: List[float]) -> bool:
    """Whether the latest of a few long iterations was the fastest by more than noise."""
    return len(chunks) < 2 or chunks[-1] < (1 - STABLE_WITHIN) * min(chunks[:-1])


def warm(side: Side, limit_s: float) -> Dict[str, Any]:
    """Run chunks until the time is stable, or the limit is used up; without a limit, call it once."""
    side.first_call()
    if limit_s <= 0:
        return {"first_call_s": side.first_call_s}
    started = time.perf_counter()
    once = run_block(side, 1, 1, 0, settle=False, flush_l2=False)["samples_ns"][0]
    long = once > LONG_S * 1e9
    chunks: List[float] = [once] if long else []
    iterations = 2
    stable = False
    while not stable and (time.perf_counter() - started < limit_s or len(chunks) < 1 + long):
        guess = chunks[-1] if chunks else once
        count = max(1, min(2000, int(CHUNK_S * 1e9 / max(guess, 1.0))))
        inner = 1 if side.model.training or count < 200 else count // 100
        samples = max(1, count // inner)
        block = run_block(side, inner, samples, 0, settle=False, flush_l2=False)
        chunks.append(median(block["samples_ns"]))
        iterations += samples * inner
        stable = not still_gets_faster(chunks) if long else is_stable(chunks)
    return {
        "first_call_s": side.first_call_s,
        "iteration_ns": chunks[-1],
        "iterations": iterations,
        "stable": stable,
        "warm_up_s": time.perf_counter() - started,
    }


class Desk:
    """Answers to the verbs of `wire`, in the order of a launch."""

    def __init__(self) -> None:
        self._sides: Dict[str, Side] = {}
        self._models: Dict[Any, Model] = {}
        self._seater = Seater([])
        self._seed = 0
        self._workload: Dict[str, Any] = {}
        self._batch_size: Optional[int] = None
        self._refused: Dict[str, Exception] = {}
        self._flops: Optional[Tuple[Optional[float], str]] = None
        self._reference: Optional[Dict[str, Any]] = None
        self._checks = Checks()

    def build(
        self,
        workload: Dict[str, Any],
        variants: List[Dict[str, Any]],
        seed: int,
        state: Optional[str] = None,
    ) -> Dict[str, Any]:
        """Make the model once per data type and every side on it.

        `state` names a file that carries weights and inputs between targets: it is written if it
        is not there, and loaded if it is.
        """
        self._seed = seed
        device = workload["device"]
        cuda = cuda_device(device)
        if cuda is not None:
            cuda.check()
            cuda.select()
        torch.manual_seed(seed)
        self._workload = workload
        built = self._build_again(workload["batch_size"])
        self._batch_size = built.batch_size or workload["batch_size"]
        if state:
            _carry_state(built, state)
        training = workload["mode"] == "training"
        if training and built.loss is None:
            raise CannotBuild("this workload offers no training", hint="use --mode inference")
        for variant in variants:
            try:
                self._sides[variant["name"]] = self._make_side(
                    variant, built, training, workload["optimizer_step"], device
                )
            except Exception as error:  # this variant's own trouble, said when it is asked for
                self._refused[variant["name"]] = error
        compiled = sum(uses_dynamo(side.backend) for side in self._sides.values())
        dynamo_graphs.make_room(2 * compiled)  # a trial with other batch sizes compiles once more
        self._seater = Seater(self._models.values())
        self._checks.begin(list(self._models.values()), seed)
        return {
            "parameters": sum(p.numel() for p in built.module.parameters()),
            "loss": built.loss_said if training else "",
            "batch_size": self._batch_size,
            "versions": metrics.versions(),
        }

    def _build_again(self, batch_size: Optional[int]) -> Built:
        """The workload with that batch size; it draws its numbers anew."""
        workload = self._workload
        return suites.build(
            workload["suite"],
            workload["name"],
            workload["mode"],
            batch_size,
            dict(workload["parameters"]),
            workload["device"],
        )

    def _make_side(
        self, variant: Dict[str, Any], built: Built, training: bool, step: bool, device: str
    ) -> Side:
        """A side on the model of its data type and memory format, which such sides share."""
        dtype = DTYPES.get(variant["precision"], torch.float32)
        options = dict(variant.get("options", ()))
        channels_last = bool(options.get("channels-last"))
        key = (dtype, channels_last)
        if key not in self._models:
            plain = dtype is torch.float32 and not channels_last
            own = built if plain else convert(built, dtype)
            if channels_last:
                put_channels_last(own)
            self._models[key] = Model(own, training, step)
        return Side(
            variant["name"],
            variant["backend"],
            variant["precision"],
            self._models[key],
            device,
            options,
        )

    def reference(
        self, variant: str, path: str, limit_bytes: Optional[int] = None, keep: bool = False
    ) -> Dict[str, Any]:
        """Make what candidates are judged by; the process may hold `limit_bytes`.

        It goes to a file, or is kept here when all candidates are in this process.
        """
        record = self._checks.references(self._side(variant), limit_bytes)
        if keep:
            self._reference = record
        else:
            accuracy.save_reference(record, path)
        first = record["draws"][0][1]
        return {
            "nondeterminism": first["nondeterminism"],
            "random": first["random"],
            "varied": record["varied"],
        }

    def judge(self, variant: str, path: str, last: bool = False) -> Dict[str, Any]:
        """Judge a candidate; after the last one the reference takes no more memory."""
        reference = self._reference
        if reference is None:
            reference = accuracy.load_tensors(path)
        try:
            return self._checks.judge(self._side(variant), reference)
        finally:
            if last:
                self._reference = None

    def verify(self, variant: str, accepted: Any = None, settle: bool = False) -> Dict[str, Any]:
        """Compare results that were kept in the variant's latest block."""
        found = self._checks.verify(self._side(variant), accepted)
        if settle:
            timing.wait_until_idle()
        return found

    def recheck(
        self,
        variant: str,
        varied: str,
        accepted: Any = None,
        values: bool = True,
        more: bool = False,
    ) -> Dict[str, Any]:
        """Check the variant once more, after the last block of a launch."""
        return self._checks.recheck(self._side(variant), varied, accepted, values, more)

    def warm(self, variant: str, seconds: float) -> Dict[str, Any]:
        """Compile if need be, then run until the time is stable."""
        return warm(self._side(variant), seconds)

    def block(
        self,
        variant: str,
        inner: int,
        samples: int,
        prime: int,
        settle: bool,
        flush_l2: bool,
        probe: bool = False,
        draw: Optional[int] = None,
        varied: str = "none",
    ) -> Dict[str, Any]:
        """Time one block; with a draw, on those input values and with results kept for `verify`."""
        side = self._side(variant)
        check = None
        if draw is not None:
            check = self._checks.block(side, draw, varied, samples, inner)
        answer = timing.run_block(side, inner, samples, prime, settle, flush_l2, probe, check)
        if check is not None:
            self._checks.timed(side, answer["samples_ns"], answer["inner"])
            check.finish()
        return answer

    def reseat(self, seed: int, method: str) -> Dict[str, Any]:
        """Move parameters and inputs to fresh memory."""
        return self._seater.reseat(seed, method)

    def measure(self, variant: str) -> Dict[str, Any]:
        """Memory, operations, graphs, and what was compiled again, also for other batch sizes if asked."""
        side = self._side(variant)
        trial = None
        if side.options.get("dynamic") or side.options.get("other-batch"):
            trial = try_other_batches(side, self._batch_size, self._build_again)
        found = metrics.measure(side, trial)
        if self._flops is None:  # one count serves all sides: they are the same model
            eager = Side("eager", "eager", side.precision, side.model, side.device)
            self._flops = metrics.count_flops(eager)
        found["flops"], found["flops_why_not"] = self._flops
        return found

    def operators(self, variant: str, iterations: int) -> Dict[str, Any]:
        """Where the time of a side goes, by operator."""
        from torchyard.worker.bench.operator_table import operator_table

        return operator_table(self._side(variant), iterations)

    def list_names(self, suite: str) -> Dict[str, Any]:
        """Workloads of a suite as this target knows them."""
        return {"names": suites.load(suite).names()}

    def _side(self, name: str) -> Side:
        if name in self._refused:
            raise self._refused[name]
        if name not in self._sides:
            raise CannotBuild("no variant " + repr(name) + " was built here")
        return self._sides[name]


def _carry_state(built: Built, path: str) -> None:
    """Weights and inputs through a file, so that two targets run the very same numbers."""
    tensors = _named_tensors(built)
    if not os.path.exists(path):
        torch.save({name: tensor.detach() for name, tensor in tensors.items()}, path + ".part")
        os.replace(path + ".part", path)
        return
    carried = accuracy.load_tensors(path)
    if _shapes(carried) != _shapes(tensors):
        differing = set(_shapes(carried).items()) ^ set(_shapes(tensors).items())
        raise CannotBuild(
            "the workload is not the same in both targets: "
            + ", ".join(sorted({name for name, _ in differing})[:3]),
            hint="the targets may have different versions of the package that it comes from",
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not torch.equal(tensor.cpu(), carried[name]):
                tensor.copy_(carried[name])


def _named_tensors(built: Built) -> Dict[str, Any]:
    found = {"parameter " + name: tensor for name, tensor in built.module.named_parameters()}
    found.update(("buffer " + name, tensor) for name, tensor in built.module.named_buffers())
    inputs = flatten(built.args) + flatten(built.kwargs)
    found.update(("input %d" % index, tensor) for index, tensor in enumerate(inputs))
    return found


def _shapes(tensors: Dict[str, Any]) -> Dict[str, Any]:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
