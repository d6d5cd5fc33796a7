"""What is measured of a variant besides its time: peak memory, operations, graphs, recompilations, operators."""

import gc
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from torchyard.worker.bench import dynamo_graphs
from torchyard.worker.bench.backend_names import is_user_function
from torchyard.worker.bench.variant import DTYPES, Side, convert
from torchyard.worker.devices import CudaDevice, cuda_device
from torchyard.worker.workload import Built, CannotBuild, flatten, map_tensors

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def to_channels_last(tensor: Any) -> Any:
    """The tensor with its channels innermost, or itself when it has none."""
    wanted = FORMATS.get(tensor.dim())
    if wanted is None or tensor.layout is not torch.strided:
        return tensor
    return tensor.detach().contiguous(memory_format=wanted).requires_grad_(tensor.requires_grad)


def put_channels_last(built: Built) -> None:
    """Change inputs and parameters of the workload; CannotBuild when none is an image or a volume."""
    module = built.module
    inputs = flatten(built.args) + flatten(built.kwargs)
    if not any(t.dim() in FORMATS for t in [*inputs, *module.parameters(), *module.buffers()]):
        raise CannotBuild(
            "channels-last changes nothing here: no input or weight has four or five dimensions",
            hint="leave the option out for this workload",
        )
    built.args = map_tensors(built.args, to_channels_last)
    built.kwargs = map_tensors(built.kwargs, to_channels_last)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data = to_channels_last(tensor.data)


class OtherBatches:
    """What came of the trial."""

    def __init__(self) -> None:
        self.recompiles = 0
        self.reasons: "Counter[str]" = Counter()
        self.tried: List[int] = []
        self.why_not = ""


def other_sizes(batch_size: int) -> List[int]:
    """A smaller one and a larger one. Not 1: compilers treat it apart from all other sizes."""
    smaller = max(2, batch_size // 2)
    larger = batch_size + max(1, batch_size // 2)
    return sorted({smaller, larger} - {batch_size})


def try_other_batches(
    side: Side, batch_size: Optional[int], rebuild: Callable[[Optional[int]], Built]
) -> OtherBatches:
    """Call the side's like with its own batch size, then with others, and count compilations."""
    found = OtherBatches()
    if batch_size is None:
        found.why_not = "the workload has no batch size that could be another"
        return found
    trial = Side(side.name, side.backend, side.precision, side.model, side.device, side.options)
    dynamo_graphs.forget_sizes()
    trial.first_call()
    for size in other_sizes(batch_size):
        before, said = trial.recompiles or 0, len(trial.recompile_reasons)
        try:
            _call(trial, rebuild(size))
        except Exception as error:
            lines = str(error).strip().splitlines()
            found.why_not = "batch size %d failed: %s: %s" % (
                size,
                type(error).__name__,
                lines[0][:200] if lines else "",
            )
            continue
        found.tried.append(size)
        count = (trial.recompiles or 0) - before
        found.recompiles += count
        reasons = trial.recompile_reasons[said:][-count:] if count else []
        reasons += ["no reason given"] * (count - len(reasons))
        found.reasons.update("batch size %d: %s" % (size, reason) for reason in reasons)
    dynamo_graphs.forget_sizes()
    side.model.rewind()
    return found


def _call(trial: Side, other: Built) -> None:
    """One iteration of the trial's own model on the inputs of another size."""
    model = trial.model
    inputs = Built(torch.nn.Module(), other.args, other.kwargs)
    inputs = convert(inputs, DTYPES.get(trial.precision, torch.float32))
    if trial.options.get("channels-last"):
        inputs.args = map_tensors(inputs.args, to_channels_last)
        inputs.kwargs = map_tensors(inputs.kwargs, to_channels_last)
    with trial.context():
        output: Any = trial.function(*inputs.args, **inputs.kwargs)
        if model.training and other.loss is not None:
            other.loss(output).backward()
    trial.synchronize()
    model.forget_gradients()


def measure(side: Side, trial: Optional[OtherBatches] = None) -> Dict[str, Any]:
    """Memory, graph counters and what was compiled again; `trial` has tried other batch sizes."""
    side.first_call()
    peak, method, why_not = peak_memory(side)
    moved, moved_why_not = moved_bytes(side)
    reasons = {"peak_memory_bytes": why_not, "moved_bytes": moved_why_not}
    recompiles, again = side.recompiles, Counter(side.recompile_reasons)
    if trial is not None:
        reasons["recompiles"] = trial.why_not
        recompiles = (recompiles or 0) + trial.recompiles
        again.update(trial.reasons)
    result: Dict[str, Any] = {
        "peak_memory_bytes": peak,
        "memory_method": method,
        "moved_bytes": moved,
        "recompiles": recompiles,
        "recompile_reasons": [[reason, count] for reason, count in again.items()],
        "tried_batches": [] if trial is None else trial.tried,
        "unavailable": [[name, reason] for name, reason in reasons.items() if reason],
    }
    result.update(side.graph_counters)
    return result


def peak_memory(side: Side) -> Tuple[Optional[int], str, Optional[str]]:
    """Peak bytes of an iteration, how they were counted, and why not if they could not be."""
    gc.collect()
    cuda = cuda_device(side.device)
    if cuda is not None:
        cuda.synchronize()
        if _replays_graphs(side, cuda):
            return None, "", "it replays CUDA graphs, whose memory is taken once and kept in a pool"
        before = cuda.allocated_bytes()
        cuda.reset_peak()
        _iterate(side)
        cuda.synchronize()
        peak = cuda.peak_bytes() - before
        return peak, "tensor bytes alive above the start, CUDA allocator", None
    try:
        return _cpu_peak(side), "tensor bytes alive above the start, CPU allocator", None
    except Exception as error:
        return None, "", "the profiler cannot count allocations: " + type(error).__name__


def _replays_graphs(side: Side, cuda: CudaDevice) -> bool:
    """Whether its memory lies in the pool of a CUDA graph: an iteration then allocates nothing.

    Such a pool is known by its number; the ordinary one has none. A side that may record graphs and
    did not, for whatever reason, is counted like any other, unless another side of the process did.
    """
    names = ("cudagraphs", "inductor:reduce-overhead", "inductor:max-autotune")
    wants = side.backend in names or bool(side.options.get("inductor.triton.cudagraphs"))
    if not wants and not is_user_function(side.backend):
        return False
    return cuda.memory_pools() != {(0, 0)}


def _cpu_peak(side: Side) -> int:
    from torch.profiler import ProfilerActivity, profile

    with side.context():  # outside: what it allocates is no part of an iteration
        call = side.caller()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
            side.model.forget_gradients()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns() if hasattr(e, "start_ns") else e.start_us())
    alive = peak = 0
    for event in events:
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def _iterate(side: Side) -> None:
    with side.context():
        side.caller()()
        side.model.forget_gradients()


def count_flops(side: Side) -> Tuple[Optional[float], str]:
    """Floating-point operations of one eager iteration, or why they are unknown."""
    if side.model.built.flops is not None and not side.model.training:
        return float(side.model.built.flops), ""
    try:
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:
        return None, "torch " + torch.__version__ + " has no flop counter"
    try:
        with side.context(), FlopCounterMode(display=False) as counter:
            side.caller()()
    except Exception as error:
        return None, "the flop counter failed: " + type(error).__name__
    finally:
        side.model.rewind()
    total = float(counter.get_total_flops())
    return (total, "") if total > 0 else (None, "the flop counter knows none of its operators")


def moved_bytes(side: Side) -> Tuple[Optional[float], str]:
    """What an iteration must read and write at least in this precision, or why it is not known."""
    traffic = side.model.built.traffic
    if traffic is None:
        return None, ""  # most workloads do not say, and nothing failed
    if side.precision == "amp":
        return None, "with amp, what goes in and what comes out differ in size"
    if side.model.optimizer is not None:
        return None, "with the optimiser's step it depends on the optimiser"
    dtype = DTYPES[side.precision]
    return traffic.bytes_at(torch.empty(0, dtype=dtype).element_size()), ""


def versions() -> List[Tuple[str, str]]:
    """Packages of the target that a workload may come from."""
    found = []
    for name in ("transformers", "timm", "torchvision", "triton"):
        try:
            from importlib.metadata import version

            found.append((name, version(name)))
        except Exception:  # noqa: S112 - any damage means it is not usable here
            continue
    return found
