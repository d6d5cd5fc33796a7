"""`torchyard explain`: explain a term, verdict, note or exit code.

The texts are in `explanations.toml`; those of wasted-work patterns come from `values`.
"""

from __future__ import annotations

import textwrap
import tomllib
from importlib.resources import files
from typing import Any

import click

from torchyard.cli.output import common_options, print_data, print_json
from torchyard.errors import UsageError

__all__ = ["explain", "load_explanations"]

PATTERN = "pattern of wasted work"

_HELP = """
\b
Examples:
  torchyard explain                 everything there is, in one line each
  torchyard explain undecided
  torchyard explain 6               an exit code
  torchyard explain "heavy type"    a pattern of wasted work

Say what a word of a table, a verdict, a note, a kind of failure, an exit code or a pattern
of wasted work means, and what to do about it.
"""


def load_explanations() -> dict[str, dict[str, str]]:
    """Word -> kind, short and text, in the file's order."""
    raw: dict[str, Any] = tomllib.loads(
        files("torchyard.cli").joinpath("explanations.toml").read_text(encoding="utf-8")
    )
    known = {word: entry for table in raw.values() for word, entry in _entries(table)}
    return {**known, **_patterns()}


@click.command(help=_HELP)
@click.argument("word", required=False, metavar="[CODE|WORD]")
@common_options
def explain(word: str | None, as_json: bool) -> None:
    """Explain one entry, or list them all."""
    known = load_explanations()
    if word is None:
        if as_json:
            print_json({"explanations": known})
        else:
            print_data(_listing(known))
        return
    wanted = word.strip().lower().replace("_", "-").replace(" ", "-")
    if wanted not in known:
        from torchyard.core.records import nearest_hint

        near = nearest_hint(wanted, list(known))
        hint = near if near.startswith("did") else "`torchyard explain` lists everything"
        raise UsageError(f"there is no explanation of {word!r}", hint=hint)
    entry = known[wanted]
    if as_json:
        print_json({"word": wanted, **entry})
        return
    body = textwrap.fill(" ".join(entry["text"].split()), 88)
    print_data(f"{wanted} ({entry['kind']}): {entry['short']}\n\n{body}")


def _entries(table: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    kind = str(table["kind"])
    return [
        (word, {"kind": kind, "short": entry["short"], "text": " ".join(entry["text"].split())})
        for word, entry in table["entries"].items()
    ]


def _patterns() -> dict[str, dict[str, str]]:
    from torchyard.values.pattern_texts import load_pattern_texts

    return {
        name.replace(" ", "-"): {"kind": PATTERN, "short": text.short, "text": text.whole}
        for name, text in load_pattern_texts().patterns.items()
    }


def _listing(known: dict[str, dict[str, str]]) -> str:
    lines: list[str] = []
    kind = ""
    for word, entry in known.items():
        if entry["kind"] != kind:
            kind = entry["kind"]
            lines += ["", f"{kind}:"] if lines else [f"{kind}:"]
        lines.append(f"  {word:<22} {entry['short']}")
    return "\n".join(lines)
