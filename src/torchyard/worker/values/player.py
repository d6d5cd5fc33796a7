"""Plays a score: follows the operators of a step while they are those of the score.

One function with everything it needs at hand, because it runs for every operator of a program: on
these few lines depends what a surveyed step costs.
"""

from typing import Any, Callable, List, NamedTuple

import torch

from torchyard.worker.values.operators import operator_of
from torchyard.worker.values.scan import flat_memory
from torchyard.worker.values.score import Score, Turn, outputs_of
from torchyard.worker.values.survey import Survey

_address = torch._C.TensorBase.data_ptr

Play = Callable[[Any, Any, Any], Any]


class Player(NamedTuple):
    """A score that is being played."""

    play: Play
    """Calls an operator with its arguments and keywords."""
    position: Callable[[], int]
    """How many operators were as the score says."""


def play_score(
    score: Score,
    survey: Survey,
    out_of_turn: Play,
    other_result: Callable[[Turn, Any, Any, Any], Any],
) -> Player:
    """Begin; `out_of_turn` takes an operator that the score does not say, `other_result` its result.

    Both leave the score: `play` is not called again after them.
    """
    turns: List[Any] = [
        (turn.func, turn, turn.one, turn.flush_before, turn.flush_after) for turn in score.turns
    ]
    turns.append((None, None, None, None, None))
    at = 0
    hold, note = survey.held.append, survey.addresses.append
    flush = survey.flush_again
    survey.play(score)

    def play(func: Any, args: Any, keywords: Any) -> Any:
        nonlocal at
        expected, turn, one, before, after = turns[at]
        if expected is not func:
            if operator_of(func).inert:
                return func(*args, **keywords)
            return out_of_turn(func, args, keywords)
        if before is not None:
            flush(before)
        result = func(*args, **keywords)
        if one is not None:
            if (
                result.numel() != one.numel
                or result.dtype is not one.dtype
                or not result.is_cuda
                or not (result.is_contiguous() or flat_memory(result) is not None)
            ):
                return other_result(turn, args, keywords, result)
            hold(result)
            note(_address(result))
        elif turn.outputs and not _hold_all(survey, turn, args, keywords, result):
            return other_result(turn, args, keywords, result)
        at += 1
        if after is not None:
            flush(after)
        return result

    return Player(play, lambda: at)


def _hold_all(survey: Survey, turn: Turn, args: Any, keywords: Any, result: Any) -> bool:
    """Hold what an operator wrote, if it is what the score says."""
    tensors = outputs_of(turn, args, keywords, result)
    outputs = turn.outputs
    if outputs[-1].place >= len(tensors):
        return False
    held = []
    for output in outputs:
        tensor = tensors[output.place]
        if (
            tensor.numel() != output.numel
            or tensor.dtype is not output.dtype
            or tensor.is_cpu is not output.cpu
            or not (tensor.is_contiguous() or flat_memory(tensor) is not None)
        ):
            return False
        held.append(tensor)
    survey.hold_again(outputs, held)
    return True
