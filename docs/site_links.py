# ruff: noqa: INP001  # a script beside the pages, not a package
"""Hook of the documentation site: show links to files outside of docs/, which it lacks, as paths."""

from __future__ import annotations

import posixpath
import re
from typing import Any, Final

_LINK: Final = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)\s]*)\)")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Replace `[text](../../file)` by `text (file)` where the file is not part of the site."""
    folder = posixpath.dirname(page.file.src_uri)

    def shown(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[2]))
        if path.startswith("docs/"):
            return link[0]
        name = link[1].strip("`")
        return f"`{path}`" if path.endswith(name) else f"{link[1]} (`{path}`)"

    return _LINK.sub(shown, markdown)
