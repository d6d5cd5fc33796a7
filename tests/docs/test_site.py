"""The navigation of the documentation site lists every page once, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
import runpy
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

yaml: Final = pytest.importorskip("yaml")

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def configuration() -> dict[str, Any]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(re.sub(r"!!python\S+", "", text))
    return loaded


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from _pages(entry)


def test_the_navigation_lists_every_page_once(configuration: dict[str, Any]) -> None:
    folder = ROOT / configuration["docs_dir"]
    pages = {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}

    assert Counter(_pages(configuration["nav"])) == Counter(pages)


def test_the_site_loads_no_fonts_and_checks_links(configuration: dict[str, Any]) -> None:
    assert configuration["theme"]["font"] is False
    assert not {"extra_css", "extra_javascript"} & configuration.keys()
    assert set(configuration["validation"]["links"].values()) == {"warn"}


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("howto/a.md", "[b](../explanation/b.md#c)", "[b](../explanation/b.md#c)"),
        ("howto/a.md", "[examples](../../examples/values)", "examples (`examples/values`)"),
        ("explanation/trust/a.md", "[`x.py`](../../../tests/x.py)", "`tests/x.py`"),
    ],
)
def test_links_out_of_the_site_become_paths(page: str, link: str, shown: str) -> None:
    hook: Callable[..., str] = runpy.run_path(str(ROOT / "docs" / "site_links.py"))[
        "on_page_markdown"
    ]

    source = SimpleNamespace(file=SimpleNamespace(src_uri=page))
    assert hook(f"See {link}.", page=source, config=None, files=None) == f"See {shown}."
