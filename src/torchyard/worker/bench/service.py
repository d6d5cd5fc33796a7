"""The worker's service: the built workload, its variants, and the answer to each request.

Warm-up lasts until the time of an iteration is stable, not for a fixed number of iterations.
"""

import dataclasses
import os
import time
from statistics import median
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker import suites
from torchyard.worker.bench import backends, dynamo_graphs, metrics, timing, torch_settings
from torchyard.worker.bench.accuracy import judge as accuracy
from torchyard.worker.bench.accuracy.checks import Checks
from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.metrics import put_channels_last, try_other_batches
from torchyard.worker.bench.model import DTYPES, Model, convert
from torchyard.worker.bench.options import ATTENTION, FLEX, SAME_BATCH, WEIGHTS, changes_module
from torchyard.worker.bench.quantised_weights import Quantised, quantise, shared_copy
from torchyard.worker.bench.ranks.group import (
    Folder,
    Network,
    Ranks,
    device_of_rank,
    with_other_ranks,
    with_own_inputs,
)
from torchyard.worker.bench.ranks.runner import FollowingRunner, LeadingRunner, RankRunner
from torchyard.worker.bench.relocation import CopiedModule, Relocator
from torchyard.worker.bench.timing import run_block
from torchyard.worker.bench.torch_settings import use_flex
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.device_turn import TURN
from torchyard.worker.devices import device_of, is_known, visible
from torchyard.worker.workload import BuiltWorkload, CannotBuild, flatten

MOST_ROWS = 100


CHUNK_S = 0.08
STABLE_WITHIN = 0.03
MIN_CHUNKS = 3
LONG_S = 0.2
"""A longer iteration is warm after three calls, unless it is still getting faster."""


def is_stable(chunks: List[float]) -> bool:
    """Whether three consecutive chunks agree within 3 %, or six show no downward trend.

    The second rule is for noisy times, such as those of short GPU kernels: they never agree, but no
    longer decrease either.
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


def warm(runner: VariantRunner, limit_s: float) -> Dict[str, Any]:
    """Run chunks until the time is stable or the limit is reached; with limit 0, call it once."""
    runner.first_call()
    if limit_s <= 0:
        return {"first_call_s": runner.first_call_s}
    started = time.perf_counter()
    once = run_block(runner, 1, 1, 0, settle=False, flush_l2=False)["samples_ns"][0]
    long = once > LONG_S * 1e9
    chunks: List[float] = [once] if long else []
    iterations = 2
    stable = False
    while not stable and (time.perf_counter() - started < limit_s or len(chunks) < 1 + long):
        guess = chunks[-1] if chunks else once
        count = max(1, min(2000, int(CHUNK_S * 1e9 / max(guess, 1.0))))
        inner = 1 if runner.model.training or count < 200 else count // 100
        samples = max(1, count // inner)
        block = run_block(runner, inner, samples, 0, settle=False, flush_l2=False)
        chunks.append(median(block["samples_ns"]))
        iterations += samples * inner
        stable = not still_gets_faster(chunks) if long else is_stable(chunks)
    return {
        "first_call_s": runner.first_call_s,
        "first_call_began_s": runner.first_call_began_s,
        "cached_graphs": runner.cached_graphs,
        "iteration_ns": chunks[-1],
        "iterations": iterations,
        "stable": stable,
        "warm_up_s": time.perf_counter() - started,
    }


class WorkerService:
    """The handlers of the verbs of `wire`, in the order of a launch."""

    def __init__(self) -> None:
        self._runners: Dict[str, VariantRunner] = {}
        self._models: Dict[Any, Model] = {}
        self._relocator = Relocator([])
        self._seed = 0
        self._workload: Dict[str, Any] = {}
        self._batch_size: Optional[int] = None
        self._refused: Dict[str, Exception] = {}
        self._flops: Dict[str, Tuple[Optional[float], str]] = {}
        """Operations of an iteration, by the file that replaces the workload's module."""
        self._files: Dict[str, str] = {}
        """The replacing file of each variant."""
        self._quantised: Dict[Any, Quantised] = {}
        """Modules with quantised weights, by the key of their model."""
        self._reference: Optional[Dict[str, Any]] = None
        self._checks = Checks()
        self._network: Optional[Network] = None
        self._ranks: Optional[Ranks] = None
        """The process group, with several ranks."""

    def meet(self, address: str) -> Dict[str, Any]:
        """Open the rendezvous of ranks on several nodes at an address of this node."""
        self._network = Network.opened_at(address)
        return {"port": self._network.port}

    def join(
        self, rank: int, ranks: int, rendezvous: str, device: str, ranks_per_node: int
    ) -> Dict[str, Any]:
        """Make this process one of several ranks, which meet in a folder or at `ADDRESS:PORT`."""
        here = device_of_rank(device, rank % ranks_per_node, ranks_per_node)
        place: Any = Folder(rendezvous)
        if ranks_per_node < ranks:
            place = self._network or Network.found_at(rendezvous)
        self._ranks = Ranks(rank, ranks, place, here)
        return {}

    def build(
        self,
        workload: Dict[str, Any],
        variants: List[Dict[str, Any]],
        seed: int,
        state: Optional[str] = None,
        compiled_before: bool = False,
    ) -> Dict[str, Any]:
        """Build the model once per data type, and every variant on it.

        `state` is a file that transfers weights and inputs between targets: it is written if it does
        not exist, and loaded otherwise. `compiled_before` says that an earlier launch compiled all variants.
        """
        self._seed = seed
        if compiled_before:
            backends.load_without_compile_processes()
        if self._ranks is not None:
            workload = dict(workload, device=self._ranks.device)
        device = workload["device"]
        prepared = self.prepare_device(device, _file_of(workload))
        rank = 0 if self._ranks is None else self._ranks.rank
        torch.manual_seed(seed + rank)
        self._workload = workload
        built = self._build_again(workload["batch_size"])
        self._batch_size = built.batch_size or workload["batch_size"]
        if self._ranks is not None:
            built = with_own_inputs(built)
        if self._ranks is not None and rank == 0:
            size = workload["batch_size"]
            built = with_other_ranks(
                built, self._ranks.count, seed, lambda: self._build_again(size)
            )
        if state and rank == 0:
            _carry_state(built, state)
        training = workload["mode"] == "training"
        if training and built.loss is None:
            raise CannotBuild(
                "this workload does not support training", hint="use --mode inference"
            )
        for variant in variants:
            try:
                self._runners[variant["name"]] = self._make_runner(
                    variant, built, training, workload["optimizer_step"], device
                )
            except Exception as error:  # raised by requests for this variant only
                self._refused[variant["name"]] = error
        compiled = sum(uses_dynamo(runner.backend) for runner in self._runners.values())
        # The trial with other batch sizes compiles every variant once more.
        dynamo_graphs.raise_cache_limits(2 * compiled)
        own = [
            Model(BuiltWorkload(runner.own_module), training, False, self._eval_mode())
            for runner in self._runners.values()
            if runner.own_weights
        ]
        copied = [
            CopiedModule(runner.copied)
            for runner in self._runners.values()
            if isinstance(runner, RankRunner)
        ]
        self._relocator = Relocator([*self._models.values(), *own, *copied])
        first = [] if compiled_before else self._runners.values()
        self._checks.begin(list(self._models.values()), seed, first)
        return {
            "parameters": sum(p.numel() for p in built.module.parameters()),
            "loss": built.loss_name if training else "",
            "batch_size": self._batch_size,
            "versions": metrics.versions(),
            **prepared,
        }

    def prepare_device(self, device: str, file: str = "") -> Dict[str, Any]:
        """Check and select the device; raise CannotBuild if it cannot be used.

        `file` is the file of the workload, which may register a backend of the device.
        """
        if file and not is_known(device):
            from torchyard.worker.suites.user_file import load_file, split_name

            load_file(split_name(file)[0])
        hardware = device_of(device)
        if not hardware.is_host:
            TURN.use_device(hardware.synchronize)
        hardware.check()
        hardware.select()
        return {"devices": visible(), "notes": hardware.notes}

    def _eval_mode(self) -> bool:
        """Return whether modules are in evaluation mode also during training."""
        return bool(self._workload.get("eval_mode"))

    def _build_again(self, batch_size: Optional[int]) -> BuiltWorkload:
        """Build the workload with that batch size and new random numbers."""
        workload = self._workload
        return suites.build(
            workload["suite"],
            workload["name"],
            workload["mode"],
            batch_size,
            dict(workload["parameters"]),
            workload["device"],
        )

    def _make_runner(
        self, variant: Dict[str, Any], built: BuiltWorkload, training: bool, step: bool, device: str
    ) -> VariantRunner:
        """Create a variant on the model of its data type and memory format, which variants share."""
        dtype = DTYPES.get(variant["precision"], torch.float32)
        options = dict(variant.get("options", ()))
        channels_last = bool(options.get("channels-last"))
        same_batch = self._ranks is not None and bool(options.get(SAME_BATCH))
        key = (dtype, channels_last, same_batch)
        if same_batch and key not in self._models:
            built = self._batch_of_rank_0(built)
        if key not in self._models:
            plain = dtype is torch.float32 and not channels_last
            own = built if plain else convert(built, dtype)
            if channels_last:
                put_channels_last(own)
            self._models[key] = Model(own, training, step, self._eval_mode())
        model, module, reason = self._models[key], None, ""
        changing = [name for name, value in options.items() if changes_module(name, value)]
        if changing and (self._ranks is not None or variant.get("file")):
            raise CannotBuild(
                changing[0] + " cannot be combined with several ranks or files",
                hint="remove the option",
            )
        if changing:
            return self._changed_module(variant, options, key, device)
        arguments = {name: variant[name] for name in ("name", "backend", "precision")}
        arguments.update(model=model, device=device, chosen=options)
        if self._ranks is not None:
            if variant.get("file"):
                raise CannotBuild("several files cannot be compared with several ranks")
            kind = LeadingRunner if self._ranks.rank == 0 else FollowingRunner
            return kind(self._ranks, **arguments)
        notes: List[str] = []
        if variant.get("file"):
            module, reason, notes = self._replacement(variant, built, model)
            if reason and channels_last:
                for tensor in [*module.parameters(), *module.buffers()]:
                    tensor.data = metrics.to_channels_last(tensor.data)
        runner = VariantRunner(**arguments, module=module)
        if reason:
            runner.own_weights = True
            runner.other_weights = reason
            self._checks.note(runner, "has " + reason + "; initialised with the same seed")
        for note in notes:
            self._checks.note(runner, note)
        return runner

    def _changed_module(
        self, variant: Dict[str, Any], options: Dict[str, Any], key: Any, device: str
    ) -> VariantRunner:
        """Create a variant that runs a changed copy of the module: quantised weights, flex attention."""
        original = model = self._models[key]
        # Of the original: the model with dequantised weights is never trained.
        torch_settings.check(options, variant["backend"], original.training)
        module, quantised = model.module, None
        kind = str(options.get(WEIGHTS) or "")
        if kind:
            key = (*key, kind)
            if key not in self._models:
                dequantised = convert(original.built, key[0])
                self._quantised[key] = quantise(dequantised.module, kind)
                self._models[key] = Model(dequantised, False, False)
            model, quantised = self._models[key], self._quantised[key]
            module = quantised.module
        if options.get(ATTENTION) == FLEX:
            module = shared_copy(module)
            use_flex(module, variant["backend"], device)
        runner = VariantRunner(
            variant["name"],
            variant["backend"],
            variant["precision"],
            model,
            device,
            options,
            module=module.train(model.module.training),
        )
        if quantised is not None:
            runner.own_weights = True
            runner.wrong_weights = quantised.problem
            runner.unquantised = original
            self._checks.note(runner, quantised.note)
        return runner

    def _batch_of_rank_0(self, built: BuiltWorkload) -> BuiltWorkload:
        """Return the workload with the batch of rank 0 in every rank, and a module of its own."""
        if self._ranks is not None and self._ranks.rank > 0:
            torch.manual_seed(self._seed)
            return with_own_inputs(self._build_again(self._workload["batch_size"]))
        return dataclasses.replace(built, others=())

    def _replacement(
        self, variant: Dict[str, Any], built: BuiltWorkload, model: Model
    ) -> Tuple[Any, str, List[str]]:
        """Return the module of the variant's file, why it has parameters of its own, and notes."""
        from torchyard.worker.suites.replacement import build_replacement, share_weights

        torch.manual_seed(self._seed)
        loaded = list(self._files.values())
        if self._workload["suite"] == "file":
            loaded.append(self._workload["name"])
        self._files[variant["name"]] = variant["file"]
        module, notes = build_replacement(variant["file"], self._workload, built, loaded)
        if variant["precision"] in DTYPES and variant["precision"] != "float32":
            module = convert(BuiltWorkload(module), DTYPES[variant["precision"]]).module
        module.train(model.module.training)
        reason = share_weights(module, model.module, model.training)
        if reason and model.training:
            raise CannotBuild(
                variant["file"] + " has " + reason,
                hint="training compares gradients, which needs the same parameters; use --mode inference",
            )
        return module, reason, notes

    def reference(
        self, variant: str, path: str, limit_bytes: Optional[int] = None, keep: bool = False
    ) -> Dict[str, Any]:
        """Create the reference for the accuracy check, in a file or here; the process may use `limit_bytes`."""
        compiled_s = self._compiled_s()
        record = self._checks.references(self.runner(variant), limit_bytes)
        if keep:
            self._reference = record
        else:
            accuracy.save_reference(record, path)
        first = record["draws"][0][1]
        return {
            "nondeterminism": first["nondeterminism"],
            "random": first["random"],
            "varied": record["varied"],
            "compile_s": self._compiled_s() - compiled_s,
        }

    def judge(self, variant: str, path: str, last: bool = False) -> Dict[str, Any]:
        """Check the accuracy of a candidate; after the `last` one the reference is freed."""
        reference = self._reference
        if reference is None:
            reference = accuracy.load_tensors(path)
        compiled_s = self._compiled_s()
        try:
            record = self._checks.judge(self.runner(variant), reference)
            return dict(record, compile_s=self._compiled_s() - compiled_s)
        finally:
            if last:
                self._reference = None

    def verify(self, variant: str, accepted: Any = None, settle: bool = False) -> Dict[str, Any]:
        """Compare results that were kept in the variant's latest block."""
        answer = self._checks.verify(self.runner(variant), accepted)
        if settle:
            timing.wait_until_idle()
        return answer

    def recheck(
        self,
        variant: str,
        varied: str,
        accepted: Any = None,
        values: bool = True,
        more: bool = False,
    ) -> Dict[str, Any]:
        """Check the variant again, after the last block of a launch."""
        return self._checks.recheck(self.runner(variant), varied, accepted, values, more)

    def warm(self, variant: str, seconds: float) -> Dict[str, Any]:
        """Compile if needed, then run until the time is stable."""
        compiled_s = self._compiled_s()
        answer = warm(self.runner(variant), seconds)
        return dict(answer, compile_s=self._compiled_s() - compiled_s)

    def _compiled_s(self) -> float:
        """Return the total duration of first calls, in which backends compile."""
        return sum(runner.first_call_s or 0.0 for runner in self._runners.values())

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
        """Time one block; with a `draw`, on those input values, keeping results for `verify`."""
        runner = self.runner(variant)
        check = None
        if draw is not None:
            check = self._checks.block(runner, draw, varied, samples, inner)
        answer = timing.run_block(runner, inner, samples, prime, settle, flush_l2, probe, check)
        if check is not None:
            self._checks.timed(runner, answer["samples_ns"], answer["inner"])
            check.finish()
        return answer

    def reseat(self, seed: int, method: str) -> Dict[str, Any]:
        """Relocate parameters and inputs to fresh memory."""
        return self._relocator.relocate(seed, method)

    def measure(self, variant: str) -> Dict[str, Any]:
        """Measure memory, operations, graphs and recompilations, with other batch sizes if requested."""
        runner = self.runner(variant)
        trial = None
        batches = runner.options.get("dynamic") or runner.options.get("other-batch")
        if batches and self._ranks is None:
            trial = try_other_batches(runner, self._batch_size, self._build_again)
        answer = metrics.measure(runner, trial)
        if isinstance(runner, LeadingRunner) and runner.model.training:
            answer["communication"] = runner.exposed_communication()
        file = self._files.get(variant, "")
        if file not in self._flops:  # the same for all variants that share the module
            eager = VariantRunner(
                "eager",
                "eager",
                runner.precision,
                runner.model,
                runner.device,
                module=runner.own_module if file else None,
            )
            self._flops[file] = metrics.count_flops(eager)
        answer["flops"], answer["flops_why_not"] = self._flops[file]
        if self._ranks is not None and answer["flops"] is not None and runner.model.training:
            answer["flops"] /= self._ranks.count  # counted over the batches of all ranks
        return answer

    def operators(self, variant: str, iterations: int) -> Dict[str, Any]:
        """Return the operators over some iterations, with CPU and, on a GPU, device time."""
        from torch.profiler import profile

        from torchyard.worker.values.torch_profile import operator_rows

        runner = self.runner(variant)
        runner.first_call()
        call = runner.caller()
        with runner.context(), profile(activities=runner.hardware.activities()) as profiler:
            for _ in range(iterations):
                call()
            runner.synchronize()
        runner.forget_gradients()
        return {"iterations": iterations, "rows": operator_rows(profiler, False)[:MOST_ROWS]}

    def follow(self) -> Dict[str, Any]:
        """Execute the commands of rank 0 until the end of its request; return the latest block."""
        if self._ranks is None:
            raise CannotBuild("this process is not one of several ranks")
        block: Optional[Dict[str, Any]] = None
        while True:
            command = self._ranks.receive()
            if command["do"] == "done":
                return {"block": block}
            if command["do"] == "seed":
                torch.manual_seed(command["seed"] + self._ranks.rank)
                continue
            runner = self.runner(command["variant"])
            if isinstance(runner, FollowingRunner):
                block = runner.follow(command) or block

    def release_ranks(self) -> None:
        """End the request of the other ranks after one of rank 0; a no-op in other processes."""
        if self._ranks is not None and self._ranks.rank == 0:
            self._ranks.send({"do": "done"})

    def list_names(self, suite: str) -> Dict[str, Any]:
        """List the workloads of a suite in this target."""
        return {"names": suites.load(suite).names()}

    def runner(self, name: str) -> VariantRunner:
        """Return a built variant; raise what building it raised."""
        if name in self._refused:
            raise self._refused[name]
        if name not in self._runners:
            raise CannotBuild("the variant " + repr(name) + " was not built in this process")
        return self._runners[name]


def _file_of(workload: Dict[str, Any]) -> str:
    return str(workload["name"]) if workload["suite"] == "file" else ""


def _carry_state(built: BuiltWorkload, path: str) -> None:
    """Transfer weights and inputs through a file, so that two targets use the same numbers."""
    tensors = _named_tensors(built)
    if not os.path.exists(path):
        torch.save({name: tensor.detach() for name, tensor in tensors.items()}, path + ".part")
        os.replace(path + ".part", path)
        return
    carried = accuracy.load_tensors(path)
    if _shapes(carried) != _shapes(tensors):
        differing = set(_shapes(carried).items()) ^ set(_shapes(tensors).items())
        raise CannotBuild(
            "the workload differs between the targets: "
            + ", ".join(sorted({name for name, _ in differing})[:3]),
            hint="the targets may have different versions of the package that provides it",
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            if not torch.equal(tensor.cpu(), carried[name]):
                tensor.copy_(carried[name])


def _named_tensors(built: BuiltWorkload) -> Dict[str, Any]:
    tensors = {"parameter " + name: tensor for name, tensor in built.module.named_parameters()}
    tensors.update(("buffer " + name, tensor) for name, tensor in built.module.named_buffers())
    inputs = flatten(built.args) + flatten(built.kwargs)
    for other in built.others:
        inputs += flatten(other.args) + flatten(other.kwargs)
    tensors.update(("input %d" % index, tensor) for index, tensor in enumerate(inputs))
    return tensors


def _shapes(tensors: Dict[str, Any]) -> Dict[str, Any]:
    return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
