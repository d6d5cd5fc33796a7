"""What a finding shows of its values: a few of them, their range, a small histogram.

Of the first time a cause was seen, from at most 4096 elements spread over the tensor. Everything is
bounded and plain JSON: numbers that are none (NaN, infinite) are words.
"""

import math
from typing import Any, Dict, List, Union

import torch

from torchyard.worker.values.observation import Observation

_SHOWN = 12
_BINS = 16

Number = Union[float, int, str]


def evidence_of(seen: Observation, **more: Any) -> Dict[str, Any]:
    """The values of an observation, and what else a pattern has to say."""
    found: Dict[str, Any] = {"zero_share": seen.scan.zeros / max(1, seen.scan.count)}
    if seen.tensor is not None:
        found.update(_values(seen.values()))
    found.update(more)
    return found


def where(seen: Observation) -> Dict[str, Any]:
    """Another operator that has to do with a finding."""
    place = seen.place
    return {
        "operator": seen.operator.name,
        "file": place.file,
        "line": place.line,
        "backward": place.backward,
    }


def _values(sample: torch.Tensor) -> Dict[str, Any]:
    if sample.is_complex():
        sample = torch.view_as_real(sample).reshape(-1)
    found: Dict[str, Any] = {"sample": [plain(item) for item in sample[:_SHOWN].tolist()]}
    numbers = sample.double()
    finite = numbers[torch.isfinite(numbers)]
    if not finite.numel():
        return found
    low, high = float(finite.min()), float(finite.max())
    found["range"] = [low, high]
    found["distinct"] = int(torch.unique(sample).numel())
    found["sampled"] = int(sample.numel())
    if low < high and math.isfinite(high - low):
        counts = torch.histc(finite, bins=_BINS, min=low, max=high)
        found["histogram"] = {"low": low, "high": high, "counts": _whole(counts)}
    return found


def _whole(counts: torch.Tensor) -> List[int]:
    return [int(count) for count in counts.tolist()]


def plain(number: Any) -> Number:
    """A number for JSON."""
    if isinstance(number, bool):
        return int(number)
    if isinstance(number, float) and not math.isfinite(number):
        return str(number)
    return number
