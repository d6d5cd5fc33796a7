"""What every HTML page needs: a template engine that escapes, our own style, and its fingerprint.

Everything from outside is stripped of controls and escaped. A page forbids itself whatever is not
named by its fingerprint, so that a name or a log can only ever be read. Loads jinja2 when a page is
made; knows nothing of what is on a page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files
from typing import TYPE_CHECKING

from torchyard.reports.plain_text import without_controls

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["asset", "fingerprint", "json_for_script", "template_engine"]


def template_engine() -> Environment:
    """Templates of this package; unknown names are errors."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def finalize(value: object) -> object:
        return without_controls(value) if type(value) is str else value

    environment = Environment(
        loader=PackageLoader("torchyard.reports", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # Our own style and script, read from the package: the only text that is not escaped.
    environment.filters["ours"] = Markup
    return environment


def asset(name: str) -> str:
    """A file of ours beside the templates."""
    return (files("torchyard.reports") / "templates" / name).read_text(encoding="utf-8")


def fingerprint(text: str) -> str:
    """The form in which a page's security policy names the one style or script it allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def json_for_script(value: object) -> str:
    """JSON for a script element of a data type: nothing in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
