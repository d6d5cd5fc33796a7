"""The flame graph of a difference: frames nest, and widths are absolute contributions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.why.synthetic import rounds, source
from torchyard.core.study import Workload
from torchyard.why.attribution import attribute
from torchyard.why.model import Attribution, Part
from torchyard.why.page import ROW, WIDTH, flame_graph, path_of

UP, DOWN = source("blocks.*.up", "addmm", line=1), source("blocks.*.down", "addmm", line=2)
HEAD = source("head", "addmm", line=3)


@pytest.fixture
def result() -> Attribution:
    slower = rounds({UP: 500.0, DOWN: 900.0, HEAD: 300.0}, {UP: 900.0, DOWN: 600.0, HEAD: 300.0})
    return attribute(Workload(suite="models", name="net"), "a", "b", slower)


def part(result: Attribution, module: str) -> Part:
    return next(one for one in result.parts if one.name.startswith(f"Linear {module}"))


def test_frames_lie_inside_of_the_frame_above(result: Attribution) -> None:
    frames = flame_graph(result).frames
    for frame in frames[1:]:
        above = [
            one
            for one in frames
            if one.y == frame.y - ROW
            and one.x - 0.02 <= frame.x
            and frame.x + frame.width <= one.x + one.width + 0.02
        ]
        assert len(above) == 1
    assert (frames[0].x, frames[0].width) == (0.0, WIDTH)


def test_opposite_contributions_do_not_hide_each_other(result: Attribution) -> None:
    frames = {
        frame.title.rpartition(" ms")[0].rpartition(" ")[0]: frame
        for frame in flame_graph(result).frames
    }
    up, down = part(result, "blocks.*.up"), part(result, "blocks.*.down")
    total = sum(abs(one.difference_ns) for one in result.parts)
    assert frames["up"].style == "slower"
    assert frames["down"].style == "faster"
    assert frames["up"].width == pytest.approx(WIDTH * up.difference_ns / total, abs=0.01)
    both = abs(up.difference_ns) + abs(down.difference_ns)
    assert frames["blocks"].width == pytest.approx(WIDTH * both / total, abs=0.01)
    net = (up.difference_ns + down.difference_ns) / 1e6
    assert f"{net:+.3f} ms" in frames["blocks"].title


def test_frames_without_a_significant_part_are_grey(result: Attribution) -> None:
    silent = replace(result, parts=tuple(replace(one, named=False) for one in result.parts))
    assert {frame.style for frame in flame_graph(silent).frames} == {"unclear"}


def test_a_path_ends_with_line_and_operators(result: Attribution) -> None:
    assert path_of(part(result, "head")) == ["head", "model.py:3", "addmm"]
    fused = replace(part(result, "head"), sources=(UP, DOWN))
    assert path_of(fused) == ["blocks", "*", "addmm"]
    backward = replace(part(result, "head"), sources=(replace(HEAD, phase="backward"),))
    assert path_of(backward)[0] == "backward"
    assert path_of(replace(part(result, "head"), sources=())) == ["Linear head: addmm"]


def test_no_difference_at_all_is_one_grey_frame(result: Attribution) -> None:
    equal = tuple(replace(one, candidate_ns=one.baseline_ns, named=False) for one in result.parts)
    (frame,) = flame_graph(replace(result, parts=equal)).frames
    assert frame.width == WIDTH


def test_labels_fit_into_their_frames(result: Attribution) -> None:
    for frame in flame_graph(result).frames:
        assert len(frame.label) * 6 <= frame.width
