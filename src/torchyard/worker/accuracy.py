"""Is the candidate right? Results of the timed configuration against a float64 reference.

The baseline's worker writes a reference file: its own results, the results of a float64 copy, how
far two runs of it differ (non-determinism), and whether another seed changes them (a random
workload). Each candidate's worker loads the file and judges its own results, so one path serves
one process and many, one torch and many.

A tensor passes if it is close to the baseline's, or if its distance from the float64 reference is
at most a multiple of the distance that eager code of the same precision has. Distances are root
mean squares; tolerances are relative to the size of the reference, so that small gradients cannot
hide behind an absolute tolerance.
"""

import math
import os
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.side import Model, Side, convert

TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 2e-2, "amp": 2e-2}
EPSILON = {"float32": 1.2e-7, "float16": 9.8e-4, "bfloat16": 7.8e-3, "amp": 7.8e-3}
COSINE_AT_LEAST = 0.99
ROUNDING_SHARE = 0.1
OTHER_SEED_STEP = 7919

Results = Dict[str, List[Any]]


def write_reference(side: Side, seed: int, path: str) -> Dict[str, Any]:
    """Run the baseline and its float64 copy, and save what candidates are judged by."""
    first, _ = side.results(seed)
    second, _ = side.results(seed)
    other, _ = side.results(seed + OTHER_SEED_STEP)
    exact, why_not = _float64_results(side, seed)
    between_runs = _largest_difference(first, second)
    random = between_runs == math.inf or _largest_difference(first, other) > 10 * between_runs
    nondeterminism = None if between_runs == math.inf else between_runs
    record = {
        "baseline": _to_cpu(first),
        "exact": None if exact is None else _to_cpu(exact),
        "exact_why_not": why_not,
        "nondeterminism": nondeterminism,
        "random": random,
        "precision": side.precision,
    }
    torch.save(record, path + ".part")
    os.replace(path + ".part", path)
    return {"nondeterminism": nondeterminism, "random": random}


def judge(side: Side, seed: int, path: str) -> Dict[str, Any]:
    """The accuracy record of a candidate, in the words of `core.comparison.Accuracy`."""
    record = load_tensors(path)
    found = _to_cpu(side.results(seed)[0])
    baseline: Results = record["baseline"]
    exact: Optional[Results] = record["exact"]
    if record["random"]:
        return {
            "status": "random",
            "method": "none",
            "nondeterminism": record["nondeterminism"],
            "detail": "the workload draws random numbers, which backends draw in another order",
        }
    peer = baseline
    if side.precision != record["precision"] and side.backend != "eager":
        peer = _to_cpu(_eager_peer(side).results(seed)[0])
    elif side.precision != record["precision"]:
        peer = found
    verdict = _Verdict(side.precision, exact is None)
    for group in sorted(set(baseline) | set(found)):
        verdict.group(
            group,
            found.get(group, []),
            baseline.get(group, []),
            peer.get(group, []),
            None if exact is None else exact.get(group, []),
        )
    result = verdict.record()
    result["nondeterminism"] = record["nondeterminism"]
    if exact is None:
        result["method"] += " (no float64 reference: " + str(record["exact_why_not"]) + ")"
    return result


class _Verdict:
    """Collects the judgement over all tensors; the worst one decides and is named."""

    def __init__(self, precision: str, cosine: bool) -> None:
        self.tolerance = TOLERANCE[precision]
        self.epsilon = EPSILON[precision]
        self.half = precision != "float32"
        self.cosine = cosine
        self.compared = 0
        self.failures: List[str] = []
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
    ) -> None:
        if len(found) != len(baseline):
            self.failures.append("%s: %d tensors instead of %d" % (name, len(found), len(baseline)))
            return
        reference = exact if exact is not None else baseline
        scale = max((_rms(tensor) for tensor in reference), default=0.0)
        for index, tensor in enumerate(found):
            where = "%s %d" % (name, index)
            self.compared += 1
            if tensor.shape != baseline[index].shape:
                self.failures.append(
                    "%s: shape %s instead of %s"
                    % (where, tuple(tensor.shape), tuple(baseline[index].shape))
                )
            elif tensor.is_floating_point() != baseline[index].is_floating_point():
                self.failures.append(
                    "%s: %s instead of %s" % (where, tensor.dtype, baseline[index].dtype)
                )
            elif not tensor.is_floating_point():
                self._whole_numbers(where, tensor, baseline[index])
            else:
                self._floats(
                    where,
                    tensor,
                    baseline[index],
                    peer[index],
                    None if exact is None else exact[index],
                    scale,
                )

    def _whole_numbers(self, where: str, found: Any, baseline: Any) -> None:
        self.nothing_finite = False
        if found.numel() and not torch.equal(found, baseline):
            share = float((found != baseline).double().mean())
            self.failures.append("%s: %.2g of its whole numbers differ" % (where, share))

    def _floats(
        self, where: str, found: Any, baseline: Any, peer: Any, exact: Optional[Any], scale: float
    ) -> None:
        found, baseline, peer = found.double(), baseline.double(), peer.double()
        finite = torch.isfinite(baseline)
        if not torch.equal(torch.isfinite(found), finite):
            self.failures.append("%s: not finite where the baseline is, or the reverse" % where)
            return
        found, baseline, peer = found[finite], baseline[finite], peer[finite]
        if found.numel() == 0:
            return
        self.nothing_finite = False
        error = float((found - baseline).abs().max())
        self.max_error = max(self.max_error, error)
        reference = baseline if exact is None else exact.double()[finite]
        size = _rms(reference)
        # A tensor that is nothing but rounding (a bias before a normalisation has no gradient) may
        # differ by as much as the others round. One that eager code gets right, however small, may
        # not: tiny gradients must not hide behind large ones.
        rounding_only = exact is None or _rms(peer - reference) >= ROUNDING_SHARE * size
        floor = self.epsilon * scale if rounding_only else 0.0
        limit = self.tolerance * reference.abs() + self.tolerance * size + floor
        close = bool(((found - baseline).abs() <= limit).all())
        self.all_close = self.all_close and close
        if exact is None:
            if not close and _cosine(found, baseline) < COSINE_AT_LEAST:
                self.failures.append("%s: cosine below %.2f" % (where, COSINE_AT_LEAST))
            return
        candidate_rmse = _rms(found - reference)
        peer_rmse = _rms(peer - reference)
        self.candidate_rmse = max(self.candidate_rmse or 0.0, candidate_rmse)
        self.baseline_rmse = max(self.baseline_rmse or 0.0, peer_rmse)
        allowed = self._multiplier(found) * peer_rmse + self.tolerance / 10 * size + floor
        if not close and candidate_rmse > allowed:
            self.failures.append(
                "%s: %.3g from the float64 reference, allowed %.3g"
                % (where, candidate_rmse, allowed)
            )

    def _multiplier(self, tensor: Any) -> float:
        """Small tensors have a noisy error; half precisions round differently when fused."""
        if tensor.numel() <= 10:
            return 10.0
        return 3.0 if self.half or tensor.numel() < 1000 else 2.0

    def record(self) -> Dict[str, Any]:
        if not self.failures and (self.compared == 0 or self.nothing_finite):
            reason = (
                "nothing to compare" if self.compared == 0 else "no finite number in the results"
            )
            return {"status": "unchecked", "method": "none", "detail": reason, "compared": 0}
        if self.all_close:
            method = "close to the baseline within %g" % self.tolerance
        elif self.cosine:
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


def _eager_peer(side: Side) -> Side:
    return Side(side.name, "eager", side.precision, side.model, side.device)


def _float64_results(side: Side, seed: int) -> Tuple[Optional[Results], str]:
    model = side.model
    try:
        model.rewind()
        copied = convert(model.built, torch.float64)
        exact = Model(copied, model.training, model.optimizer is not None)
        found, _ = Side(side.name, "eager", "float64", exact, side.device).results(seed)
        return found, ""
    except Exception as error:
        return None, type(error).__name__ + ": " + str(error)[:200]


def load_tensors(path: str) -> Dict[str, Any]:
    """What torch.save wrote, on the CPU; it holds tensors and plain values only."""
    try:
        record: Dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except TypeError:
        record = torch.load(path, map_location="cpu")
    return record


def _to_cpu(results: Results) -> Results:
    return {group: [_plain(t) for t in tensors] for group, tensors in results.items()}


def _plain(tensor: Any) -> Any:
    """On the CPU, dense, and complex numbers as pairs: what every check below understands."""
    tensor = tensor.detach().cpu()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _rms(tensor: Any) -> float:
    tensor = tensor.double()
    tensor = tensor[torch.isfinite(tensor)]
    return math.sqrt(float((tensor * tensor).mean())) if tensor.numel() else 0.0


def _cosine(left: Any, right: Any) -> float:
    size = math.sqrt(float((left * left).sum()) * float((right * right).sum()))
    return 1.0 if size == 0 else float((left * right).sum()) / size


def _largest_difference(left: Results, right: Results) -> float:
    """Over all finite numbers; infinite when the two do not even have the same shapes."""
    largest = 0.0
    for group, tensors in left.items():
        if [t.shape for t in tensors] != [t.shape for t in right[group]]:
            return math.inf
        for one, other in zip(tensors, right[group]):
            gap = (_plain(one).double() - _plain(other).double()).abs()
            gap = gap[torch.isfinite(gap)]
            largest = max(largest, float(gap.max()) if gap.numel() else 0.0)
    return largest
