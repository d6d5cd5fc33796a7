"""Colors of the pages: readable in every theme, and distinguishable without red and green."""

from __future__ import annotations

import math
import re

import pytest

from torchyard.presentation.html_page import asset

TEXTS = (
    *("--text", "--muted", "--accent", "--faster", "--slower", "--bad"),
    *("--same", "--undecided", "--wrong", "--failed"),
)
MARKS = ("--baseline", "--candidate")
# What an eye without green receptors sees of linear red, green and blue (Viénot, Brettel and Mollon
# 1999), as a share of each.
DEUTERANOPE = ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0))

Colour = tuple[float, float, float]


def themes() -> dict[str, dict[str, str]]:
    """The variables of each theme."""
    style = asset("report.css")
    light, auto_dark, dark, paper = (
        dict(re.findall(r"(--[a-z]+): (#[0-9a-f]{3,6});", block))
        for block in re.findall(r":root[^{]*\{([^}]*--page[^}]*)\}", style)
    )
    assert auto_dark == dark, "the switch and the system must choose the same colours"
    return {"light": light, "dark": dark, "paper": {**light, **paper}}


THEMES = themes()


def linear(colour: str) -> Colour:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    shares = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    bright, dark = sorted(
        (0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in map(linear, (one, other))),
        reverse=True,
    )
    return (bright + 0.05) / (dark + 0.05)


def seen_without_green(colour: str) -> Colour:
    red, green, blue = linear(colour)
    channels = [a * red + b * green + c * blue for a, b, c in DEUTERANOPE]
    return channels[0], channels[1], channels[2]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("ground", ["--page", "--card"])
def test_texts_can_be_read(theme: str, ground: str) -> None:
    colours = THEMES[theme]
    faint = {
        name: round(contrast(colours[name], colours[ground]), 2)
        for name in TEXTS
        if contrast(colours[name], colours[ground]) < 4.5
    }
    assert faint == {}


@pytest.mark.parametrize("theme", THEMES)
def test_marks_of_charts_stand_out(theme: str) -> None:
    colours = THEMES[theme]
    for name in MARKS:
        for ground in ("--card", "--band"):
            assert contrast(colours[name], colours[ground]) >= 3, (name, ground)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_faster_and_slower_are_distinguishable_without_green(theme: str) -> None:
    colours = THEMES[theme]
    faster, slower = (seen_without_green(colours[name]) for name in ("--faster", "--slower"))
    assert math.dist(faster, slower) > 0.15
