"""The judgement over all tensors of an iteration: which rule each is held to, and what came out.

A tensor of floating-point numbers passes if it is close to the baseline's, or if its distance from
the float64 reference is at most a multiple of the distance that eager code of the same precision
has. Without a reference the cosine decides instead. Distances are root mean squares; tolerances are
relative to the size of the reference, so that small gradients cannot hide behind an absolute one.
Masks must overlap, whole numbers must be equal. A number that is NaN on both sides proves nothing.

Must not know where the tensors come from.
"""

from typing import Any, Dict, List, Optional

import torch

from torchyard.worker.float_distance import FloatDistance
from torchyard.worker.tensor_distance import overlap, rms

TOLERANCE = {"float32": 1e-4, "tf32": 1e-3, "float16": 1e-2, "bfloat16": 2e-2, "amp": 2e-2}
EPSILON = {"float32": 1.2e-7, "tf32": 9.8e-4, "float16": 9.8e-4, "bfloat16": 7.8e-3, "amp": 7.8e-3}
"""`tf32` is float32 where products may be rounded to ten bits on the way; see `rounding_of`."""
COSINE_AT_LEAST = 0.99
OVERLAP_AT_LEAST = 0.99
ROUNDING_SHARE = 0.1
WANDER_MULTIPLE = 10.0
"""A candidate may be this many times as far off as two runs of the baseline are from each other,
before it is called wrong and not merely not comparable."""


def rounding_of(precision: str, device: str, module: Any) -> str:
    """What the numbers of a side are rounded to.

    Torch lets cuDNN round the operands of float32 convolutions to TF32 unless told otherwise, and
    which convolutions it does that to changes with the layout that a compiler chooses.
    """
    if precision != "float32" or not device.startswith("cuda"):
        return precision
    convolves = any(isinstance(part, torch.nn.modules.conv._ConvNd) for part in module.modules())
    if not convolves or not torch.backends.cudnn.allow_tf32:
        return precision
    index = torch.device(device).index
    return "tf32" if torch.cuda.get_device_capability(index) >= (8, 0) else precision


class Judgement:
    """Collects the judgement over all tensors; the worst one decides and is named."""

    def __init__(self, rounding: str, cosine_only: bool, on: Any = "cpu") -> None:
        self.on = on
        """The device that does the arithmetic."""
        self.tolerance = TOLERANCE[rounding]
        self.epsilon = EPSILON[rounding]
        self.half = rounding != "float32"
        self.cosine_only = cosine_only
        self.compared = 0
        self.failures: List[str] = []
        self.excused = 0
        """Failures that two runs of the baseline could show as well."""
        self.both_nan: List[str] = []
        self.max_error = 0.0
        self.candidate_rmse: Optional[float] = None
        self.baseline_rmse: Optional[float] = None
        self.all_close = True
        self.nothing_finite = True

    def group(
        self,
        name: str,
        found: List[Any],
        baseline: List[Any],
        peer: List[Any],
        exact: Optional[List[Any]],
        wander: Optional[List[float]],
        by_chance: Optional[List[float]] = None,
    ) -> None:
        """Judge tensors of one kind.

        `wander` is how far the baseline moved between two runs, `by_chance` how far from the
        reference eager code was that rounded at random.
        """
        if len(found) != len(baseline):
            self.failures.append("%s: %d tensors instead of %d" % (name, len(found), len(baseline)))
            return
        reference = exact if exact is not None else baseline
        scale = max((rms(tensor, self.on) for tensor in reference), default=0.0)
        for index, tensor in enumerate(found):
            where = "%s %d" % (name, index)
            moves = 0.0 if wander is None else wander[index]
            self.compared += 1
            other = baseline[index]
            if tensor.shape != other.shape:
                said = (where, tuple(tensor.shape), tuple(other.shape))
                self._fail("%s: shape %s instead of %s" % said, excused=wander is None)
            elif tensor.is_floating_point() != other.is_floating_point():
                self._fail("%s: %s instead of %s" % (where, tensor.dtype, other.dtype))
            elif tensor.dtype is torch.bool and other.dtype is torch.bool:
                self._mask(where, tensor, other, moves > 0)
            elif not tensor.is_floating_point():
                self._whole_numbers(where, tensor, other, peer[index], moves > 0)
            else:
                self._floats(
                    where,
                    tensor,
                    other,
                    peer[index],
                    None if exact is None else exact[index],
                    scale,
                    moves,
                    0.0 if by_chance is None else by_chance[index],
                )

    def _fail(self, said: str, excused: bool = False) -> None:
        self.failures.append(said)
        self.excused += excused

    def _mask(self, where: str, found: Any, baseline: Any, moves: bool) -> None:
        self.nothing_finite = False
        share = overlap(found, baseline)
        self.all_close = self.all_close and share == 1.0
        if share < OVERLAP_AT_LEAST:
            self._fail("%s: only %.2g of its mask overlaps" % (where, share), excused=moves)

    def _whole_numbers(self, where: str, found: Any, baseline: Any, peer: Any, moves: bool) -> None:
        self.nothing_finite = False
        if not torch.equal(found, baseline) and not torch.equal(found, peer):
            share = float((found != baseline).double().mean())
            said = "%s: %.2g of its whole numbers differ" % (where, share)
            self._fail(said, excused=moves)

    def _floats(
        self,
        where: str,
        found: Any,
        baseline: Any,
        peer: Any,
        exact: Optional[Any],
        scale: float,
        wander: float,
        by_chance: float,
    ) -> None:
        gap = FloatDistance(found, baseline, peer, exact, tolerance=self.tolerance, on=self.on)
        if gap.mismatch:
            self._fail("%s: %s" % (where, gap.mismatch))
            return
        if gap.nan:  # on both sides: nothing can be told of it
            self.both_nan.append("%s (%d of %d)" % (where, gap.nan, found.numel()))
        if gap.finite == 0:
            return
        self.nothing_finite = False
        self.max_error = max(self.max_error, gap.largest)
        peer_rmse = max(gap.peer, by_chance)
        # A tensor that is nothing but rounding (a bias before a normalisation has no gradient) may
        # differ by as much as the others round. One that eager code gets right, however small, may
        # not: tiny gradients must not hide behind large ones.
        rounding_only = exact is None or peer_rmse >= ROUNDING_SHARE * gap.size
        floor = self.epsilon * scale if rounding_only else 0.0
        close = gap.beyond <= self.tolerance * gap.size + floor
        self.all_close = self.all_close and close
        excuse = WANDER_MULTIPLE * wander
        if exact is None:
            if not close and gap.cosine < COSINE_AT_LEAST:
                said = "%s: cosine below %.2f" % (where, COSINE_AT_LEAST)
                self._fail(said, excused=gap.candidate <= excuse)
            return
        self.candidate_rmse = max(self.candidate_rmse or 0.0, gap.candidate)
        self.baseline_rmse = max(self.baseline_rmse or 0.0, gap.peer)
        allowed = self._multiplier(found) * peer_rmse + self.tolerance / 10 * gap.size + floor
        if not close and gap.candidate > allowed:
            numbers = (where, gap.candidate, allowed)
            self._fail(
                "%s: %.3g from the float64 reference, allowed %.3g" % numbers,
                excused=gap.candidate <= allowed + excuse,
            )

    def _multiplier(self, tensor: Any) -> float:
        """Small tensors have a noisy error; half precisions round differently when fused."""
        if tensor.numel() <= 10:
            return 10.0
        return 3.0 if self.half or tensor.numel() < 1000 else 2.0

    @property
    def only_excused(self) -> bool:
        """Whether it failed, and in no way that two runs of the baseline do not."""
        return bool(self.failures) and self.excused == len(self.failures)

    def record(self) -> Dict[str, Any]:
        """What came out, in the words of `core.comparison.Accuracy`."""
        reason = self._why_unchecked()
        if not self.failures and reason:
            return {"status": "unchecked", "method": "none", "detail": reason, "compared": 0}
        if self.all_close:
            method = "close to the baseline within %g" % self.tolerance
        elif self.cosine_only:
            method = "cosine at least %g" % COSINE_AT_LEAST
        else:
            method = "distance from a float64 reference"
        return {
            "status": "fail" if self.failures else "pass",
            "method": method,
            "max_error": self.max_error,
            "candidate_rmse": self.candidate_rmse,
            "baseline_rmse": self.baseline_rmse,
            "compared": self.compared,
            "detail": "; ".join(self.failures[:3]),
        }

    def _why_unchecked(self) -> str:
        if self.compared == 0:
            return "nothing to compare"
        if self.nothing_finite:
            return "no finite number in the results"
        if self.both_nan:
            return "NaN on both sides: " + ", ".join(self.both_nan[:3])
        return ""
