"""One variant in all ranks: rank 0 announces every call, the others make it, too.

Each rank has its own batch and, for each variant, its own copy of the module: wrappers such as
DistributedDataParallel leave hooks on the parameters. The shared model of rank 0 stays unwrapped. It is
the reference, and its parameters, buffers and inputs are written to the copies before they are used. With the
optimizer step, each rank has an optimizer of its copy; parameters are written before every block.
"""

import copy
import random
from statistics import median
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import torch

from torchyard.worker.bench.accuracy import plain_values
from torchyard.worker.bench.accuracy.behaviour import checksum
from torchyard.worker.bench.accuracy.timed_results import distance
from torchyard.worker.bench.model import Model, same_numbers
from torchyard.worker.bench.options import DDP, FSDP2, Scalar, settings_of
from torchyard.worker.bench.process_state import RandomState
from torchyard.worker.bench.ranks.group import Ranks, is_distributed
from torchyard.worker.bench.timing import flush_for, timed_block
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.workload import CannotBuild, flatten


def wrapped(module: Any, options: Dict[str, Scalar], device: str) -> Any:
    """Return the module as the options wrap it; without such an option, the module itself."""
    ddp, fsdp2 = settings_of(options, DDP), settings_of(options, FSDP2)
    if ddp is not None:
        return _ddp(module, ddp, device)
    if fsdp2 is not None:
        return _fsdp2(module, fsdp2, device)
    return module


def _ddp(module: Any, settings: Dict[str, Scalar], device: str) -> Any:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise CannotBuild(
            "the workload has no parameters to train, and DistributedDataParallel needs some",
            hint="choose a workload with parameters",
        )
    index = torch.device(device).index
    device_ids = [index] if torch.device(device).type == "cuda" else None
    return torch.nn.parallel.DistributedDataParallel(
        module, device_ids=device_ids, **dict(settings)
    )


def _fsdp2(module: Any, settings: Dict[str, Scalar], device: str) -> Any:
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError as error:
        raise CannotBuild(
            "torch " + torch.__version__ + " has no fully_shard", hint="use torch 2.6 or newer"
        ) from error
    count = torch.distributed.get_world_size()
    mesh = init_device_mesh(torch.device(device).type, (count,))
    for layer in layers_of(module):
        fully_shard(layer, mesh=mesh, **dict(settings))
    return fully_shard(module, mesh=mesh, **dict(settings))


def layers_of(module: Any) -> List[Any]:
    """Return the elements of the outermost lists of layers, each of which becomes one unit."""
    layers: List[Any] = []
    for child in module.children():
        elements = [one for one in child.children() if next(one.parameters(), None) is not None]
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)) and len(elements) > 1:
            layers += elements
        else:
            layers += layers_of(child)
    return layers


MOST_PAIRS = 12
FEWEST_PAIRS = 6
"""Enough for a 95 % confidence interval of the median."""
PAIRS_NS = 5e9
BLOCK_NS = 50e6
SYNCHRONIZES = "require_backward_grad_sync"
"""The switch of DistributedDataParallel that its `no_sync` uses."""
NEAR_STEPS = 16.0
"""Largest relative difference of gradients between ranks, in rounding steps of their type."""

_chance = random.SystemRandom()


class _Optimizers:
    """The optimizers of ordinary and of distributed parameters, which one optimizer cannot have together."""

    def __init__(self, make: Callable[[List[Any]], Any], parameters: List[Any]) -> None:
        kinds = [[p for p in parameters if is_distributed(p) is kind] for kind in (False, True)]
        self._steps = [make(group).step for group in kinds if group]

    def step(self) -> None:
        """Update all parameters."""
        for step in self._steps:
            step()


class RankRunner(VariantRunner):
    """One variant in this rank."""

    several_ranks = True

    def __init__(self, ranks: Ranks, model: Model, **variant: Any) -> None:
        if model.built.mutates:
            raise CannotBuild(
                "workloads that change their parameters are not supported with several ranks",
                hint="use one rank",
            )
        self.ranks = ranks
        self.steps = model.optimizer is not None
        """Whether iterations include the optimizer step."""
        self._optimizers: Optional[_Optimizers] = None
        self._parameters_of_step: List[Any] = []
        self.copied = copy.deepcopy(model.module)
        """This variant's own module, whose parameters hold the gradients."""
        self._difference = ""
        self._in_block = False
        super().__init__(model=model, **variant)

    @property
    def is_eager_model(self) -> bool:
        """Whether it runs the model itself: never, so that its results are checked."""
        return False

    @property
    def rank_difference(self) -> str:
        """How gradients or parameters of the ranks differed in checked calls; empty if they did not."""
        return self._difference

    def _module(self) -> Any:
        return wrapped(self.copied, self.options, self.device)

    def _optimizer(self) -> Any:
        # Made after the module was wrapped, which may replace parameters.
        if self.steps and self._optimizers is None:
            parameters = [p for p in self.copied.parameters() if p.requires_grad]
            self._optimizers = _Optimizers(self.model.built.optimizer, parameters)  # type: ignore[arg-type]
        return self._optimizers

    def barrier(self) -> None:
        """Wait for the other ranks."""
        self.ranks.barrier()

    def snapshot(self, names: List[str]) -> Dict[str, Any]:
        """Copy the current values of these inputs, and of the variant's own buffers and parameters."""
        values = self.model.snapshot(names)
        own = {"buffer " + name: buffer for name, buffer in self.copied.named_buffers()}
        if self.steps:
            own_names = ["parameter " + name for name, _ in self.copied.named_parameters()]
            own.update(zip(own_names, self.gathered_parameters()))
        for name, tensor in own.items():
            if name in values:
                values[name] = tensor.detach().clone()
        return values

    def gathered_parameters(self) -> List[Any]:
        """Return the whole parameters; all ranks must call it."""
        with torch.no_grad():
            return [p.full_tensor() if is_distributed(p) else p for p in self.copied.parameters()]

    def forget_gradients(self) -> None:
        """Drop gradients, as a training loop does between steps."""
        self.model.forget_gradients()
        for parameter in self.copied.parameters():
            parameter.grad = None

    def gathered_gradients(self) -> List[Any]:
        """Return the whole gradients of parameters, and this rank's of inputs; all ranks must call it."""
        gradients = []
        for parameter in self.copied.parameters():
            if not parameter.requires_grad:
                continue
            gradient = parameter.grad
            gradient = torch.zeros_like(parameter) if gradient is None else gradient
            gradients.append(gradient.full_tensor() if is_distributed(gradient) else gradient)
        same = self._compare("gradient", gradients)
        if self.steps:
            self._parameters_of_step = self.gathered_parameters()
            trained = zip(self.copied.parameters(), self._parameters_of_step)
            # Equal gradients give equal parameters; otherwise, rounding is allowed as in gradients.
            self._compare("parameter", [whole for p, whole in trained if p.requires_grad], same)
        inputs = [t for t in self.model.inputs() if t.requires_grad and t.is_leaf]
        return gradients + [torch.zeros_like(t) if t.grad is None else t.grad for t in inputs]

    def _compare(self, what: str, tensors: List[Any], exactly: bool = False) -> bool:
        """Compare tensors of all ranks; rank 0 keeps the first difference above rounding.

        Return whether they are equal, in all ranks the same answer.
        """
        own = [number for tensor in tensors for number in checksum(tensor)[:2]]
        if not own:
            return True
        sums = self.ranks.all_numbers([_signed(number) for number in own])
        names = [name for name, p in self.copied.named_parameters() if p.requires_grad]
        for rank in range(1, self.ranks.count):
            for index, tensor in enumerate(tensors):
                place = slice(2 * index, 2 * index + 2)
                if sums[0][place] == sums[rank][place]:
                    continue
                if self.ranks.rank == rank:
                    self.ranks.send_tensors([tensor], 0)
                elif self.ranks.rank == 0:
                    self._judge_difference(what, names[index], rank, tensor, exactly)
        return all(numbers == sums[0] for numbers in sums)

    def _judge_difference(
        self, what: str, name: str, rank: int, tensor: Any, exactly: bool
    ) -> None:
        other = torch.empty_like(tensor)
        self.ranks.receive_tensors([other], rank)
        relative = max(distance(other, tensor)[0], distance(tensor, other)[0])
        limit = 0.0 if exactly else NEAR_STEPS * float(torch.finfo(tensor.dtype).eps)
        if relative > limit and not self._difference:
            text = (
                "rank %d has another gradient of %s than rank 0 (relative difference %.2g)"
                if what == "gradient"
                else "rank %d has another parameter %s than rank 0 after the optimizer step "
                "(relative difference %.2g)"
            )
            self._difference = text % (rank, name, relative)


class LeadingRunner(RankRunner):
    """The variant in rank 0, which tells the other ranks what to do."""

    _parameter_changes: Optional[int] = None

    def caller(self) -> Callable[..., Any]:
        """Return one iteration of all ranks; each call is announced to the other ranks."""
        self._prepare(parameters=True, new_optimizer=True)
        local = self._local_caller()

        def call(*kept: Any) -> Any:
            self.ranks.send({"do": "call", "variant": self.name})
            return local(*kept)

        return call

    def begin_block(self, plan: Dict[str, Any]) -> Callable[..., Any]:
        """Announce all calls of a block at once; return one iteration of this rank."""
        changed = self._parameter_changes != self.model.parameter_changes
        self._prepare(parameters=changed or self.steps)
        self.ranks.send({"do": "block", "variant": self.name, "plan": plan})
        self._in_block = True
        return self._local_caller()

    def end_block(self) -> None:
        """End a block of timed calls."""
        self._in_block = False

    def _prepare(self, parameters: bool, new_optimizer: bool = False) -> None:
        """Give all ranks the parameters, buffers and inputs of the model."""
        command = {"do": "prepare", "variant": self.name, "parameters": parameters}
        self.ranks.send(dict(command, new_optimizer=new_optimizer))
        if new_optimizer:
            self._optimizers = None
        self.forget_gradients()
        made = self.function  # wrapping a module communicates, too
        if made is None:
            raise CannotBuild("the backend returned nothing")
        if parameters:
            self.ranks.write_parameters(self.copied, self.model.module)
            self._parameter_changes = self.model.parameter_changes
        self.ranks.write_buffers(self.copied, self.model.module)
        for rank in range(1, self.ranks.count):
            built = self.model.others[rank - 1] if self.model.others else self.model.built
            self.ranks.send_tensors(flatten(built.args) + flatten(built.kwargs), rank)

    def exposed_communication(self) -> Dict[str, Any]:
        """Time iterations with and without synchronization of gradients, in alternating blocks.

        Return pairs of times of the slowest rank, or why there are none. Communication that overlaps with
        computation does not make an iteration slower, and is not part of the difference.
        """
        if not isinstance(self.function, torch.nn.parallel.DistributedDataParallel):
            return {"why_not": "only eager DistributedDataParallel can run without communication"}
        if self.options.get("ddp.static_graph"):
            return {"why_not": "static_graph requires the same communication in every iteration"}
        if not getattr(self.function, SYNCHRONIZES):
            return {"why_not": "it does not synchronize gradients"}
        once_ns = max(1, self._time(True, 1))
        samples = max(1, min(200, int(BLOCK_NS / once_ns)))
        count = max(FEWEST_PAIRS, min(MOST_PAIRS, int(PAIRS_NS / (2 * samples * once_ns))))
        pairs = []
        for _ in range(count):
            on_first = _chance.random() < 0.5
            first, second = self._time(on_first, samples), self._time(not on_first, samples)
            pairs.append([first, second] if on_first else [second, first])
        # Without communication, the states of the optimizers diverge.
        self._prepare(parameters=True, new_optimizer=True)
        return {"pairs": pairs}

    def _time(self, synchronized: bool, samples: int) -> int:
        """Return the median time of an iteration in the slowest rank."""
        self.ranks.send({"do": "synchronize", "variant": self.name, "on": synchronized})
        setattr(self.function, SYNCHRONIZES, synchronized)
        try:
            block = timed_block(self, 1, samples, 1, None, False, None)
        finally:
            self.ranks.send({"do": "synchronize", "variant": self.name, "on": True})
            setattr(self.function, SYNCHRONIZES, True)
        self.ranks.send({"do": "compare", "variant": self.name})
        own = int(median(block["samples_ns"]))
        return max(numbers[0] for numbers in self.ranks.all_numbers([own]))

    def results(self, seed: int, groups: Iterable[str] = ()) -> Tuple[Dict[str, List[Any]], bool]:
        """Return the results of one iteration of all ranks from the initial state."""
        self.first_call()
        model = self.model
        model.rewind()
        with self.context():
            call = self.caller()
            self.ranks.send({"do": "seed", "seed": seed})
            torch.manual_seed(seed)
            generators = RandomState()
            kept: List[Any] = []
            if model.training:
                call(kept)
            else:
                kept.append(call())
            self.synchronize()
            self.moved_random_state = generators.restore() or self.moved_random_state
            self.changed = [name for name in model.changed_names() if name.startswith("input ")]
            self.changed += self._changed_buffers()
            results = self.collect(kept, self.changed, groups)
        model.rewind()
        return results, model.training

    def _changed_buffers(self) -> List[str]:
        before = dict(self.model.module.named_buffers())
        return [
            "buffer " + name
            for name, buffer in self.copied.named_buffers()
            if name in before and not same_numbers(buffer, before[name])
        ]

    def collect(
        self, kept: List[Any], changed: List[str], groups: Iterable[str] = ()
    ) -> Dict[str, List[Any]]:
        """Copy the outputs of this rank, the gradients of all, and the buffers that were written."""
        results = {"output": flatten(kept[0])}
        values = plain_values.values_of(kept[0])
        if values:
            results[plain_values.GROUP] = values
        if self.model.training:
            results["loss"] = [kept[1]]
            if not self._in_block:
                self.ranks.send({"do": "gather", "variant": self.name})
            results["gradient"] = self.gathered_gradients()
            if self.model.optimizer is not None:
                results["parameter"] = self._parameters_of_step
        kinds = {*groups, *(name.partition(" ")[0] for name in changed)}
        if self.model.training or "buffer" in kinds:
            results["buffer"] = list(self.copied.buffers())
        if "input" in kinds:
            results["input"] = self.model.inputs()
        copies = {
            group: [tensor.detach().clone() for tensor in tensors]
            for group, tensors in results.items()
        }
        self.result_bytes = sum(
            int(tensor.numel()) * int(tensor.element_size())
            for tensors in copies.values()
            for tensor in tensors
        )
        return copies


class FollowingRunner(RankRunner):
    """The variant in another rank, which makes the calls that rank 0 announces."""

    _latest: Dict[str, Any] = {}
    """The times of the latest block."""

    def begin_block(self, plan: Dict[str, Any]) -> Callable[..., Any]:  # noqa: ARG002
        """Return one iteration of this rank."""
        return self._local_caller()

    def follow(self, command: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """Execute a command of rank 0; return the times of a block."""
        task = command["do"]
        if task == "prepare":
            self._prepare(bool(command["parameters"]), bool(command["new_optimizer"]))
        elif task == "gather":
            self.gathered_gradients()
        elif task == "call":
            with self.context():
                self._local_caller()()
            self.synchronize()
        elif task == "block":
            self._latest = self._block(command["plan"])
            return self._latest
        elif task == "synchronize":
            setattr(self.function, SYNCHRONIZES, bool(command["on"]))
        elif task == "compare":
            self.ranks.all_numbers([int(median(self._latest["samples_ns"]))])
        return None

    def _prepare(self, parameters: bool, new_optimizer: bool) -> None:
        if new_optimizer:
            self._optimizers = None
        self.forget_gradients()
        made = self.function
        if made is None:
            raise CannotBuild("the backend returned nothing")
        if parameters:
            self.ranks.write_parameters(self.copied, self.model.module)
        self.ranks.write_buffers(self.copied, self.model.module)
        self.ranks.receive_tensors(self.model.inputs(), 0)

    def _block(self, plan: Dict[str, Any]) -> Dict[str, Any]:
        check: Any = _CheckElsewhere(self, plan)
        return timed_block(
            self,
            plan["inner"],
            plan["samples"],
            plan["prime"],
            flush_for(self.device) if plan["flush"] else None,
            plan["probe"],
            check,
        )


class _CheckElsewhere:
    """The calls whose results rank 0 checks: this rank takes part in gathering them."""

    def __init__(self, runner: FollowingRunner, plan: Dict[str, Any]) -> None:
        self._runner = runner
        self.chosen = frozenset(plan["chosen"])
        self.stateful = bool(plan["stateful"])
        self.unfinished_ns = 0

    def before(self) -> None:
        """Take part in gathering the parameters before the call; rank 0 keeps them."""
        if self.stateful and self._runner.steps:
            self._runner.gathered_parameters()

    def after(self, sample: int, kept: List[Any]) -> None:  # noqa: ARG002
        """Take part in gathering the gradients."""
        if self._runner.model.training:
            self._runner.gathered_gradients()


def _signed(number: int) -> int:
    """Return the number as one of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63
