"""SVG that a drawing library wrote, made fit for a page: known elements and attributes only.

Keeps what is seen and drops the rest, which is most of it: classes, roles, empty frames, a font
named on every text. So the picture is small, and nothing in it can act, whatever was in the data.
Knows nothing of charts.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final
from xml.etree import ElementTree as ET

__all__ = ["clean_svg"]

_SVG: Final = "{http://www.w3.org/2000/svg}"
_ELEMENTS: Final = frozenset(
    {"svg", "g", "path", "line", "rect", "circle", "text", "tspan", "defs", "clipPath"}
)
# fmt: off
_ATTRIBUTES: Final = frozenset({
    "clip-path", "cx", "cy", "d", "dx", "dy", "fill", "fill-opacity", "font-size", "font-style",
    "font-weight", "height", "id", "opacity", "r", "rx", "ry", "stroke", "stroke-dasharray",
    "stroke-dashoffset", "stroke-linecap", "stroke-linejoin", "stroke-opacity", "stroke-width",
    "text-anchor", "transform", "viewBox", "width", "x", "x1", "x2", "y", "y1", "y2",
})
# fmt: on
_USELESS: Final = {"opacity": "1", "x2": "0", "y2": "0", "transform": "translate(0,0)"}
_LONG_NUMBER: Final = re.compile(r"-?\d+\.\d{3,}")
_NUMBERS: Final = frozenset({"d", "transform", "x", "y", "x1", "x2", "y1", "y2", "width", "height"})
_INSIDE: Final = re.compile(r"url\(#[A-Za-z0-9_-]+\)")
_EMPTY_PATH: Final = re.compile(r"(M[-\d.,]+h0v0h-?0Z)?")


def clean_svg(text: str, *, label: str) -> str:
    """The same picture with what is seen of it; `label` is read aloud in its place."""
    root = _cleaned(ET.fromstring(text))  # noqa: S314 - our own library wrote it
    if root is None:
        return ""
    # Two pictures of one page may both call a part `clip0`.
    own = hashlib.sha256(text.encode()).hexdigest()[:8]
    for element in root.iter():
        if "id" in element.attrib:
            element.set("id", f"picture-{own}-{element.attrib['id']}")
        if "clip-path" in element.attrib:
            element.set("clip-path", element.attrib["clip-path"].replace("#", f"#picture-{own}-"))
    root.set("role", "img")
    root.set("aria-label", label)
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _cleaned(element: ET.Element) -> ET.Element | None:
    name = element.tag.removeprefix(_SVG)
    if name not in _ELEMENTS or element.get("display") == "none":
        return None
    kept = ET.Element(name)
    for key, value in element.attrib.items():
        if key in _ATTRIBUTES and _USELESS.get(key) != value and _stays_inside(value):
            kept.set(key, _LONG_NUMBER.sub(_shorter, value) if key in _NUMBERS else value)
    kept.text = element.text
    for child in element:
        cleaned = _cleaned(child)
        if cleaned is not None:
            cleaned.tail = child.tail
            kept.append(cleaned)
    return None if _shows_nothing(kept) else kept


def _stays_inside(value: str) -> bool:
    """A reference to something else would be a request; to a part of the picture it is none."""
    return "url(" not in value.lower() or _INSIDE.fullmatch(value) is not None


def _shows_nothing(element: ET.Element) -> bool:
    if element.tag == "g":
        return len(element) == 0
    if element.tag == "path":
        unpainted = element.get("stroke") is None and element.get("fill") in {None, "transparent"}
        return _EMPTY_PATH.fullmatch(element.get("d", "")) is not None or unpainted
    return False


def _shorter(number: re.Match[str]) -> str:
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")
