"""SVG prepared for a page: the same picture, without active content, smaller; labels without overlaps."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchyard.presentation.chart_layout import LETTER, LINE, MARK, Box, Label, place_labels
from torchyard.presentation.vega import clean_svg

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'


def cleaned(inside: str) -> str:
    text = clean_svg(f"{HEAD}{inside}</svg>", label="a picture")
    return text.removeprefix('<svg role="img" aria-label="a picture">').removesuffix("</svg>")


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        "<foreignObject><a/></foreignObject>",
        "<style>a{}</style>",
        '<image href="http://x/y.png"/>',
        '<use xlink:href="#x"/>',
        '<a href="javascript:alert(1)"><text>x</text></a>',
        '<g><path d="" fill="red"/></g>',
        '<path d="M0,0h0v0h0Z" fill="red"/>',
        '<path d="M0,0h5"/>',
        '<path d="M0,0h5" fill="red" display="none"/>',
        "<g><g></g></g>",
    ],
)
def test_removed_elements(inside: str) -> None:
    text = clean_svg(f"{HEAD}{inside}</svg>", label="a picture")
    assert text == '<svg role="img" aria-label="a picture" />'


def test_attributes_that_act_or_say_nothing_are_left_out() -> None:
    text = cleaned(
        '<path onclick="x()" style="fill:red" class="a" aria-label="b" opacity="1" '
        'd="M0,0h12.34567" fill="var(--faster)" stroke="url(http://x)"/>'
    )
    assert text == '<path d="M0,0h12.35" fill="var(--faster)" />'


def test_what_is_seen_stays() -> None:
    inside = (
        '<g transform="translate(3,4)"><text x="1" text-anchor="end" font-size="10px">a &lt; b</text>'
        '<line x2="5" stroke="red" /><circle cx="1" cy="2" r="3" fill="red" /></g>'
    )
    assert cleaned(inside) == inside


def test_parts_of_two_pictures_have_two_names() -> None:
    inside = (
        '<defs><clipPath id="clip0"><rect width="{}" height="1"/></clipPath></defs>'
        '<g clip-path="url(#clip0)"><path d="M0,0h5" fill="red"/></g>'
    )
    first, second = (cleaned(inside.format(width)) for width in (1, 2))
    for text in (first, second):
        name = text.split('id="')[1].split('"')[0]
        assert f'clip-path="url(#{name})"' in text
    assert first.split('id="')[1][:20] != second.split('id="')[1][:20]


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
