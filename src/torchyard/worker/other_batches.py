"""Other batch sizes: what the compiler compiles again when the size changes.

Tried on a callable of its own, made like the side's: dynamo would otherwise put code for changing
sizes in the place of the code that is timed. Runs inside the target, after everything is compiled.
"""

from collections import Counter
from typing import Any, Callable, List, Optional

import torch

from torchyard.worker import graphs
from torchyard.worker.built import Built, map_tensors
from torchyard.worker.memory_format import to_channels_last
from torchyard.worker.side import DTYPES, Side, convert


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
    graphs.forget_sizes()
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
    graphs.forget_sizes()
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
