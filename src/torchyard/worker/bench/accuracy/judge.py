"""Check the results of a candidate against a float64 reference of the same iteration."""

import math
import os
import time
from typing import Any, Dict, List, Optional

import torch

from torchyard.worker.bench import options
from torchyard.worker.bench.accuracy import rules
from torchyard.worker.bench.accuracy.reference import (
    FREE_SHARE,
    SimulatedRounding,
    float64_results,
    simulation_bytes,
)
from torchyard.worker.bench.accuracy.rules import Judgement, judge_results
from torchyard.worker.bench.accuracy.tensors import (
    Results,
    largest_difference,
    place_for,
    relative_distance,
    rms_between,
    same_bits,
    to_plain,
)
from torchyard.worker.bench.accuracy.tolerances import ASSUMED_STEPS, EPSILON, Noise
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.devices import Device

COARSER = ("float32", "tf32", "float16", "amp-float16", "amp", "bfloat16")
"""From fine to coarse. `tf32` is float32 with products of operands rounded to ten bits, `amp` autocast
to bfloat16 with float32 weights, `amp-float16` the same with float16."""


def coarser(one: str, other: str) -> str:
    """Return the coarser of two roundings."""
    return max(one, other, key=COARSER.index)


def rounding_of(runner: Any) -> str:
    """Return the coarsest format that the numbers of a variant may be rounded to."""
    if runner.precision == "amp":
        return "amp" if runner.hardware.is_host else "amp-float16"
    if runner.precision != "float32":
        return str(runner.precision)
    matmul_precision = runner.options.get("matmul-precision")
    if matmul_precision == "medium":
        return "amp"
    if matmul_precision == "high" or runner.options.get("tf32"):
        return "tf32"
    return _by_default(runner.hardware, runner.model.module)


def _by_default(device: Device, module: Any) -> str:
    """Return the default rounding: cuDNN may use TF32 in float32 convolutions, depending on the memory layout."""
    convolves = any(isinstance(part, torch.nn.modules.conv._ConvNd) for part in module.modules())
    allowed = (convolves and torch.backends.cudnn.allow_tf32) or (
        torch.backends.cuda.matmul.allow_tf32
    )
    if not allowed:
        return "float32"
    return "tf32" if device.has_tf32() else "float32"


OTHER_SEED_STEP = 7919
SCALE_RUNS = 4
HONEST_RUNS = 3
FEW_SCALE_RUNS = 2
FEW_HONEST_RUNS = 1
"""Enough to accept most results: with fewer correct runs the limits are tighter. Others need all runs."""
AMPLIFIED_RUNS = 8
"""Further runs before a result is reported as wrong."""
RUNS_LIMIT_S = 60.0
"""Time limit of each kind of runs; at least two are made."""
BASELINE_MOVES = 10.0
"""A candidate is reported as wrong, and not as nondeterministic, when its error exceeds the difference of
two runs of the baseline by this factor."""
SURELY_ROUNDING = 1e-4
"""Largest relative error of a float32 baseline that is attributed to rounding without simulation."""
BASELINE_OFF = "the baseline's own results differ from float64 by more than rounding explains"
OTHER_NUMBERS = 0.01
"""Relative distance above which a float64 copy of a random workload used other random numbers."""
WORST_FIRST = ("fail", "unchecked", "random", "nondeterministic", "less-accurate", "pass")


def make_reference(
    runner: VariantRunner, seed: int, limit_bytes: Optional[int] = None
) -> Dict[str, Any]:
    """Return the reference: results of the baseline and of its float64 copy."""
    raw = runner.results(seed)[0]
    place = place_for(raw)
    first = to_plain(raw, place)
    second, other = (
        to_plain(runner.results(start)[0], place) for start in (seed, seed + OTHER_SEED_STEP)
    )
    exact, why_not = float64_results(runner, seed, first, limit_bytes)
    on = runner.hardware.comparison_place
    between_runs = largest_difference(first, second, on)
    between_seeds = largest_difference(first, other, on)
    if between_seeds > 10 * between_runs:
        # Two runs may be equal by chance: a third one with the same seed must agree, too.
        again = to_plain(runner.results(seed)[0], place)
        between_others = largest_difference(first, again, on)
        if between_others > between_runs:
            second, between_runs = again, between_others
    random = between_seeds > 10 * between_runs
    if random and exact is not None and relative_distance(first, exact) > OTHER_NUMBERS:
        exact, why_not = None, "the float64 copy uses other random numbers"
    return {
        "baseline": first,
        "second": second if between_runs > 0 else None,
        "exact": exact,
        "exact_why_not": why_not,
        "nondeterminism": None if between_runs == math.inf else between_runs,
        "random": random,
        "precision": runner.precision,
        "rounding": rounding_of(runner),
        "changes": options.that_change_results(runner.options),
        "weights": runner.weights,
    }


def save_reference(record: Dict[str, Any], path: str) -> None:
    """Save the reference for workers in other processes."""
    torch.save(record, path + ".part")
    os.replace(path + ".part", path)


def judge(
    runner: VariantRunner, seed: int, reference: Dict[str, Any], results: Optional[Results] = None
) -> Dict[str, Any]:
    """Return the accuracy record of a candidate, with the fields of `core.comparison.Accuracy`."""
    groups = reference["baseline"]
    raw = runner.results(seed, groups)[0] if results is None else results
    place = place_for(raw)
    check = _Check(runner, seed, reference, place)
    first = to_plain(raw, place)
    if reference["random"]:
        return _judge_random(check, first)
    second = to_plain(runner.results(seed, groups)[0], place) if results is None else first
    between_runs = largest_difference(first, second, runner.hardware.comparison_place)
    record = check.judge(first)
    if between_runs > 0:
        record = worst([record, check.judge(second)])  # sometimes wrong is wrong
    record["candidate_nondeterminism"] = None if between_runs == math.inf else between_runs
    return record


def worst(records: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return the record with the worst status."""
    return min(records, key=lambda record: WORST_FIRST.index(record["status"]))


def names_of(runner: VariantRunner) -> Dict[str, List[str]]:
    """Return the names of the tensors of an iteration, by group."""
    module = runner.model.module
    parameters = list(module.named_parameters())
    gradients = ["gradient of " + name for name, p in parameters if p.requires_grad]
    inputs = [t for t in runner.model.inputs() if t.requires_grad and t.is_leaf]
    gradients += ["gradient of input %d" % index for index in range(len(inputs))]
    return {
        "gradient": gradients,
        "parameter": ["parameter " + name for name, _ in parameters],
        "buffer": ["buffer " + name for name, _ in module.named_buffers()],
        "loss": ["loss"],
    }


class _Check:
    """One candidate, the reference, and the noise of its precision."""

    def __init__(
        self, runner: VariantRunner, seed: int, reference: Dict[str, Any], place: Any
    ) -> None:
        self.runner = runner
        self.seed = seed
        self.place = place
        self.reference = reference
        self.baseline = to_plain(reference["baseline"], place)
        exact = reference["exact"]
        self.exact = None if exact is None else to_plain(exact, place)
        self.rounding = coarser(rounding_of(runner), reference["rounding"])
        self.names = names_of(runner)
        self.same_precision = self.rounding == reference["rounding"]
        self.same_type = runner.precision == reference["precision"]
        self.method = "simulated rounding"

    def judge(self, results: Results) -> Dict[str, Any]:
        """Return the record of these results, also if it was made for equal ones before."""
        judged = self.reference.get("_judged")
        if judged is None or judged[0] is not self.runner or not same_bits(results, judged[1]):
            judged = (self.runner, results, self._record(results))
            self.reference["_judged"] = judged
        return dict(judged[2])

    def _record(self, results: Results) -> Dict[str, Any]:
        judgement = self._judgement(results)
        record = judgement.record()
        record.setdefault("method", self._describe_method())
        baseline_differs = self._describe_difference()
        if judgement.status in ("pass", "less-accurate") and self._moves_beyond_rounding():
            record["status"] = "nondeterministic"
            record["detail"] = "; ".join(
                part for part in (baseline_differs, record["detail"]) if part
            )
        if judgement.status == "fail" and baseline_differs:
            if self._judge_by(results, self._with_second_run()).status != "fail":
                record["status"] = "nondeterministic"
                record["detail"] = baseline_differs + "; " + record["detail"]
        elif judgement.status == "fail" and self._matches_inaccurate_baseline(results):
            record["status"] = "unchecked"
            record["detail"] = BASELINE_OFF + "; " + record["detail"]
        record["nondeterminism"] = self.reference["nondeterminism"]
        if self.exact is None:
            record["without_reference"] = str(self.reference["exact_why_not"])
        return record

    def _judgement(self, results: Results) -> Judgement:
        if self._equals_baseline(results):
            self.method = "bitwise equal to the baseline"
            assumed: Noise = self._kept("assumed", self._assumed_noise)
            judgement = self._judge_by(results, assumed.about_baseline())
            if self.exact is not None:
                judgement.candidate_rmse = judgement.baseline_rmse = assumed.baseline_rmse
            return judgement
        noise = self._kept("baseline", self._baseline_noise)
        if noise is not None:
            judgement = self._judge_by(results, noise)
            self.method = "the baseline's own error"
            if judgement.status in ("pass", "unchecked"):
                return judgement
        self.method = "simulated rounding"
        few = self._kept("few simulated", self._few_simulated_noise)
        if not few.assumed:
            judgement = self._judge_by(results, few)
            if judgement.status == "pass":
                return judgement
        noise = self._kept("simulated", self._simulated_noise)
        judgement = self._judge_by(results, noise)
        doubtful = judgement.failures and not any(one.gross for one in judgement.failures)
        if doubtful and not noise.assumed:
            self._amplify()
            judgement = self._judge_by(results, noise)
        return judgement

    def _equals_baseline(self, results: Results) -> bool:
        return self.same_type and same_bits(results, self.baseline)

    def _judge_by(self, results: Results, noise: Noise) -> Judgement:
        return judge_results(results, self.baseline, noise, self.names, self.same_type)

    def _kept(self, kind: str, make: Any) -> Any:
        cache = self.reference.setdefault("_noise", {})
        key = (kind, self.rounding, str(self.place), self.runner.precision)
        if key not in cache:
            cache[key] = make()
        return cache[key]

    def _assumed_noise(self) -> Noise:
        noise = Noise(
            self.baseline, self.exact, self.rounding, self.runner.hardware.comparison_place
        )
        noise.assume("no run was made")
        return noise

    def _baseline_noise(self) -> Optional[Noise]:
        """Return the baseline's own error as noise, where it is small enough to be rounding error."""
        if not self.same_precision or self.rounding != "float32" or self.exact is None:
            return None
        if self.reference["nondeterminism"] != 0:
            return None
        noise = Noise(
            self.baseline, self.exact, self.rounding, self.runner.hardware.comparison_place
        )
        noise.add_to_scale(self.baseline)
        return noise if noise.largest_baseline_error() < SURELY_ROUNDING else None

    def _few_simulated_noise(self) -> Noise:
        return self._simulated_noise(FEW_SCALE_RUNS, FEW_HONEST_RUNS)

    def _simulated_noise(
        self, scale_runs: int = SCALE_RUNS, honest_runs: int = HONEST_RUNS
    ) -> Noise:
        noise = Noise(
            self.baseline, self.exact, self.rounding, self.runner.hardware.comparison_place
        )
        try:
            runs = self._kept("runs", self._simulation)
            until = time.monotonic() + RUNS_LIMIT_S
            first: Results = {}
            for number in range(scale_runs + honest_runs):
                late = time.monotonic() > until
                if late and number >= 2 and number != scale_runs:
                    continue
                results = runs.run(self.seed, number, self.place)
                refuted = number == 1 and noise.reference_is_off(first, results)
                if refuted and self.exact is not None:
                    self._drop_reference()
                    return self._simulated_noise(scale_runs, honest_runs)
                first = first or results
                if number < scale_runs:
                    noise.add_to_scale(results)
                else:
                    noise.add_honest(results)
        except Exception as error:  # a model may refuse to run under a dispatch mode
            noise = Noise(
                self.baseline, self.exact, self.rounding, self.runner.hardware.comparison_place
            )
            noise.assume(_first_line(error))
            self.runner.model.rewind()
            self.runner.model.forget_gradients()
            return noise
        if self.same_precision and self.exact is not None:
            noise.add_baseline()
        return noise

    def _drop_reference(self) -> None:
        """Use the baseline as the reference, for this candidate and later ones."""
        self.exact = self.reference["exact"] = None
        self.reference["exact_why_not"] = "the workload computes something else in float64"
        cache = self.reference["_noise"]
        for key in [key for key in cache if key[0] != "runs"]:
            del cache[key]

    def _simulation(self) -> SimulatedRounding:
        needed, free = simulation_bytes(self.runner), self.runner.hardware.free_bytes()
        if free is not None and needed > FREE_SHARE * free:
            raise MemoryError("a float32 copy needs %d MiB" % (needed >> 20))
        return SimulatedRounding(self.runner, self.rounding)

    def _amplify(self) -> None:
        """Add runs with coarser simulated rounding, in which rare events are frequent."""
        noise = self._kept("simulated", self._simulated_noise)
        if self._kept("amplified", dict):
            return
        runs = self._kept("runs", self._simulation)
        until = time.monotonic() + RUNS_LIMIT_S
        for number in range(AMPLIFIED_RUNS):
            if number >= 2 and time.monotonic() > until:
                break
            results = runs.run(self.seed, 100 + number, self.place, amplified=True)
            noise.add_honest(results, amplified=True)
        self._kept("amplified", dict)["done"] = True

    def _matches_inaccurate_baseline(self, results: Results) -> bool:
        noise: Noise = self._kept("simulated", self._simulated_noise)
        if not noise.baseline_off:
            return False
        return self._judge_by(results, noise.about_baseline()).status != "fail"

    def _with_second_run(self) -> Noise:
        noise: Noise = self._kept("simulated", self._simulated_noise)
        second = to_plain(self.reference["second"], self.place)
        if noise.baseline_off:
            noise = noise.about_baseline()
        return noise.widened(self.baseline, second, BASELINE_MOVES)

    def _moves_beyond_rounding(self) -> bool:
        """Whether two runs of the baseline differ by more than reordered sums explain."""
        second = self.reference["second"]
        if second is None:
            return False
        if self.reference["nondeterminism"] is None:
            return True
        rounding = self.reference["rounding"]
        steps = ASSUMED_STEPS.get(rounding, 4.0) * EPSILON[rounding]
        moved = to_plain(second, self.place)
        for group, tensors in self.baseline.items():
            on = self.runner.hardware.comparison_place
            largest = max((rms_between(one, 0 * one, on) for one in tensors), default=0.0)
            for one, other in zip(tensors, moved[group]):
                if one.is_floating_point() and rms_between(one, other, on) > steps * largest:
                    return True
        return False

    def _describe_difference(self) -> str:
        """Describe the difference of two runs of the baseline; empty when there is none."""
        if self.reference["second"] is None:
            return ""
        moved = self.reference["nondeterminism"]
        if moved is None:
            return "two runs of the baseline have results of different shapes"
        return "two runs of the baseline differ by up to %.2g" % moved

    def _describe_method(self) -> str:
        reference = "float64 reference" if self.exact is not None else "float32 baseline"
        noise = self.reference.get("_noise", {}).get(
            ("simulated", self.rounding, str(self.place), self.runner.precision)
        )
        if self.method == "simulated rounding" and noise is not None and noise.assumed:
            return "%s, assumed rounding (%s)" % (reference, noise.assumed)
        return "%s, %s" % (reference, self.method)


def _judge_random(check: _Check, results: Results) -> Dict[str, Any]:
    """Check a workload with random numbers: comparable only if both use the same ones."""
    record = check.judge(results)
    if record["status"] in ("pass", "less-accurate"):
        return record
    runner, seed = check.runner, check.seed
    twin, problem = rules.twin_with_fallback(runner)
    checked: Optional[Dict[str, Any]] = None
    if twin is not None:
        try:
            checked = check.judge(to_plain(twin.results(seed, check.baseline)[0], check.place))
        except Exception as error:  # the compiler may fail with the setting
            problem = _first_line(error)
            runner.model.rewind()
            runner.model.forget_gradients()
    differs = rules.distributions_differ(runner.peer(), runner, seed, check.place)
    if differs.wrong:
        return dict(record, status="fail", method="statistics over draws", detail=differs.text)
    if checked is not None and checked["status"] in ("pass", "less-accurate"):
        method = checked["method"] + ", compiled for the check with inductor.fallback_random"
        return dict(checked, method=method)
    detail = "the workload uses random numbers, and this backend generates different ones"
    parts = [detail, differs.text] + (["fallback_random: " + problem] if problem else [])
    return {
        "status": "random",
        "method": "none",
        "nondeterminism": record["nondeterminism"],
        "detail": "; ".join(part for part in parts if part),
    }


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (": " + lines[0][:200] if lines else "")


def load_tensors(path: str) -> Dict[str, Any]:
    """Load tensors and plain values that torch.save wrote, to the CPU."""
    try:
        record: Dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except TypeError:
        record = torch.load(path, map_location="cpu")
    return record
