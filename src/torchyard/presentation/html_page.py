"""Common parts of HTML pages: an escaping template engine, style, scripts and their CSP hashes.

Text from outside is stripped of control characters and escaped. A page forbids every style and
script that its security policy does not name by hash. Loads jinja2 when a page is rendered; knows
nothing about the content of a page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torchyard
from torchyard.presentation.safe_text import without_controls
from torchyard.presentation.wording import number_text

if TYPE_CHECKING:
    from jinja2 import Environment


_PACKAGES: Final = (
    *("presentation", "results", "bench", "audit", "tune", "sweep", "values", "profile", "why"),
    *("bisect", "dashboard"),
)
"""Packages with a folder `templates`. A file name occurs in one of them only."""


def template_engine() -> Environment:
    """Return the engine for the templates of all packages; unknown names are errors."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: object) -> object:
        return without_controls(value) if type(value) is str else value

    environment = Environment(
        loader=FileSystemLoader([str(folder) for folder in template_folders()]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # Our own style and script, read from the package: the only text that is not escaped.
    environment.filters["ours"] = Markup
    environment.filters["number"] = number_text
    return environment


def render_page(template: str, *styles: str, **values: Any) -> str:
    """Render a page with these style sheets, which its security policy names by hash."""
    style = "".join(map(asset, styles))
    page = template_engine().get_template(template)
    return page.render(style=style, style_hash=fingerprint(style), **values)


def template_folders() -> list[Path]:
    """Return the template folders of all packages."""
    source = Path(torchyard.__file__).parent
    return [source / package / "templates" for package in _PACKAGES]


@cache
def asset(name: str) -> str:
    """Return the text of a stylesheet or script beside the templates."""
    for folder in template_folders():
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8")
    raise FileNotFoundError(name)


def fingerprint(text: str) -> str:
    """Return the hash by which a content security policy allows this style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def json_for_script(value: object) -> str:
    """Return JSON for a data script element, escaped so that nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
