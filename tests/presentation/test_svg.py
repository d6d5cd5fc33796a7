"""SVG prepared for a page: the same picture, without active content, smaller."""

from __future__ import annotations

import pytest

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
