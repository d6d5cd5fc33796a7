"""The worker's desk: the workload it was asked to build, its sides, and each verb's work."""

import os
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker import accuracy, graphs, metrics, suites, timing, warming
from torchyard.worker.backend_names import uses_dynamo
from torchyard.worker.built import Built, CannotBuild, flatten
from torchyard.worker.checking import Checks
from torchyard.worker.devices import cuda_device
from torchyard.worker.memory_format import put_channels_last
from torchyard.worker.other_batches import try_other_batches
from torchyard.worker.reseat import Seater
from torchyard.worker.side import DTYPES, Model, Side, convert


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
        graphs.make_room(2 * compiled)  # a trial with other batch sizes compiles once more
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
        return warming.warm(self._side(variant), seconds)

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
        from torchyard.worker.operator_table import operator_table

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
