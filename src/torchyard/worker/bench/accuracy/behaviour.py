"""Check the behaviour of a variant beyond its numbers, compared with eager code.

Covers the structure of results, results overwritten by later calls, parameters after a call, scaled inputs, changed
weights, another batch size, and cached results for repeated inputs.
"""

import random
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from torchyard.worker.bench.accuracy import judge as accuracy
from torchyard.worker.bench.accuracy import tensors as result_structure
from torchyard.worker.bench.accuracy.tensors import (
    relative_distance,
    shapes_of,
    to_plain,
)
from torchyard.worker.bench.accuracy.timed_results import Verifier
from torchyard.worker.bench.backend_names import is_user_function
from torchyard.worker.bench.model import Model, can_be_written, same_numbers
from torchyard.worker.bench.timing import clock
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.workload import BuiltWorkload, flatten, map_tensors

_CHUNK = 4096


def checksums(module: Any) -> Dict[str, Tuple[Any, ...]]:
    """Return a checksum of each parameter's bits: detects changes without a copy."""
    return {name: checksum(parameter) for name, parameter in module.named_parameters()}


def checksum(tensor: Any) -> Tuple[Any, ...]:
    """Return a checksum of the bits of a strided tensor; empty for other layouts."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return ()
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
        widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        bits = flat.view(widths[flat.element_size()]) if flat.dtype is not torch.bool else flat
        whole = bits.numel() // _CHUNK * _CHUNK
        sums = bits[:whole].view(-1, _CHUNK).sum(dim=1, dtype=torch.int64)
        rest = bits[whole:].sum(dtype=torch.int64)
        weights = torch.arange(1, sums.numel() + 1, device=sums.device)
        return int((sums * weights).sum()), int(sums.sum() + rest), int(tensor.numel())


Findings = Tuple[List[str], List[str]]
"""Failures and notes."""

LATER_CALLS = 8
"""Calls after which an earlier result is compared: a callable may write to several buffers in turn."""
LATER_S = 0.5
"""Limit of the CPU time of these calls; one is always made."""
THREAD_S = 0.1
"""Waiting time where a call has started threads, which may still write to its result."""
SCALES = (100.0, 0.01)
REPEATED_RATIO = 1.3
"""A variant that is slower on new values than on repeated ones by this factor caches results."""
REPEATED_NS = 3000.0
REPEATED_TRIALS = 3
"""Number of trials; all must agree, because one may be disturbed."""
KEPT_RATIO = 1.5
"""The same for tensors that were not written since the previous call."""
KEEP = -1
"""Draw number for a call with the inputs of the previous one, not written again."""
REPEATED_SECONDS = 0.1
"""Duration of the calls of one trial and kind; at least six calls are made, of long ones three."""

WITHIN = 1e-3
"""Relative difference of eager results after other calls that is no dependence on them."""
STATE_MOVES = 10.0
"""A candidate is wrong, and not undetermined, if its error exceeds that dependence by this factor."""
SCRATCH_SIZE = 1 << 18
"""Numbers that are written before each call: 1 MiB each of source and result."""

_EXPORTED = ("torchscript", "export", "aot-inductor")
_RECORDED = ("cudagraphs", "inductor:reduce-overhead", "inductor:max-autotune")


def documents(runner: VariantRunner, behaviour: str) -> bool:
    """Whether the backend, or the user's callable, documents this behaviour."""
    head = runner.backend.partition(":")[0]
    if runner.runs_user_code and getattr(runner.function, behaviour, False) is True:
        return True
    if is_user_function(runner.backend):
        return False
    if behaviour == "overwrites_results":
        return runner.backend in _RECORDED or bool(runner.options.get("inductor.triton.cudagraphs"))
    if behaviour == "frozen_weights":
        return head in _EXPORTED or bool(runner.options.get("inductor.freezing"))
    return head in _EXPORTED  # other containers


def output_of(runner: VariantRunner, seed: int) -> Any:
    """Return the output of one iteration from the initial state, not a copy."""
    runner.first_call()
    model = runner.model
    model.rewind()
    with runner.context():
        torch.manual_seed(seed)
        kept: List[Any] = []
        call = runner.caller()
        if model.training:
            call(kept)
        else:
            kept.append(call())
        runner.synchronize()
    return kept[0]


def check_structure(runner: VariantRunner, peer: VariantRunner, seed: int) -> Findings:
    """Compare what a call returns and assigns besides numbers: containers, types, shapes, memory, attributes.

    Results whose structure depends on the seed in eager code are not compared.
    """
    model, training = runner.model, runner.model.training
    before = _attributes(model)
    output = output_of(peer, seed)
    assigned = _assigned(before, _attributes(model))
    expected, others = result_structure.describe(output, training), _shared_state(model, output)
    other = result_structure.describe(output_of(peer, seed + 1), training)
    if result_structure.difference(other, expected):
        model.rewind()
        return [], ["the shape of its results is random, and was not compared"]
    before = _attributes(model)
    output = output_of(runner, seed)
    missing = sorted(assigned - _assigned(before, _attributes(model)))
    actual = result_structure.describe(output, training)
    shared = sorted(_shared_state(model, output) - others)
    model.rewind()
    text = result_structure.difference(actual, expected)
    if text and result_structure.same_tensors(actual, expected) and documents(runner, "containers"):
        return [], ["returns other containers: " + text]
    if text:
        return [text], []
    notes = result_structure.not_compared(actual)
    if missing and runner.own_module is None:
        notes.append("does not assign what eager code does: " + ", ".join(missing[:3]))
    return ["output %d shares the memory of %s" % one for one in shared[:1]], notes


def _attributes(model: Model) -> Dict[str, Any]:
    """Return tensors and numbers in plain attributes of the modules, with the version of tensors."""
    return {
        (name + "." if name else "") + key: (value, getattr(value, "_version", 0))
        for name, part in model.module.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, (torch.Tensor, int, float))
    }


def _assigned(before: Dict[str, Any], after: Dict[str, Any]) -> Set[str]:
    missing = (None, 0)
    return {
        name
        for name, (value, version) in after.items()
        if before.get(name, missing)[0] is not value or before[name][1] != version
    }


def _shared_state(model: Model, output: Any) -> Set[Tuple[int, str]]:
    """Return which tensors of an output share the memory of which parameters and buffers."""
    state = [("parameter " + name, tensor) for name, tensor in model.module.named_parameters()]
    state += [("buffer " + name, tensor) for name, tensor in model.module.named_buffers()]
    names = {_address(tensor): name for name, tensor in state}
    shared = enumerate(map(_address, flatten(output, by_key=True)))
    return {(index, names[address]) for index, address in shared if address and address in names}


def check_earlier_results(
    runner: VariantRunner, peer: VariantRunner, seed: int, draw: int, level: str
) -> Findings:
    """Check that a result does not change when later calls run on other inputs."""
    if not _overwrites(runner, seed, draw, level) or _overwrites(peer, seed, draw, level):
        return [], []
    if documents(runner, "overwrites_results"):
        return [], ["overwrites earlier results with those of later calls, as it documents"]
    return ["a later call overwrites an earlier result: its storage is reused"], []


def _overwrites(runner: VariantRunner, seed: int, draw: int, level: str) -> bool:
    runner.model.draw_inputs(0, level)
    threads = threading.active_count()
    first = flatten(output_of(runner, seed))
    copies = [tensor.detach().clone() for tensor in first]
    runner.model.draw_inputs(draw, level)
    until_s = time.process_time() + LATER_S
    later = output_of(runner, seed)
    for _ in range(LATER_CALLS - 1):
        if time.process_time() > until_s:
            break
        later = output_of(runner, seed)
    if threading.active_count() > threads:
        time.sleep(THREAD_S)
    try:
        return not all(same_numbers(one.detach(), two) for one, two in zip(first, copies))
    except RuntimeError:  # CUDA graph trees refuse to read what was overwritten
        return True
    finally:
        del later
        runner.model.draw_inputs(0, level)


def depends_on_earlier_calls(
    runner: VariantRunner, peer: VariantRunner, seed: int, draw: int, level: str
) -> str:
    """Return why wrong results are undetermined: eager code's depend on earlier calls about as much.

    A module may keep state in attributes, which are not restored before a call, as buffers are.
    """
    model = runner.model
    first = to_plain(peer.results(seed)[0])
    model.draw_inputs(draw, level)
    for _ in range(2):
        peer.results(seed)
    model.draw_inputs(0, level)
    again = to_plain(peer.results(seed)[0])
    actual = to_plain(runner.results(seed, again)[0])
    if not shapes_of(first) == shapes_of(again) == shapes_of(actual):
        return ""
    moved = relative_distance(again, first)
    if moved <= WITHIN:
        return ""
    for group, tensors in again.items():
        if relative_distance({group: actual[group]}, {group: tensors}) > STATE_MOVES * moved:
            return ""
    return "results of eager code depend on earlier calls (relative difference %.2g)" % moved


def _address(tensor: Any) -> int:
    """Return the address of a tensor's storage; 0 if it has none."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return 0
    if tensor.layout is not torch.strided or not tensor.numel():
        return 0
    return int(tensor.untyped_storage().data_ptr())


def check_parameters(runner: VariantRunner, peer: VariantRunner, seed: int) -> Findings:
    """Check that an iteration without an optimizer writes only parameters that eager code writes."""
    model = runner.model
    if model.optimizer is not None or model.built.mutates:
        return [], []  # compared as results
    before = checksums(model.module)
    output_of(peer, seed)
    mine = {name for name, value in checksums(model.module).items() if before.get(name) != value}
    output_of(runner, seed)
    after = checksums(model.module)
    changed = [n for n, value in after.items() if before.get(n) != value and n not in mine]
    model.rewind()
    return ["changes parameter " + ", ".join(sorted(changed)[:3])] if changed else [], []


def check_scaled_inputs(runner: VariantRunner, verifier: Verifier, seed: int) -> Findings:
    """Check inputs scaled by 100 and by 0.01."""
    model = runner.model
    floats = {
        "input %d" % index: tensor
        for index, tensor in enumerate(model.inputs())
        if tensor.is_floating_point() and tensor.layout is torch.strided and can_be_written(tensor)
    }
    for scale in SCALES:
        snapshot = {name: tensor.detach() * scale for name, tensor in floats.items()}
        if not snapshot:
            break
        with model.starting_from(snapshot):
            text = _judged(runner, verifier.peer, verifier, seed)
        if text:
            return ["with inputs times %g: %s" % (scale, text)], []
    return [], []


def check_changed_weights(runner: VariantRunner, verifier: Verifier, seed: int) -> Findings:
    """Check weights halved and doubled in place: exact, so that they can be restored without a copy."""
    model = runner.model
    if runner.own_weights or getattr(runner.function, "own_weights", False) is True:
        return [], []
    with _changed_weights(model):
        text = _judged(runner, verifier.peer, verifier, seed)
    if not text:
        return [], []
    if documents(runner, "frozen_weights"):
        return [], ["results do not follow changed weights, as it documents"]
    hint = " (if intended, set frozen_weights = True on the callable)"
    return [
        f"results do not follow changed weights{hint if runner.runs_user_code else ''}: {text}"
    ], []


class _changed_weights:  # noqa: N801 - used as a context manager
    def __init__(self, model: Model) -> None:
        self._model = model
        self._parameters = [
            p
            for p in model.module.parameters()
            if p.is_floating_point() and p.layout is torch.strided and p.element_size() >= 2
        ]
        self._previous: Dict[str, Any] = {}

    def __enter__(self) -> None:
        self._model.rewind()
        self._multiply(0)
        self._previous = self._model.move_initial_state()

    def __exit__(self, *_: Any) -> None:
        self._model.restore_initial_state(self._previous)
        if not self._previous:
            self._multiply(1)

    def _multiply(self, turn: int) -> None:
        with torch.no_grad():
            for index, parameter in enumerate(self._parameters):
                parameter.mul_(0.5 if (index + turn) % 2 == 0 else 2.0)


def check_other_batch(runner: VariantRunner, verifier: Verifier, seed: int) -> Findings:
    """Check a batch with one row less, for user-defined callables: they may hard-code one size."""
    model = runner.model
    tensors = model.inputs()
    sizes = {int(tensor.shape[0]) for tensor in tensors if tensor.dim() > 0}
    if not runner.runs_user_code or runner.several_ranks:
        return [], []
    if len(sizes) != 1 or max(sizes) < 2 or model.built.mutates:
        return [], []
    rows = max(sizes) - 1

    def shorter(tensor: Any) -> Any:
        if tensor.dim() == 0 or tensor.layout is not torch.strided:
            return tensor
        cut = tensor.detach()[:rows]
        cut = cut.clone() if can_be_written(cut) else cut
        return cut.requires_grad_(tensor.requires_grad)

    built = model.built
    other = BuiltWorkload(
        model.module,
        map_tensors(model.args, shorter),
        map_tensors(model.kwargs, shorter),
        built.loss,
        built.loss_name,
        built.optimizer,
    )
    smaller = Model(other, model.training, step=False)
    try:
        text = _judged(runner.on(smaller), verifier.peer.on(smaller), verifier, seed)
    except CandidateRaised as error:
        return [], ["does not accept a batch of %d: %s" % (rows, error)]
    return (["with a batch of %d: %s" % (rows, text)] if text else []), []


class CandidateRaised(Exception):
    """The variant failed where eager code did not."""


def _judged(runner: VariantRunner, peer: VariantRunner, verifier: Verifier, seed: int) -> str:
    """Check the variant on the current values of the model; empty if correct or eager code fails."""
    try:
        expected = peer.results(seed)[0]
    except Exception:
        runner.model.rewind()
        return ""
    if finite_share(expected) < 1.0:
        return ""
    try:
        results = runner.results(seed, expected)[0]
    except Exception as error:
        runner.model.rewind()
        lines = str(error).strip().splitlines()
        text = type(error).__name__ + (": " + lines[0][:120] if lines else "")
        raise CandidateRaised(text) from error
    if verifier.is_near(results, expected):
        return ""
    reference = accuracy.make_reference(peer, seed)
    if reference["random"]:
        return ""
    record = accuracy.judge(runner, seed, reference, results=results)
    return str(record["detail"]) if record["status"] == "fail" else ""


def finite_share(results: Any) -> float:
    """Return the share of finite floating-point numbers; 1 where there are none."""
    finite = total = 0
    for tensors in results.values():
        for tensor in tensors:
            if tensor.is_floating_point() and tensor.layout is torch.strided:
                numbers = result_structure.plain(tensor, tensor.device)
                finite += int(torch.isfinite(numbers).sum())
                total += int(numbers.numel())
    return finite / total if total else 1.0


def check_repeated_inputs(runner: VariantRunner, peer: VariantRunner, level: str) -> str:
    """Check whether the variant is faster on repeated inputs than eager code would be: it caches results.

    The inputs are written before each timed call, with new values or with the same ones, or are left alone. If they
    cannot be varied, parameters and inputs are written with the values that they have.
    """
    times = _repeated_times(runner, level)
    eager: Optional[_Times] = None
    for _ in range(REPEATED_TRIALS):
        if not times.remembers_values() and not times.remembers_tensors(0.0):
            return ""
        eager = eager or _repeated_times(peer, level)
        if not times.remembers_more_than(eager):
            return ""
        times = _repeated_times(runner, level)
    return (
        "takes %.3g us with new input values and %.3g us with repeated ones: it caches results"
        % (times.fresh_ns / 1e3, min(times.repeated_ns, times.kept_ns) / 1e3)
    )


class _Times(NamedTuple):
    """The shortest times of a call; disturbances only add time."""

    fresh_ns: float
    """Inputs were written with new values."""
    repeated_ns: float
    """Inputs were written with the values of the previous call."""
    kept_ns: float
    """Inputs were not written."""

    def remembers_values(self) -> bool:
        saved_ns = self.fresh_ns - self.repeated_ns
        return self.fresh_ns > REPEATED_RATIO * self.repeated_ns and saved_ns > REPEATED_NS

    def remembers_tensors(self, explained_ns: float) -> bool:
        """Whether it is faster on tensors that were not written; caches of the processor explain some time."""
        saved_ns = self.fresh_ns - self.kept_ns
        return self.fresh_ns > KEPT_RATIO * self.kept_ns and saved_ns > REPEATED_NS + explained_ns

    def remembers_more_than(self, eager: "_Times") -> bool:
        if self.remembers_tensors(2 * max(0.0, eager.fresh_ns - eager.kept_ns)):
            return True
        ratio = eager.fresh_ns / eager.repeated_ns
        explained = eager.remembers_values() and ratio > 0.7 * self.fresh_ns / self.repeated_ns
        return self.remembers_values() and not explained


def _repeated_times(runner: VariantRunner, level: str) -> _Times:
    chance = random.SystemRandom()
    model = runner.model
    varies = model.varies(level)
    source = torch.ones(SCRATCH_SIZE)
    scratch = torch.empty_like(source)

    def timed(call: Any, draw: int) -> float:
        if draw != KEEP and varies:
            model.draw_inputs(draw, level)
        elif draw != KEEP:
            _rewrite(model)
        else:
            model.changed_names()
        # Similar work before each call: otherwise one that directly follows another finds warmer caches.
        scratch.copy_(source)
        float(scratch.mul_(0.5).sum())
        runner.synchronize()
        start = clock()
        call()
        runner.synchronize()
        return float(clock() - start)

    with runner.context():
        call = runner.caller()
        once = min(timed(call, chance.randrange(1, 2**31)) for _ in range(3))
        least = 6 if once < REPEATED_SECONDS * 1e9 else 3
        count = max(least, min(40, int(REPEATED_SECONDS * 1e9 / max(1.0, 2 * once))))
        same = chance.randrange(1, 2**31)
        fresh, repeated, kept = [], [], []
        for _ in range(count):
            # In turns: a change of the machine's load affects all kinds. The second of two calls in
            # succession also finds a cache that holds one result.
            fresh.append(timed(call, chance.randrange(1, 2**31)))
            timed(call, same)
            repeated.append(timed(call, same))
            kept.append(timed(call, KEEP))
    model.draw_inputs(0, level)
    return _Times(min(fresh), min(repeated), min(kept))


def _rewrite(model: Model) -> None:
    """Write parameters and floating-point inputs with the values that they have."""
    with torch.no_grad():
        for tensor in [*model.module.parameters(), *model.inputs()]:
            strided = tensor.layout is torch.strided and can_be_written(tensor)
            if strided and tensor.is_floating_point() and tensor.element_size() > 1:
                tensor.mul_(1.0)
