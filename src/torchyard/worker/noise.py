"""What rounding does to the results of a computation, tensor by tensor. Runs inside the target.

The noise is measured: some runs with simulated rounding give the scale of the error of each number,
further runs and the baseline's own error are profiled against that scale, as the candidate will be.
Where no run could be made, a scale is assumed from the size of the numbers.
"""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from torchyard.worker.error_profile import Profile, Scale, assumed_scale, profile
from torchyard.worker.tensor_distance import Results, rms_between

EPSILON = {
    "float32": 2.0**-23,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "amp": 2.0**-8,
    "amp-float16": 2.0**-11,
}
"""Relative rounding error; `tf32` is float32 with products of operands rounded to ten bits."""
ASSUMED_STEPS = {"float32": 64.0}
"""Rounding steps that are assumed for an error where none could be measured; 4 for short formats."""
MOST_OF_BASELINE = 8.0
"""Times the scale of simulated rounding: the norm of the baseline's error that rounding explains."""
REFERENCE_OFF = 32.0
"""Times their distance from each other: how far two runs must be from a reference to refute it."""
AMPLIFIED = 4.0
"""How much larger the noise of an amplified run is."""


class Rare(NamedTuple):
    """Outliers of honest runs: a rectifier that opens in one run and stays shut in another."""

    share: float
    """Of the numbers of a group, in the run with the most of them."""
    largest: float
    """The largest, in units of the scale of its tensor."""
    trend: float
    """The strongest trend."""


class TensorNoise:
    """The noise of one tensor."""

    def __init__(self, reference: Any, epsilon: float) -> None:
        self.scale = Scale(reference, epsilon)
        self.profiles: List[Profile] = []
        self.moved: Optional[Any] = None
        """Whole numbers that rounding changes, and numbers that it makes finite or not."""
        self.reshaped = False
        self.baseline_rms = 0.0
        self.baseline_off = False
        """Whether the baseline's own error is larger than rounding explains."""


class Noise:
    """The noise of all tensors of an iteration.

    `exact` are the results in float64, or None: the baseline's are the reference then.
    """

    def __init__(
        self, baseline: Results, exact: Optional[Results], rounding: str, on: Any = "cpu"
    ) -> None:
        self.rounding = rounding
        self.on = on
        self.exact = exact is not None
        self.runs = 0
        self.assumed = ""
        """Why the noise is assumed and not measured."""
        self._baseline = baseline
        self._tensors: Dict[Tuple[str, int], TensorNoise] = {}
        reference = baseline if exact is None else exact
        for group, tensors in reference.items():
            for index, tensor in enumerate(tensors):
                noise = TensorNoise(tensor, EPSILON[rounding])
                self._tensors[group, index] = noise
                own = baseline[group][index]
                if exact is not None and _comparable(own, tensor):
                    noise.baseline_rms = profile(own, noise.scale, on).rms

    def of(self, group: str, index: int) -> TensorNoise:
        """The noise of a tensor."""
        return self._tensors[group, index]

    def rare(self, group: str) -> Rare:
        """What rarely happens to some tensor of a group may happen to any."""
        every = [noise.profiles for (own, _), noise in self._tensors.items() if own == group]
        every = [profiles for profiles in every if profiles]
        share = largest = trend = 0.0
        for run in zip(*every):
            numbers = sum(one.finite for one in run)
            share = max(share, sum(one.outliers for one in run) / max(1, numbers))
            trend = max([trend] + [one.trend for one in run])
            for one in run:
                if one.outliers and one.scale_rms:
                    largest = max(largest, one.largest_outlier / one.scale_rms)
        return Rare(share, largest, trend)

    def reference_is_off(self, one: Results, other: Results) -> bool:
        """Whether two runs agree with each other far better than with the reference.

        A model may compute something else in float64 than in float32.
        """
        for noise, tensor, _ in self._each(one):
            reference = noise.scale.reference
            if not _comparable(tensor, reference):
                continue
            error = rms_between(tensor, reference, self.on)
            for twin, again, _ in self._each(other):
                if twin is noise and again.shape == tensor.shape:
                    spread = rms_between(tensor, again, self.on)
                    least = EPSILON[self.rounding] * rms_between(reference, 0 * reference, self.on)
                    if error > REFERENCE_OFF * (spread + least):
                        return True
        return False

    def add_to_scale(self, results: Results) -> None:
        """Let the errors of a run define the scale."""
        for noise, tensor, baseline in self._each(results):
            if _comparable(tensor, noise.scale.reference):
                noise.scale.add(tensor)
            self._mark(noise, tensor, baseline)
        self.runs += 1

    def add_honest(self, results: Results, amplified: bool = False) -> None:
        """Let the errors of a run be what a candidate may have."""
        for noise, tensor, baseline in self._each(results):
            if _comparable(tensor, noise.scale.reference):
                factor = AMPLIFIED if amplified else 1.0
                noise.profiles.append(profile(tensor, noise.scale, self.on, factor))
            self._mark(noise, tensor, baseline)
        self.runs += 1

    def add_baseline(self) -> None:
        """Let the baseline's own error count, in tensors where rounding explains it."""
        for noise, tensor, _ in self._each(self._baseline):
            if not _comparable(tensor, noise.scale.reference):
                continue
            seen = profile(tensor, noise.scale, self.on)
            noise.baseline_off = seen.norm > MOST_OF_BASELINE
            if not noise.baseline_off:
                noise.scale.add(tensor)
                noise.profiles.append(profile(tensor, noise.scale, self.on))

    @property
    def baseline_off(self) -> bool:
        """Whether the baseline's error is larger than rounding explains in some tensor."""
        return any(noise.baseline_off for noise in self._tensors.values())

    @property
    def baseline_rmse(self) -> float:
        """The largest root mean square error of the baseline in a tensor."""
        return max((noise.baseline_rms for noise in self._tensors.values()), default=0.0)

    def largest_baseline_error(self) -> float:
        """The largest relative error of the baseline in a tensor."""
        largest = 0.0
        for noise in self._tensors.values():
            reference = noise.scale.reference
            if noise.baseline_rms and reference.is_floating_point():
                size = profile(reference, noise.scale, self.on).reference_rms
                largest = max(largest, noise.baseline_rms / size if size else math.inf)
        return largest

    def about_baseline(self) -> "Noise":
        """The same noise around the baseline's results instead of the reference."""
        other = Noise(self._baseline, None, self.rounding, self.on)
        for key, noise in self._tensors.items():
            moved = other._tensors[key]
            moved.scale.errors, moved.scale.runs = noise.scale.errors, noise.scale.runs
            moved.profiles, moved.moved = noise.profiles, noise.moved
            moved.reshaped, moved.baseline_rms = noise.reshaped, noise.baseline_rms
        return other

    def assume(self, reason: str) -> None:
        """Without any run: a scale from the size of the numbers."""
        self.assumed = reason
        for noise in self._tensors.values():
            reference = noise.scale.reference
            if reference.is_floating_point():
                steps = ASSUMED_STEPS.get(self.rounding, 4.0)
                noise.scale = assumed_scale(reference, EPSILON[self.rounding], steps)

    def widened(self, first: Results, second: Results, factor: float) -> "Noise":
        """The same with the difference of two runs of the baseline added."""
        wider = Noise({}, {}, self.rounding, self.on)
        wider.exact = self.exact
        for key, noise in self._tensors.items():
            group, index = key
            one, other = first[group][index], second[group][index]
            added = TensorNoise(noise.scale.reference, EPSILON[self.rounding])
            added.profiles, added.reshaped = list(noise.profiles), noise.reshaped
            added.moved, added.baseline_rms = noise.moved, noise.baseline_rms
            if one.shape != other.shape:
                added.reshaped = True
            elif one.is_floating_point():
                added.scale = noise.scale.widened(one, other, factor)
            else:
                added.moved = _either(noise.moved, one != other)
            wider._tensors[key] = added
        return wider

    def _each(self, results: Results) -> Any:
        for (group, index), noise in self._tensors.items():
            tensors = results.get(group, [])
            baseline = self._baseline[group][index]
            if index < len(tensors) and tensors[index].shape == baseline.shape:
                yield noise, tensors[index], baseline
            else:
                noise.reshaped = True

    def _mark(self, noise: TensorNoise, tensor: Any, baseline: Any) -> None:
        if tensor.is_floating_point():
            differs = torch.isfinite(tensor) != torch.isfinite(baseline)
            if not bool(differs.any()):
                return
        else:
            differs = tensor != baseline
        noise.moved = _either(noise.moved, differs)


def _either(one: Optional[Any], other: Any) -> Any:
    return other if one is None else one | other


def _comparable(tensor: Any, reference: Any) -> bool:
    return bool(tensor.is_floating_point() and tensor.shape == reference.shape)
