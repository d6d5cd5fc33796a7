"""Labels of marks: no overlaps, none outside the chart."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.presentation.chart_layout import LETTER, LINE, MARK, Box, Label, place_labels

WIDTH, HEIGHT = 400.0, 300.0


def box_of(label: Label) -> Box:
    return Box(
        left=label.x,
        top=label.y - LINE / 2,
        right=label.x + LETTER * len(label.text),
        bottom=label.y + LINE / 2,
    )


marks = st.lists(
    st.tuples(
        st.floats(0, WIDTH, allow_nan=False),
        st.floats(0, HEIGHT, allow_nan=False),
        st.text("abc", max_size=12),
    ),
    max_size=25,
)


@settings(max_examples=100, deadline=None)
@given(marks)
def test_no_name_covers_anything(found: list[tuple[float, float, str]]) -> None:
    labels = place_labels(found, width=WIDTH, height=HEIGHT)
    boxes = [box_of(label) for label in labels]
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)
    for box in boxes:
        assert box.left >= 0
        assert box.right <= WIDTH + 1e-9
        assert box.top >= 0
        assert box.bottom <= HEIGHT + 1e-9
        for x, y, _ in found:
            mark = Box(left=x - MARK, top=y - MARK, right=x + MARK, bottom=y + MARK)
            assert not box.overlaps(mark)


def test_a_single_mark_is_labeled_on_its_right() -> None:
    (label,) = place_labels([(100.0, 100.0, "matmul")], width=WIDTH, height=HEIGHT)
    assert label.x > 100
    assert label.y == 100


def test_at_the_right_edge_the_name_is_at_the_left() -> None:
    (label,) = place_labels([(395.0, 100.0, "matmul")], width=WIDTH, height=HEIGHT)
    assert label.x + LETTER * 6 < 395


def test_occupied_space_is_kept_free() -> None:
    everything = Box(left=0, top=0, right=WIDTH, bottom=HEIGHT)
    assert place_labels([(9.0, 9.0, "a")], width=WIDTH, height=HEIGHT, taken=[everything]) == []


def test_marks_without_a_name_only_occupy_space() -> None:
    crowd = [(100.0 + 12 * step, 100.0, "") for step in range(5)]
    (label,) = place_labels([*crowd, (88.0, 100.0, "x")], width=WIDTH, height=HEIGHT)
    assert label.text == "x"
    assert not 94 < label.x < 160 or label.y != 100
