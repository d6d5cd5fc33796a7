"""Alignment of the operators of a step with those of an earlier one."""

from __future__ import annotations

import random

from torchyard.worker.values.surveys.survey_calls import align

A, B, C, D, E, F = (object() for _ in range(6))


def test_the_same() -> None:
    assert align([A, B, C], [A, B, C]) == [0, 1, 2]


def test_one_instead_of_another() -> None:
    assert align([A, B, F, D, E], [A, B, C, D, E]) == [0, 1, 2, 3, 4]


def test_more_and_fewer() -> None:
    assert align([A, F, B, C, D, E], [A, B, C, D, E]) == [0, None, 1, 2, 3, 4]
    assert align([A, C, D, E], [A, B, C, D, E]) == [0, 2, 3, 4]


def test_the_end() -> None:
    assert align([A, B, C, F], [A, B, C]) == [0, 1, 2, None]
    assert align([A, B], [A, B, C, D]) == [0, 1]
    assert align([], [A]) == []
    assert align([A, B], []) == [None, None]


def test_another_program() -> None:
    assert align([D, E, F], [A, B, C]) in ([None] * 3, [0, 1, 2])


def test_a_long_step_with_differences_here_and_there() -> None:
    chance = random.Random(7)
    names = [object() for _ in range(12)]
    before = [chance.choice(names) for _ in range(2000)]
    now: list[object] = []
    expected: list[int | None] = []
    new = object()
    for number, one in enumerate(before):
        if number % 97 == 50:
            now.append(new)
            expected.append(None)
        now.append(new if number % 131 == 60 else one)
        expected.append(number)
    found = align(now, before)
    wrong = sum(one != other for one, other in zip(found, expected, strict=True))
    assert len(found) == len(now)
    assert wrong < 20
