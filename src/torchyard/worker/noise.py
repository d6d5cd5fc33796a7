"""What rounding does to the results of a computation, tensor by tensor. Runs inside the target.

The noise is measured: some runs with simulated rounding give the scale of the error of each number,
further runs and the baseline's own error are profiled against that scale, as the candidate will be.
Where no run could be made, a scale is assumed from the size of the numbers.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.error_profile import Profile, Scale, assumed_scale, profile
from torchyard.worker.tensor_distance import Results

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
AMPLIFIED = 4.0
"""How much larger the noise of an amplified run is."""


class TensorNoise:
    """The noise of one tensor."""

    def __init__(self, reference: Any, epsilon: float) -> None:
        self.scale = Scale(reference, epsilon)
        self.profiles: List[Profile] = []
        self.moved: Optional[Any] = None
        """Whole numbers that rounding changes, and numbers that it makes finite or not."""
        self.reshaped = False
        self.baseline_rms = 0.0


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
        self.factor = 1.0
        """Of the norm that is allowed."""
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
