"""Compare what two variants compute in the same few steps of a script.

There is no float64 reference, and an optimizer can turn a rounding error of a gradient into a full update
of a parameter whose gradient is zero. So there are three answers: the losses and updates agree, they differ
so much that rounding cannot be the reason, or the difference proves nothing.
"""

import math
from typing import Any, Dict, List

import torch

from torchyard.worker.bench.model import copies_of
from torchyard.worker.workload import flatten

STEPS = 3
LOSS_TOLERANCE = 1e-3
UPDATE_TOLERANCE = 0.05
LOWER_LOSS_TOLERANCE = 0.05
LOWER_UPDATE_TOLERANCE = 0.5
"""For variants with a lower precision."""
WRONG_LOSS = 0.1
WRONG_UPDATE = 0.5
"""Relative differences that rounding in the same precision does not explain."""
EQUAL_UPDATE = 1e-4
"""Relative difference up to which a variant with a lower precision is as accurate as the baseline."""
SMALLEST_LOSS = 1e-3
"""Smaller losses count as this large: a loss can be a difference of large numbers."""
SMALLEST_UPDATE = 1e-5
"""Smaller updates, relative to the parameters, count as this large: they are rounded themselves."""


class StepResults:
    """Losses, returned tensors and parameters over some steps."""

    def __init__(self, parameters: List[Any]) -> None:
        self._parameters = parameters
        self._before = copies_of(parameters)
        self._random = _random_state()
        self._losses: List[Any] = []
        self._returned: List[Any] = []
        self._backward = torch.Tensor.backward

        def backward(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if tensor.numel() == 1:
                self._losses.append(tensor.detach().clone())
            return self._backward(tensor, *args, **kwargs)

        torch.Tensor.backward = backward

    def add_returned(self, value: Any) -> None:
        """Add the value that the function of a step returned."""
        self._returned += copies_of([one for one in flatten(value) if one.is_floating_point()])

    def stop(self) -> None:
        """Restore `Tensor.backward`."""
        torch.Tensor.backward = self._backward

    def record(self) -> Dict[str, Any]:
        """Return everything, on the CPU."""
        self.stop()
        random = _random_state()
        return {
            "losses": [float(one) for one in self._losses],
            "returned": [one.cpu() for one in self._returned],
            "before": [one.cpu() for one in self._before],
            "after": [one.cpu() for one in copies_of(self._parameters)],
            "random": len(random) != len(self._random)
            or not all(map(torch.equal, self._random, random)),
        }


def compare(
    baseline: Dict[str, Any], candidate: Dict[str, Any], lower_precision: List[str]
) -> Dict[str, Any]:
    """Return the accuracy record of the candidate."""
    shapes = [_shapes(one) for one in (baseline, candidate)]
    compared = len(baseline["losses"]) + len(baseline["returned"]) + len(baseline["after"])
    record: Dict[str, Any] = {
        "method": "losses and parameters of %d steps" % STEPS,
        "compared": compared,
    }
    if not compared:
        return dict(
            record,
            status="unchecked",
            detail="the steps have no loss, no optimizer and no returned tensor to compare; "
            "--no-accuracy measures without a comparison",
        )
    if shapes[0] != shapes[1]:
        return dict(
            record,
            status="unchecked",
            detail="the steps of both variants have different numbers or shapes of results",
        )
    start = _difference(baseline["before"], candidate["before"], _norm(baseline["before"]))
    if start > LOSS_TOLERANCE:
        return dict(
            record,
            status="nondeterministic",
            detail="results were not compared: the first step, which is eager in both variants, has "
            "different results; set all seeds in the script",
        )
    updates = [after - before for after, before in zip(baseline["after"], baseline["before"])]
    update_norm = max(_norm(updates), SMALLEST_UPDATE * _norm(baseline["before"]))
    update = _difference(baseline["after"], candidate["after"], update_norm)
    losses = [[torch.tensor(one) for one in record["losses"]] for record in (baseline, candidate)]
    largest_loss = max([abs(one) for one in baseline["losses"] if math.isfinite(one)], default=0.0)
    loss = max(
        [
            *(
                _difference([one], [other], max(largest_loss, SMALLEST_LOSS))
                for one, other in zip(*losses)
            ),
            *(
                _difference([one], [other], max(_norm([one]), SMALLEST_LOSS))
                for one, other in zip(baseline["returned"], candidate["returned"])
            ),
        ],
        default=0.0,
    )
    record["max_error"] = _largest(baseline, candidate)
    sizes = "losses differ by %s and updates of parameters by %s" % (
        _percent(loss),
        _percent(update),
    )
    if loss <= LOSS_TOLERANCE and update <= UPDATE_TOLERANCE:
        if lower_precision and max(loss, update) > EQUAL_UPDATE:
            return dict(record, status="less-accurate", detail=sizes)
        return dict(record, status="pass", detail="")
    if lower_precision:
        lower = " and ".join(lower_precision)
        if loss <= LOWER_LOSS_TOLERANCE and update <= LOWER_UPDATE_TOLERANCE:
            return dict(record, status="less-accurate", detail=sizes + " with " + lower)
        return dict(
            record, status="unchecked", detail=sizes + ", more than " + lower + " usually explains"
        )
    if baseline["random"] or candidate["random"]:
        return dict(
            record,
            status="random",
            detail="results were not compared: the steps draw random numbers, and " + sizes,
        )
    if loss > WRONG_LOSS or update > WRONG_UPDATE:
        return dict(record, status="fail", detail=sizes + " in %d steps" % STEPS)
    return dict(
        record, status="unchecked", detail=sizes + ", which rounding may or may not explain"
    )


def _difference(ones: List[Any], others: List[Any], norm: float) -> float:
    """Return the norm of the difference relative to `norm`; infinite where only one is finite."""
    square = 0.0
    for one, other in zip(ones, others):
        finite = torch.isfinite(one)
        if not torch.equal(finite, torch.isfinite(other)):
            return math.inf
        square += float((one.double() - other.double())[finite].square().sum())
    if square == 0.0:
        return 0.0
    return math.sqrt(square) / norm if norm else math.inf


def _norm(tensors: List[Any]) -> float:
    return math.sqrt(sum(float(one.double().nan_to_num(0, 0, 0).square().sum()) for one in tensors))


def _largest(baseline: Dict[str, Any], candidate: Dict[str, Any]) -> float:
    pairs = zip(baseline["after"], candidate["after"])
    return max(
        [float((one - other).abs().max()) for one, other in pairs if one.numel()], default=0.0
    )


def _shapes(record: Dict[str, Any]) -> Any:
    return (
        len(record["losses"]),
        [one.shape for one in record["returned"]],
        [one.shape for one in record["after"]],
    )


def _percent(share: float) -> str:
    return "%.2g %%" % (100 * share)


def _random_state() -> List[Any]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return states
