"""Is the candidate right? Results of the timed configuration against a float64 reference.

The baseline's worker makes a reference: its own results, the results of a float64 copy, how far two
runs of it differ (non-determinism), and whether another seed changes them (a random workload). It
keeps the reference for candidates of its own process, and writes a file for those of others. Each
candidate's worker judges its own results, so one way serves one process and many, one torch and many. The rules for a tensor are in `judgement`.

Where two runs of the baseline differ, nothing is called right, however close it is: it is
`nondeterministic`, and wrong if it is further off than the baseline is from itself. A candidate that
differs from itself beside a firm baseline is judged twice, and wrong if it was once. And nothing is
called wrong that eager code shows too when it rounds at random (`random_rounding`).
"""

import math
import os
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker import options
from torchyard.worker.float64_reference import float64_results
from torchyard.worker.judgement import Judgement, rounding_of
from torchyard.worker.random_rounding import furthest
from torchyard.worker.side import Side
from torchyard.worker.tensor_distance import (
    Results,
    largest_difference,
    place_for,
    shapes_of,
    to_plain,
    wander,
)

OTHER_SEED_STEP = 7919


def make_reference(side: Side, seed: int, limit_bytes: Optional[int] = None) -> Dict[str, Any]:
    """What candidates are judged by: results of the baseline, and of its float64 copy."""
    begun = side.results(seed)[0]
    place = place_for(begun)
    first = to_plain(begun, place)
    second, other = (
        to_plain(side.results(start)[0], place) for start in (seed, seed + OTHER_SEED_STEP)
    )
    exact, why_not = float64_results(side, seed, first, limit_bytes)
    between_runs = largest_difference(first, second, side.device)
    between_seeds = largest_difference(first, other, side.device)
    if between_seeds > 10 * between_runs:
        # Two runs may have been alike by luck: what a seed changes must stay with the seed.
        again = to_plain(side.results(seed)[0], place)
        between_others = largest_difference(first, again, side.device)
        if between_others > between_runs:
            second, between_runs = again, between_others
    random = between_seeds > 10 * between_runs
    return {
        "baseline": first,
        "exact": exact,
        "exact_why_not": why_not,
        "nondeterminism": None if between_runs == math.inf else between_runs,
        "wander": wander(first, second, side.device),
        "random": random,
        "precision": side.precision,
        "changes": options.that_change_results(side.options),
    }


def save_reference(record: Dict[str, Any], path: str) -> None:
    """For workers of other processes."""
    torch.save(record, path + ".part")
    os.replace(path + ".part", path)


def judge(
    side: Side, seed: int, reference: Dict[str, Any], results: Optional[Results] = None
) -> Dict[str, Any]:
    """The accuracy record of a candidate, in the words of `core.comparison.Accuracy`.

    `results` were kept from an earlier call; without them the candidate is run.
    """
    begun = side.results(seed)[0] if results is None else results
    place = place_for(begun)
    record = _moved(reference, place)
    found = to_plain(begun, place)
    exact: Optional[Results] = record["exact"]
    if record["random"]:
        return {
            "status": "random",
            "method": "none",
            "nondeterminism": record["nondeterminism"],
            "detail": "the workload draws random numbers, which backends draw in another order",
        }
    peer = _peer(side, seed, record, found, place)
    judgement = _compare(side, record, found, peer)
    again = to_plain(side.results(seed)[0], place) if results is None else found
    own = largest_difference(found, again, side.device)
    if own > 0 and not judgement.failures:
        judgement = _compare(side, record, again, peer)  # wrong now and then is wrong
    untried = ""
    if judgement.failures and exact is not None:
        by_chance, untried = _by_chance(side, seed, exact)
        judgement = _compare(side, record, found, peer, by_chance)
        if own > 0 and not judgement.failures:
            judgement = _compare(side, record, again, peer, by_chance)
    result = judgement.record()
    if untried and result["detail"]:
        result["detail"] += "; rounding at random could not be tried: " + untried
    result["nondeterminism"] = record["nondeterminism"]
    result["candidate_nondeterminism"] = None if own == math.inf else own
    if exact is None:
        result["without_reference"] = str(record["exact_why_not"])
    said = _say_differs(record["nondeterminism"])
    if said and (result["status"] == "pass" or judgement.only_excused):
        result["status"] = "nondeterministic"
        result["detail"] = "; ".join(part for part in (said, result["detail"]) if part)
    return result


def _compare(
    side: Side,
    record: Dict[str, Any],
    found: Results,
    peer: Results,
    by_chance: Optional[Dict[str, List[float]]] = None,
) -> Judgement:
    baseline: Results = record["baseline"]
    exact: Optional[Results] = record["exact"]
    rounding = rounding_of(side.precision, side.device, side.model.module)
    judgement = Judgement(rounding, cosine_only=exact is None, on=side.device)
    for group in sorted(set(baseline) | set(found)):
        judgement.group(
            group,
            found.get(group, []),
            baseline.get(group, []),
            peer.get(group, []),
            None if exact is None else exact.get(group, []),
            record["wander"].get(group),
            None if by_chance is None else by_chance.get(group),
        )
    return judgement


def _by_chance(
    side: Side, seed: int, exact: Results
) -> Tuple[Optional[Dict[str, List[float]]], str]:
    """How far rounding alone may move results, or why that is not known."""
    rounding = rounding_of(side.precision, side.device, side.model.module)
    try:
        return furthest(_eager(side), seed, exact, tf32=rounding == "tf32", on=side.device), ""
    except Exception as error:  # a model's own operators may refuse operands that are copies
        side.model.rewind()
        side.model.forget_gradients()
        return None, type(error).__name__


def _say_differs(baseline: Optional[float]) -> str:
    """By how much two runs of the baseline differ; empty when they do not."""
    if baseline is None:
        return "two runs of the baseline have results of other shapes"
    return "two runs of the baseline differ by up to %.2g" % baseline if baseline > 0 else ""


def _peer(side: Side, seed: int, record: Dict[str, Any], found: Results, place: Any) -> Results:
    """Results of eager code that rounds as the candidate may: its error is the measure.

    The baseline's own, unless the candidate is asked for another precision, or for an option that
    computes in less of it.
    """
    baseline: Results = record["baseline"]
    changes = options.that_change_results(side.options)
    if side.precision == record["precision"] and changes == record["changes"]:
        return baseline
    if side.backend == "eager":
        return found if shapes_of(found) == shapes_of(baseline) else baseline
    peer = to_plain(_eager(side).results(seed)[0], place)
    return peer if shapes_of(peer) == shapes_of(baseline) else baseline


def _eager(side: Side) -> Side:
    """The same model and precision without the backend."""
    kept = {
        name: value
        for name, value in side.options.items()
        if not options.why_not(name, "eager", side.model.training)
    }
    return Side(side.name, "eager", side.precision, side.model, side.device, kept)


def _moved(record: Dict[str, Any], place: Any) -> Dict[str, Any]:
    """The reference where the candidate's results are."""
    exact = record["exact"]
    return dict(
        record,
        baseline=to_plain(record["baseline"], place),
        exact=None if exact is None else to_plain(exact, place),
    )


def load_tensors(path: str) -> Dict[str, Any]:
    """What torch.save wrote, on the CPU; it holds tensors and plain values only."""
    try:
        record: Dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except TypeError:
        record = torch.load(path, map_location="cpu")
    return record
