"""Links and anchors of the pages resolve, every page can be reached, no page names a machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
INDEX: Final = ROOT / "docs" / "README.md"
PAGES: Final = tuple(
    sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("changelog.d/*.md")])
)
LARGEST_PICTURE_BYTES: Final = 300_000

_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
_EXTERNAL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)
_MACHINE_PATH = re.compile(r"(?<![\w.~$])/(?:home|root|work|tmp|Users|mnt|workspace)/[\w.-]*")
_UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|TBD)\b")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _prose(text: str) -> str:
    """The page without code, where brackets mean other things."""
    return _CODE.sub("", _FENCE.sub("", text))


def _links(page: Path) -> Iterator[str]:
    text = _prose(page.read_text(encoding="utf-8"))
    return (match for match in _LINK.findall(text) if not _EXTERNAL.match(match))


def _anchors(text: str) -> set[str]:
    """The anchors that a page's headings get: lower case, punctuation gone, blanks to dashes."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        anchor, repeated = plain, 0
        while anchor in found:
            repeated += 1
            anchor = f"{plain}-{repeated}"
        found.add(anchor)
    return found


def _problem(page: Path, link: str) -> str:
    """Why the link leads nowhere; empty when it resolves."""
    path_text, _, anchor = unquote(link).partition("#")
    goal = (page.parent / path_text).resolve() if path_text else page
    if path_text.startswith("/"):
        return "is absolute"
    if not goal.is_relative_to(ROOT):
        return "leaves the project"
    if not goal.exists():
        return "leads to nothing"
    if anchor and goal.suffix == ".md" and anchor not in _anchors(goal.read_text(encoding="utf-8")):
        return f"names no heading of {_name(goal)}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_and_anchors_resolve(page: Path) -> None:
    broken = {link: why for link in _links(page) if (why := _problem(page, link))}

    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_no_machine_and_nothing_unfinished_is_named(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert not _MACHINE_PATH.findall(text)
    assert not _UNFINISHED.findall(text)


def test_every_page_is_reachable_from_the_index() -> None:
    seen: set[Path] = set()
    waiting = [INDEX]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        goals = (link.partition("#")[0] for link in _links(page))
        waiting += [(page.parent / unquote(goal)).resolve() for goal in goals if goal]

    lost = {_name(page) for page in (ROOT / "docs").rglob("*.md")} - {_name(p) for p in seen}

    assert not lost


def test_the_readme_leads_to_the_index() -> None:
    goals = {(ROOT / link.partition("#")[0]).resolve() for link in _links(ROOT / "README.md")}

    assert INDEX in goals


def test_pictures_are_used_and_small() -> None:
    pictures = set((ROOT / "docs" / "images").glob("*"))
    used = {
        (page.parent / unquote(link)).resolve()
        for page in PAGES
        for link in _links(page)
        if link.endswith((".png", ".svg"))
    }

    assert pictures == used
    assert all(picture.stat().st_size < LARGEST_PICTURE_BYTES for picture in pictures)


@pytest.mark.parametrize(
    ("text", "link", "why"),
    [
        ("# One\n", "#one", ""),
        ("# One\n", "#two", "names no heading"),
        ("# `[targets.NAME]`\n", "#targetsname", ""),
        ("# A b: c, d\n# A b: c, d\n", "#a-b-c-d-1", ""),
        ("```\n# not a heading\n```\n", "#not-a-heading", "names no heading"),
        ("", "missing.md", "leads to nothing"),
        ("", "/etc/hosts", "is absolute"),
        ("", "../../../../../..", "leaves the project"),
    ],
)
def test_the_checker_finds_what_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, link: str, why: str
) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")

    said = _problem(page, link)

    assert said.startswith(why) if why else not said


def test_links_in_code_are_no_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`[a](b)`\n\n```\n[c](d)\n```\n\n[e](f.md) ![g](h.png) [i](https://j)\n", encoding="utf-8"
    )

    assert list(_links(page)) == ["f.md", "h.png"]
