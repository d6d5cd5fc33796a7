"""The outline of an HTML page: what a golden file keeps of it.

Headings, rows, paragraphs, links and form fields in their order; without styles, scripts, drawings and
attributes, which have tests of their own.
"""

from __future__ import annotations

from html.parser import HTMLParser

_HIDDEN = {"style", "script", "svg", "head"}
_CELLS = {"th", "td"}
_LINES = {
    *("caption", "dd", "div", "dt", "figcaption", "h1", "h2", "h3", "h4", "li", "p", "pre"),
    *("section", "summary", "tr", "label", "details", "table", "nav", "footer"),
}
_MARKS = {"h1": "# ", "h2": "## ", "h3": "### ", "h4": "#### ", "li": "- ", "tr": "| "}


class _Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._line = ""
        self._mark = ""
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "svg" and not self._hidden:
            self._line += f" [drawing: {values.get('aria-label') or ''}]"
        if tag in _HIDDEN:
            self._hidden += 1
        elif not self._hidden:
            if tag in _LINES:
                self._end_line()
                self._mark = _MARKS.get(tag, "")
            if tag == "a":
                self._line += f" [{values.get('href') or ''}] "
            elif tag in {"input", "select"}:
                self._line += f" [{tag} {values.get('name')}={values.get('value') or ''}] "

    def handle_endtag(self, tag: str) -> None:
        if tag in _HIDDEN:
            self._hidden -= 1
        elif not self._hidden and tag in _CELLS:
            self._line += " | "
        elif not self._hidden and tag in _LINES:
            self._end_line()
        elif not self._hidden:
            self._line += " "

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._line += data

    def _end_line(self) -> None:
        words = " ".join(self._line.split())
        if words:
            self.lines.append(self._mark + words)
            self._mark = ""
        self._line = ""


def page_outline(page: str) -> str:
    """Return the outline of a page, one element a line."""
    outline = _Outline()
    outline.feed(page)
    outline.close()
    return "\n".join(outline.lines) + "\n"
