# ruff: noqa: INP001  # beside the pages, not a package
"""Generate the reference pages about building; used by generate.py."""

from __future__ import annotations

import dataclasses
import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from torchyard.builds import compatibility
from torchyard.builds import recipe as grammar
from torchyard.builds.diagnosis import signature
from torchyard.builds.diagnosis.signature import load_signatures, parse_signatures
from torchyard.builds.doctor.examination import CHECKS
from torchyard.builds.recipe_file import load_recipe_file, shipped_recipes
from torchyard.builds.sources.configure_downloads import all_configure_downloads

_TABLES: tuple[tuple[str, type[Any]], ...] = (
    ("Top level", grammar.Recipe),
    ("[source]", grammar.SourceTable),
    ("[source.git]", grammar.GitSource),
    ("[source.folder]", grammar.FolderSource),
    ("[source.tarball]", grammar.TarballSource),
    ("[source.sdist]", grammar.SdistSource),
    ("[source.debian]", grammar.DebianSource),
    ("[environment]", grammar.EnvironmentTable),
    ("[environment.venv]", grammar.VenvTable),
    ("[environment.conda]", grammar.CondaTable),
    ("[environment.debian-root]", grammar.DebianRootTable),
    ("[[prepare]]", grammar.PrepareCommand),
    ("[cmake]", grammar.CMakeTable),
    ("[python]", grammar.PythonTable),
    ("[scons]", grammar.SconsTable),
    ("[make]", grammar.MakeTable),
    ("[verify]", grammar.VerifyTable),
    ("[[verify.smoke]]", grammar.SmokeTest),
    ("[[verify.tests]]", grammar.TestFile),
    ("[[components]]", grammar.ComponentTable),
)
_NOT_WRITTEN = ("variant", "folder")
"""Fields of a recipe that are set while it is read."""

_RECIPE_FILE_HEAD = """\
A recipe file is TOML ([how to write one](../howto/write-a-recipe.md)). Patches and recipes of components are relative to the file. An unknown key or
an invalid value is an error that names the nearest valid name. A key without a type is a string.

## Variants, conditions and settings

A file contains one recipe and overrides:

| key | meaning |
|---|---|
| `[variants.NAME]` | keys that apply if this variant is selected; `extends = "OTHER"` builds on another variant |
| `default-variant` | the default variant |
| `[[when]]` | keys that apply if all conditions in `if` hold; `why` gives the reason |

`if` is a table of `release` (a version range as in pip), `source`, `environment`, `machine` (such as `aarch64`) and
`variant`; all but `release` may be lists. A version that is not a number, such as a branch, is newer than every release.

Precedence, lowest first: recipe, variant, version, `[[when]]` tables from top to bottom, `--set`. Tables are merged by
key, lists are appended, other values are replaced; `--set` also replaces lists. In `--set KEY=VALUE`, KEY is a recipe key
(`source.git.ref`) if there is one of that name, otherwise an option (`USE_CUDA`); `--set COMPONENT/KEY=VALUE` applies to
one component of a stack.

## Placeholders

Strings may contain `{version}`, `{name}`, `{variant}`, `{machine}`, the paths `{source}`, `{tree}`, `{prefix}`,
`{wheels}`, `{env}`, `{root}`, `{folder}` (of the build) and `{python}`, and for each recipe in `needs`
`{needs.NAME.tree}`, `{needs.NAME.prefix}` and `{needs.NAME.version}`. `{cuda}` and `{gcc}` are the versions of the
environment, `{cuda-folder}` the folder of the system's toolkit, `{conda-platform}` (linux-64) and `{conda-triple}` the names
of this machine in conda packages. `[source]` supports `{version}` only.
Smoke tests, `summary` and `why` are not expanded.
"""

_DOWNLOADS_HEAD = """\
The configure step has no network access, so the fetch step downloads what it would, in the version that the source pins.
"""

_RECIPES_HEAD = """\
`torchyard build NAME --variant VARIANT --plan` shows every command, with the changes that depend on release, source and environment. CPU seconds
are measured or estimated, for one core.
"""

_VERSIONS_HEAD = """\
Outside of *needs* a build cannot succeed; outside of *prefers* it may fail. Sources and reasons are in
`src/torchyard/builds/compatibility.toml`. An unlisted release is treated like its nearest neighbor, which the doctor reports.
"""

_SIGNATURES = Path(signature.__file__).with_name("signatures")
_FAILURES_HEAD = """\
`torchyard build explain LOG` and a failed build recognize {count} causes in a log
([guide](../howto/find-out-why-a-build-failed.md)). `torchyard explain NAME` prints cause, suggested fix and references. *General*: a
class of errors that another entry may explain better. *Loss*: the build succeeds with less than requested. *Notice*: harmless.
"""

_DOCTOR_HEAD = """\
`torchyard doctor [RECIPE]` runs all checks in this order; a build runs them before it compiles. A finding *blocks* (the build
cannot succeed: exit code 4), *warns* (it may fail) or is a *note*. Versions: [matching versions](versions.md).
"""


def recipe_file_page(
    written_by: str,
    type_text: Callable[[Any], str],
    field_docs: Callable[[type[Any]], dict[str, str]],
) -> str:
    """Return the page of all keys of a recipe file."""
    lines = [written_by, "# Recipe file\n", _RECIPE_FILE_HEAD]
    for title, kind in _TABLES:
        heading = title if title == "Top level" else f"`{title}`"
        lines += [f"## {heading}\n", (inspect.getdoc(kind) or "") + "\n"]
        hints, about = get_type_hints(kind), field_docs(kind)
        for field in dataclasses.fields(kind):
            if kind is grammar.Recipe and field.name in _NOT_WRITTEN:
                continue
            if field.name not in about and type_text(hints[field.name]) == "table":
                continue  # a table with a section of its own
            named_by_file = kind is grammar.Recipe and field.name == "name"
            default = "" if named_by_file else _default(field)
            kind_text = type_text(hints[field.name])
            value = ", ".join(filter(None, ("" if kind_text == "string" else kind_text, default)))
            shown = f" ({value})" if value else ""
            lines.append(f"- `{field.name.replace('_', '-')}`{shown}: {about[field.name]}")
        lines.append("")
    return "\n".join(lines)


def recipes_page(written_by: str) -> str:
    """Every shipped recipe with its variants."""
    lines = [written_by, "# Recipes\n", _RECIPES_HEAD]
    for name in shipped_recipes():
        table = load_recipe_file(name).table
        lines += [f"## {name}\n", f"{_sentence(table.get('summary', ''))}\n"]
        lines += ["; ".join(f"{key} {value}" for key, value in _recipe_facts(table)) + ".\n"]
        if table.get("options"):
            lines += [f"Options: {_options(table['options'])}\n"]
        variants: Mapping[str, Mapping[str, Any]] = table.get("variants", {})
        for variant, overlay in variants.items():
            default = " (default)" if table.get("default-variant") == variant else ""
            options = _options(overlay.get("options", {}))
            shown = f" ({options})" if options else ""
            lines.append(f"- `{variant}`{default}: {overlay.get('summary', '')}{shown}")
        if variants:
            lines.append("")
    return "\n".join(lines)


def versions_page(written_by: str) -> str:
    """The coupling table."""
    raw = tomllib.loads(
        Path(compatibility.__file__).with_name("compatibility.toml").read_text("utf-8")
    )
    lines = [
        written_by,
        "# Matching versions\n",
        _VERSIONS_HEAD,
        "## PyTorch\n",
        "| release | front end | C++ | torchvision | torchaudio | oneDNN inside | ACL of its Arm wheels |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: dict[str, list[str]] = {}
    for version in compatibility.known_releases("pytorch"):
        facts = compatibility.release_facts("pytorch", version)
        goes_with = [facts.companions.get(name, "") for name in ("torchvision", "torchaudio")]
        lines.append(
            _row(
                version,
                facts.front_end,
                facts.cxx_standard,
                *goes_with,
                facts.onednn,
                facts.acl,
            )
        )
        for note in facts.notes:
            notes.setdefault(note, []).append(version)
    lines += ["", *_requirements("pytorch"), ""]
    lines += [f"- {', '.join(versions)}: {note}" for note, versions in notes.items()]
    for project in ("torchvision", "torchaudio"):
        newest = compatibility.known_releases(project)[-1]
        fits = ", ".join(compatibility.release_facts(project, newest).also_fits)
        lines += ["", f"## {project}\n"]
        lines += [f"Releases belong to PyTorch as above; {newest} also to {fits}.\n"]
        lines += _requirements(project)
    lines += ["", "## oneDNN and Arm Compute Library\n"]
    lines += ["A release between two rows is treated like the upper one.\n"]
    lines += ["| oneDNN | accepts Arm Compute Library | confirmed |", "|---|---|---|"]
    for version, item in raw["onednn-acl"].items():
        lines.append(_row(version, item["accepts"], "yes" if item.get("confirmed", True) else "no"))
    lines += ["", "## CUDA toolkits\n"]
    lines += ["| toolkit | newest gcc | newest clang | lowest driver |"]
    lines += ["|---|---|---|---|"]
    for version, item in raw["cuda"].items():
        limits = [item["gcc-most"], item["clang-most"], item["driver-least"]]
        lines.append(_row(version, *limits))
    lines += ["", "| compute capabilities | toolkits |", "|---|---|", *_capabilities(raw["cuda"])]
    lines += ["", "## ROCm\n", *(f"- `{item['versions']}`: {item['note']}" for item in raw["rocm"])]
    lines += ["", "## Downloads of the configure step\n", _DOWNLOADS_HEAD]
    for entry in all_configure_downloads():
        unless = [f"{name}=0" for name in entry.unless_off] + [
            f"{name}=1" for name in entry.unless_set
        ]
        unless += [" and ".join(f"{name}=0" for name in entry.unless_all_off)]
        row = f"- {entry.name} {entry.releases}, unless {' or '.join(filter(None, unless))}"
        lines += [row] if row != lines[-1] else []
    lines += ["", "## Known bad combinations\n"]
    lines.append("`torchyard doctor` reports them, with a fix.\n")
    lines += [f"- {_bad_when(item)}: {item['what']}" for item in raw["bad"]]
    return "\n".join(lines) + "\n"


def _capabilities(toolkits: Iterable[str]) -> list[str]:
    """Return a row for the capabilities that the same toolkits support."""
    supported: dict[str, list[str]] = {}
    for toolkit in toolkits:
        for capability in compatibility.supported_capabilities(toolkit):
            supported.setdefault(capability, []).append(toolkit)
    rows: dict[tuple[str, ...], list[str]] = {}
    for capability in sorted(supported, key=float):
        rows.setdefault(tuple(supported[capability]), []).append(capability)
    return [_row(" ".join(cards), _span(names, list(toolkits))) for names, cards in rows.items()]


def _span(names: tuple[str, ...], ordered: list[str]) -> str:
    """Return the toolkits as a range if they follow each other, as a list otherwise."""
    start = ordered.index(names[0])
    if len(names) == 1 or tuple(ordered[start : start + len(names)]) != names:
        return " ".join(names)
    return f"{names[0]} and later" if names[-1] == ordered[-1] else f"{names[0]} to {names[-1]}"


def failures_page(written_by: str) -> str:
    """Return the names of the known failures by topic; `torchyard explain` has the text of each."""
    lines = [
        written_by,
        "# Failures of builds\n",
        _FAILURES_HEAD.format(count=len(load_signatures())),
    ]
    for entry in sorted(_SIGNATURES.glob("*.toml")):
        rows = parse_signatures(entry.read_text("utf-8"), where=entry.name)
        levels = ["" if row.level == "fatal" else f" ({row.level})" for row in rows]
        names = [f"`{row.id}`{level}" for row, level in zip(rows, levels, strict=True)]
        lines.append(f"- {entry.stem}: {', '.join(names)}")
    return "\n".join(lines) + "\n"


def doctor_page(written_by: str) -> str:
    """Every check of the doctor."""
    lines = [
        written_by,
        "# Checks of the doctor\n",
        _DOCTOR_HEAD,
        "| check | subject |",
        "|---|---|",
        *(_row(f"`{check.name}`", check.subject) for check in CHECKS),
    ]
    return "\n".join(lines) + "\n"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
        return "" if dataclasses.is_dataclass(value) or not value else _default_text(value)
    if field.default is dataclasses.MISSING:
        return "**required**"
    if field.default in (None, "", ()):
        return ""
    return _default_text(field.default)


def _default_text(value: Any) -> str:
    return f"default {_value(value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(f"`{item}`" for item in value)
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


def _recipe_facts(table: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    source: Mapping[str, Any] = table.get("source", {})
    kinds = [key for key in source if key != "use"]
    used = source.get("use") or (kinds[0] if len(kinds) == 1 else "")
    yield "Version", str(table.get("version", "from `--version`"))
    if table.get("components"):
        parts = (
            " ".join(
                filter(None, (part["recipe"], part.get("version", ""), part.get("variant", "")))
            )
            for part in table["components"]
        )
        yield "components", ", ".join(parts)
    else:
        yield "builder", str(table.get("builder", "cmake"))
        names = ", ".join(f"{kind}{' (default)' if kind == used else ''}" for kind in kinds)
        yield "sources", names or "from `--set source...`"
    yield "environment", str(table.get("environment", {}).get("use", "venv"))
    if table.get("needs"):
        yield "needs", ", ".join(table["needs"])
    if table.get("cpu-seconds"):
        yield "CPU seconds", f"{table['cpu-seconds']:g}"
    yield "disk", f"{table.get('disk-gib', 1.0):g} GiB"


def _options(options: Mapping[str, Any]) -> str:
    return " ".join(f"`{key}={_plain(value)}`" for key, value in options.items())


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bad_when(item: Mapping[str, Any]) -> str:
    conditions = [*item.get("projects", ())]
    if "releases" in item:
        conditions.append(item["releases"])
    conditions += [
        f"{tool} {limits}" for tool, limits in item.get("tools", {}).items() if limits != ">=0"
    ]
    conditions += [
        f"with {tool}" for tool, limits in item.get("tools", {}).items() if limits == ">=0"
    ]
    if "architecture" in item:
        conditions.append(f"on {item['architecture']}")
    if "unless-set" in item:
        conditions.append(f"unless {item['unless-set']} is set")
    if "unless-off" in item:
        conditions.append(f"unless {item['unless-off']} is off")
    return ", ".join(conditions)


def _requirements(project: str) -> list[str]:
    """Return a table of all tools, with the releases for which a range of versions is needed or preferred."""
    releases = list(compatibility.known_releases(project))
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for version in releases:
        facts = compatibility.release_facts(project, version)
        for kind, ranges in (("needs", facts.needs), ("prefers", facts.prefers)):
            for tool, limits in ranges.items():
                rows.setdefault((kind, tool), {}).setdefault(limits, []).append(version)
    lines = ["| requirement | releases: range |", "|---|---|"]
    for (kind, tool), ranges_of in rows.items():
        spans = (f"{_releases(found, releases)}: {limits}" for limits, found in ranges_of.items())
        lines.append(_row(f"{kind} {tool}", "; ".join(spans)))
    return lines


def _releases(found: list[str], ordered: list[str]) -> str:
    """Return releases as a range if they follow each other, as a list otherwise."""
    start = ordered.index(found[0])
    if found == ordered:
        return "all"
    if len(found) == 1 or ordered[start : start + len(found)] != found:
        return ", ".join(found)
    return f"{found[0]} to {found[-1]}"


def _row(*cells: object) -> str:
    return f"| {' | '.join(_prose(str(cell)) for cell in cells)} |"


def _prose(text: str) -> str:
    """Escape what Markdown would interpret."""
    piped = text.replace("|", "\\|")
    return piped if "`" in text else re.sub(r"<(?=[A-Za-z/])", "&lt;", piped)


def _sentence(text: str) -> str:
    return f"{_prose(text).rstrip('.')}." if text else ""
