"""Metrics of a variant besides its time: peak memory, operations, graphs and recompilations."""

import gc
from collections import Counter
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from torchyard.worker.bench import dynamo_graphs
from torchyard.worker.bench.model import DTYPES, convert
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.workload import BuiltWorkload, CannotBuild, first_line, flatten, map_tensors

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def to_channels_last(tensor: Any) -> Any:
    """Return the tensor in channels-last format, or itself when it has no channels."""
    memory_format = FORMATS.get(tensor.dim())
    if memory_format is None or tensor.layout is not torch.strided:
        return tensor
    changed = tensor.detach().contiguous(memory_format=memory_format)
    return changed.requires_grad_(tensor.requires_grad)


def put_channels_last(built: BuiltWorkload) -> None:
    """Convert inputs and parameters to channels-last; raise CannotBuild when none has 4 or 5 dimensions."""
    module = built.module
    inputs = flatten(built.args) + flatten(built.kwargs)
    if not any(t.dim() in FORMATS for t in [*inputs, *module.parameters(), *module.buffers()]):
        raise CannotBuild(
            "channels-last has no effect: no input or weight has four or five dimensions",
            hint="remove the option for this workload",
        )
    built.args = map_tensors(built.args, to_channels_last)
    built.kwargs = map_tensors(built.kwargs, to_channels_last)
    for other in built.others:
        other.args = map_tensors(other.args, to_channels_last)
        other.kwargs = map_tensors(other.kwargs, to_channels_last)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data = to_channels_last(tensor.data)


class OtherBatches:
    """Recompilations in a trial with other batch sizes."""

    def __init__(self) -> None:
        self.recompiles = 0
        self.reasons: "Counter[str]" = Counter()
        self.tried: List[int] = []
        self.why_not = ""


def other_sizes(batch_size: int) -> List[int]:
    """Return a smaller and a larger batch size. Not 1: compilers specialise on it."""
    smaller = max(2, batch_size // 2)
    larger = batch_size + max(1, batch_size // 2)
    return sorted({smaller, larger} - {batch_size})


def try_other_batches(
    runner: VariantRunner,
    batch_size: Optional[int],
    rebuild: Callable[[Optional[int]], BuiltWorkload],
) -> OtherBatches:
    """Call a copy of the variant with its own batch size, then with others; count recompilations."""
    result = OtherBatches()
    if batch_size is None:
        result.why_not = "the workload has no batch size"
        return result
    trial = runner.remade(runner.options)
    dynamo_graphs.forget_sizes()
    trial.first_call()
    for size in other_sizes(batch_size):
        before, reasons_before = trial.recompiles or 0, len(trial.recompile_reasons)
        try:
            _call(trial, rebuild(size))
        except Exception as error:
            result.why_not = "batch size %d failed: %s: %s" % (
                size,
                type(error).__name__,
                first_line(error),
            )
            continue
        result.tried.append(size)
        count = (trial.recompiles or 0) - before
        result.recompiles += count
        reasons = trial.recompile_reasons[reasons_before:][-count:] if count else []
        reasons += ["no reason given"] * (count - len(reasons))
        result.reasons.update("batch size %d: %s" % (size, reason) for reason in reasons)
    dynamo_graphs.forget_sizes()
    runner.model.rewind()
    return result


def _call(trial: VariantRunner, other: BuiltWorkload) -> None:
    """Run one iteration of the trial on the inputs of another batch size."""
    model = trial.model
    inputs = BuiltWorkload(torch.nn.Module(), other.args, other.kwargs)
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


def measure(runner: VariantRunner, trial: Optional[OtherBatches] = None) -> Dict[str, Any]:
    """Return memory, graph counters and recompilations, including those of `trial`."""
    runner.first_call()
    peak, method, why_not = peak_memory(runner)
    moved, moved_why_not = moved_bytes(runner)
    reasons = {"peak_memory_bytes": why_not, "moved_bytes": moved_why_not}
    recompiles, recompile_reasons = runner.recompiles, Counter(runner.recompile_reasons)
    if trial is not None:
        reasons["recompiles"] = trial.why_not
        recompiles = (recompiles or 0) + trial.recompiles
        recompile_reasons.update(trial.reasons)
    result: Dict[str, Any] = {
        "peak_memory_bytes": peak,
        "memory_method": method,
        "moved_bytes": moved,
        "recompiles": recompiles,
        "recompile_reasons": [[reason, count] for reason, count in recompile_reasons.items()],
        "tried_batches": [] if trial is None else trial.tried,
        "unavailable": [[name, reason] for name, reason in reasons.items() if reason],
    }
    result.update(runner.graph_counters)
    return result


def peak_memory(runner: VariantRunner) -> Tuple[Optional[int], str, Optional[str]]:
    """Return the peak memory of an iteration, the method, and why it is unavailable, if so."""
    gc.collect()
    device = runner.hardware
    method = "peak of live tensor bytes above the start, %s allocator" % device.title
    if device.is_host:
        try:
            return _cpu_peak(runner), method, None
        except Exception as error:
            return None, "", "the profiler cannot record allocations: " + type(error).__name__
    device.synchronize()
    if _replays_graphs(runner):
        return None, "", "it replays CUDA graphs, whose memory stays allocated in a pool"
    before = device.allocated_bytes()
    if before is None:
        return None, "", device.why_no_memory
    device.reset_peak()
    with runner.context():
        runner.caller()()
        runner.forget_gradients()
    device.synchronize()
    return (device.peak_bytes() or before) - before, method, None


def _replays_graphs(runner: VariantRunner) -> bool:
    """Whether its memory is in the pool of a CUDA graph: an iteration then allocates nothing.

    Such a pool has an id; the default pool has none. A variant that may record graphs and did not is
    measured like any other, unless another variant of the process did.
    """
    names = ("cudagraphs", "inductor:reduce-overhead", "inductor:max-autotune")
    may_record = runner.backend in names or bool(runner.options.get("inductor.triton.cudagraphs"))
    if not may_record and not runner.runs_user_code:
        return False
    return runner.hardware.memory_pools() != {(0, 0)}


def _cpu_peak(runner: VariantRunner) -> int:
    from torch.profiler import ProfilerActivity, profile

    with runner.context():  # outside: its allocations are not part of an iteration
        call = runner.caller()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
            runner.forget_gradients()
    return peak_of(profiler)


def peak_of(profiler: Any) -> int:
    """Return the peak of live tensor bytes above the start of a profile with memory."""
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns() if hasattr(e, "start_ns") else e.start_us())
    alive = peak = 0
    for event in events:
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def count_flops(runner: VariantRunner) -> Tuple[Optional[float], str]:
    """Return the floating-point operations of one eager iteration, or why they are unknown."""
    declared = runner.model.built.flops if runner.own_module is None else None
    if declared is not None and not runner.model.training:
        return float(declared), ""
    try:
        from torch.utils.flop_counter import FlopCounterMode
    except ImportError:
        return None, "torch " + torch.__version__ + " has no FLOP counter"
    try:
        with runner.context(), FlopCounterMode(display=False) as counter:
            runner.caller()()
    except Exception as error:
        return None, "the FLOP counter failed: " + type(error).__name__
    finally:
        runner.model.rewind()
    total = float(counter.get_total_flops())
    return (total, "") if total > 0 else (None, "the FLOP counter supports none of its operators")


def moved_bytes(runner: VariantRunner) -> Tuple[Optional[float], str]:
    """Return the minimum memory traffic of an iteration in this precision, or why it is unknown."""
    traffic = runner.model.built.traffic
    if traffic is None:
        return None, ""  # most workloads do not define it, and nothing failed
    if runner.precision == "amp":
        return None, "with amp, inputs and outputs have different data types"
    if runner.model.optimizer is not None:
        return None, "with the optimizer step it depends on the optimizer"
    dtype = DTYPES[runner.precision]
    return traffic.bytes_at(torch.empty(0, dtype=dtype).element_size()), ""


def versions() -> List[Tuple[str, str]]:
    """Return the versions of the target's packages that provide workloads."""
    packages = []
    for name in ("transformers", "timm", "torchvision", "triton"):
        try:
            from importlib.metadata import version

            packages.append((name, version(name)))
        except Exception:  # noqa: S112 - any error means that it is not usable here
            continue
    return packages
