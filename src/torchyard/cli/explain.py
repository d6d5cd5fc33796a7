"""`torchyard explain`: explain a term, verdict, note or exit code.

The texts are in `explanations.toml`; those of wasted-work patterns come from `values`, those of failed
builds from `builds`.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from importlib.resources import files
from typing import Any

import click

from torchyard.cli.output import common_options, print_data, print_json
from torchyard.errors import UsageError

PATTERN = "pattern of wasted work"

_HELP = """
\b
Examples:
  torchyard explain                 list all entries, one line each
  torchyard explain undecided
  torchyard explain p-value
  torchyard explain 6               an exit code
  torchyard explain "heavy type"    a pattern of wasted work
  torchyard explain cmake-too-new   a known cause of failed builds

Explain a term, column, verdict, note, failure kind, exit code, pattern of wasted work or cause of
failed builds, and what to do about it.
"""


def load_explanations() -> dict[str, dict[str, str]]:
    """Return term -> kind, short and text, in the order of the file."""
    tables = _read_file()
    del tables["synonyms"]
    entries = {term: entry for table in tables.values() for term, entry in _entries(table)}
    return {**entries, **_patterns()}


def load_synonyms() -> dict[str, str]:
    """Return synonym -> the term that explains it."""
    synonyms: dict[str, str] = _read_file()["synonyms"]
    return synonyms


def term_key(text: str) -> str:
    """Return the key of a term as reports show it: `GPU clock held: power brake`, `A/A`, `% CI`."""
    shown, _, _ = text.strip().lower().partition(":")
    return "-".join(re.findall(r"[a-z0-9%]+", shown))


@click.command(help=_HELP)
@click.argument("term", required=False, metavar="[TERM|CODE]")
@common_options
def explain(term: str | None, as_json: bool) -> None:
    """Explain one term, or list all of them."""
    entries = load_explanations()
    if term is None:
        if as_json:
            print_json({"explanations": entries})
        else:
            print_data(_listing(entries))
        return
    synonyms = load_synonyms()
    key = term_key(term)
    key = synonyms.get(key, key)
    if key not in entries:
        entries |= _signatures()
    if key not in entries:
        from torchyard.core.records import nearest_hint

        nearest = nearest_hint(key, [*entries, *synonyms])
        hint = nearest if nearest.startswith("did") else "`torchyard explain` lists all terms"
        raise UsageError(f"there is no explanation of {term!r}", hint=hint)
    entry = entries[key]
    if as_json:
        print_json({"word": key, **entry})
        return
    body = textwrap.fill(" ".join(entry["text"].split()), 88)
    print_data(f"{key} ({entry['kind']}): {entry['short']}\n\n{body}")


def _read_file() -> dict[str, Any]:
    path = files("torchyard.cli").joinpath("explanations.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _entries(table: dict[str, Any]) -> list[tuple[str, dict[str, str]]]:
    kind = str(table["kind"])
    return [
        (term, {"kind": kind, "short": entry["short"], "text": " ".join(entry["text"].split())})
        for term, entry in table["entries"].items()
    ]


def _patterns() -> dict[str, dict[str, str]]:
    from torchyard.values.pattern_texts import load_pattern_texts

    return {
        name.replace(" ", "-"): {"kind": PATTERN, "short": text.short, "text": text.whole}
        for name, text in load_pattern_texts().patterns.items()
    }


def _signatures() -> dict[str, dict[str, str]]:
    """Return the known causes of failed builds, which are not in the list of all terms."""
    from torchyard.builds.diagnosis.signature import load_signatures, worded

    entries = {}
    for row in map(worded, load_signatures()):
        fixes = "".join(f" {_sentence(remedy)}" for remedy in row.remedy)
        references = f" See {', '.join(row.references)}." if row.references else ""
        text = f"{_sentence(row.cause)} Suggested fix:{fixes}{references}"
        # Some names are also other terms, such as `interrupted`: they are found with the prefix.
        entries[row.id] = entries[f"build-{row.id}"] = {
            "kind": f"build failure, {row.level}",
            "short": row.title,
            "text": text,
        }
    return entries


def _sentence(text: str) -> str:
    return text if text.endswith((".", ":", "`")) else f"{text}."


def _listing(entries: dict[str, dict[str, str]]) -> str:
    lines: list[str] = []
    kind = ""
    for term, entry in entries.items():
        if entry["kind"] != kind:
            kind = entry["kind"]
            lines += ["", f"{kind}:"] if lines else [f"{kind}:"]
        lines.append(f"  {term:<22} {entry['short']}")
    return "\n".join(lines)
