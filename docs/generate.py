# ruff: noqa: INP001  # a script beside the pages, not a package
"""Generate docs/reference/ from the commands, the dataclasses of the study file and the errors.

Pages about building are in build_reference.py, knobs in machine_reference.py, patterns of wasted work
in values_reference.py, suite lists in suite_reference.py, backends and options in variant_reference.py, the manual page in man_page.py.

python docs/generate.py            write the pages
python docs/generate.py --check    write nothing; exit with 1 if a page is outdated
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import build_reference
import click
import machine_reference
import man_page
import suite_reference
import values_reference
import variant_reference

from torchyard import api, errors
from torchyard.bench import study_file
from torchyard.cli.commands import COMMANDS
from torchyard.cli.explain import load_explanations
from torchyard.cli.group import LazyGroup, RunningGroup, program
from torchyard.core.study import Budget, MeasureSettings
from torchyard.results.gate import model

REFERENCE = Path(__file__).parent / "reference"
WRITTEN_BY = "<!-- Written by docs/generate.py; do not edit. -->\n"


_EXAMPLES = re.compile(r"^```\n(?=  (?:torchyard|sudo|eval) )(?:  .*\n)+```\n\n?", re.MULTILINE)
_SAID_ONCE = re.compile(
    r"\s*(?:RUN|SWEEP) is a (?:run folder|folder)(?:(?!\. ).)*?(?:, or|, or RUN#VARIANT,)\s+`latest`\.",
    re.DOTALL,
)
"""Sentences of single commands that the head of the page states for all."""


def commands_page() -> str:
    """Every command with its options. Options of many commands are described once."""
    head = (
        "Results go to stdout, progress and errors to stderr. `torchyard COMMAND --help` also shows examples. RUN and SWEEP "
        "are\na folder, an id, a unique prefix of one, or `latest`. Options with `...` may be repeated. Defaults are in brackets.\n"
    )
    text = _EXAMPLES.sub("", all_commands(common=True))
    rows = [
        *(f"- {words}: {about}" for words, about in _OF_ALL_COMMANDS.values()),
        *(f"- `{words}`{about}" for words, about, _ in _COMMON.values()),
    ]
    listed = "\n".join(rows)
    return (
        f"{WRITTEN_BY}\n# Commands\n\n{head}\n## Common options\n\nCommands name those that they have, "
        f"with the default if it differs.\n\n{listed}\n{_SAID_ONCE.sub('', text)}"
    )


def all_commands(*, common: bool = False) -> str:
    """Return the sections of all commands, with all examples.

    `common`: only name the options that the page describes in its head.
    """
    lines: list[str] = []
    context = click.Context(program, info_name="torchyard")
    shown = _Shown({}, common)
    for name, (_, about) in COMMANDS.items():
        command = program.get_command(context, name)
        if command is None:
            raise LookupError(name)
        if isinstance(command, RunningGroup):
            lines += _running_group(name, command, about, shown)
        elif isinstance(command, LazyGroup):
            lines += _group_commands(name, command, about, shown)
        else:
            lines += _command_section(f"torchyard {name}", command, about, shown)
    return "\n".join(lines) + "\n"


def _command_section(words: str, command: click.Command, about: str, shown: _Shown) -> list[str]:
    arguments = [str(p.metavar or str(p.name).upper()) for p in command.params if _is_argument(p)]
    text = _help_text(command.help or "")
    return [
        *("", f"## {words}\n"),
        *([f"Arguments: `{' '.join(arguments)}`\n"] if arguments else []),
        *([] if _has_prose(text) else [about[0].upper() + about[1:].rstrip(", .") + ".\n"]),
        text,
        *_options(words, command, shown),
    ]


def _has_prose(text: str) -> bool:
    return any(not block.startswith("```") for block in text.split("\n\n") if block)


def _running_group(word: str, group: RunningGroup, about: str, shown: _Shown) -> list[str]:
    """Return the sections of a group that also takes a recipe or a script itself."""
    run = group.get_command(click.Context(group, info_name=word), "run")
    if run is None:
        raise LookupError("run")
    return _command_section(f"torchyard {word}", run, about, shown) + _sections(word, group, shown)


def _group_commands(word: str, group: LazyGroup, about: str, shown: _Shown) -> list[str]:
    """Return the sections of a group that only has subcommands."""
    return [
        *("", f"## torchyard {word}\n"),
        _help_text(group.help or about),
        *_sections(word, group, shown),
    ]


def _sections(word: str, group: LazyGroup, shown: _Shown) -> list[str]:
    context = click.Context(group, info_name=word)
    lines: list[str] = []
    for name, (_, about) in group.table.items():
        command = group.get_command(context, name)
        if command is None:
            raise LookupError(name)
        lines += _command_section(f"torchyard {word} {name}", command, about, shown)
    return lines


def study_file_page() -> str:
    """Every key of a study file."""
    lines = [WRITTEN_BY, "# Study file\n"]
    lines += [
        (
            "A study file is TOML. Options override it; paths are relative to the file. Keys named like an "
            'option have its meaning and default.\nDurations, sizes and percentages are strings (`"5m"`, '
            '`"8GiB"`, `"1%"`) or plain numbers (seconds, bytes, fractions);\nrepeatable options are arrays. A key without a type is a string.\n'
        ),
        (
            "`baseline` and `candidates` are [variants](variants.md), such as "
            "`inductor+bfloat16+nightly+channels-last`. Defaults\nof omitted parts: `eager`, the study's "
            "`precision`, the first target (or the interpreter that runs Torchyard), an\nunchanged "
            "environment.\n"
        ),
        "```toml",
        (Path(__file__).parent.parent / "examples" / "demo.toml").read_text().rstrip(),
        "```",
    ]
    tables = (
        ("Top level", study_file.StudyFile, None, ""),
        ("[targets.NAME]", study_file.TargetTable, None, ""),
        ("[environments.NAME]", study_file.EnvironmentTable, None, ""),
        ("[[workloads]]", study_file.WorkloadTable, None, "bench"),
        ("[budget]", study_file.BudgetTable, Budget(), "bench"),
        ("[settings]", study_file.SettingsTable, MeasureSettings(), "bench"),
        ("[gate]", model.GateTable, None, "gate"),
        ("[sweep]", study_file.SweepTable, None, "sweep"),
    )
    for title, kind, defaults, command in tables:
        heading = title if title == "Top level" else f"`{title}`"
        lines += ["", f"## {heading}\n", (inspect.getdoc(kind) or "") + "\n"]
        hints, about = get_type_hints(kind), _field_docs(kind)
        options = _option_names(command)
        same: list[str] = []
        for field in dataclasses.fields(kind):
            name = field.name.replace("_", "-")
            if field.name not in about:
                continue  # a table with a section of its own
            if f"--{name}" in options and (title, name) not in _OTHER_MEANING:
                same.append(f"`{name}`")
                continue
            default = _default(field, defaults)
            kind_text = _type_text(hints[field.name])
            value = ", ".join(filter(None, ("" if kind_text == "string" else kind_text, default)))
            shown = f" ({value})" if value else ""
            lines.append(f"- `{name}`{shown}: {about[field.name]}")
        if same:
            link = f"[torchyard {command}](commands.md#torchyard-{command})"
            lines.append(f"- {', '.join(same)}: as the options of {link}.")
    return "\n".join(lines) + "\n"


_OTHER_MEANING = {
    ("[[workloads]]", "suite"),
    ("[gate]", "limits"),
    ("[sweep]", "batch-size"),
    ("[sweep]", "slurm"),
}
"""Keys that are named like an option and differ from it."""


def _option_names(name: str) -> set[str]:
    """Return the options of a command; none without a name."""
    command = program.get_command(click.Context(program, info_name="torchyard"), name)
    if isinstance(command, RunningGroup):
        command = command.get_command(click.Context(command, info_name=name), "run")
    return {word for parameter in command.params for word in parameter.opts} if command else set()


def exit_codes_page() -> str:
    """Return the page of all exit codes."""
    lines = [WRITTEN_BY, "# Exit codes\n", "| code | meaning | when |", "|---|---|---|"]
    texts = load_explanations()
    lines += [
        f"| {code} | {meaning} | {texts[str(code)]['text']} |"
        for code, meaning in errors.EXIT_CODES.items()
    ]
    return "\n".join(lines) + "\n"


def python_page() -> str:
    """Return the page of the Python API, from its docstrings."""
    lines = [WRITTEN_BY, "# Python API\n"]
    lines += [
        "[How to use it](../howto/use-from-python.md). `import torchyard` imports no torch.\n"
    ]
    for name in api.__all__:
        value = getattr(api, name)
        text = inspect.getdoc(value) or ""
        if inspect.isfunction(value):
            lines += [f"## `torchyard.{name}`\n", f"```python\n{name}{_call_text(value)}\n```\n"]
            lines += [_indented_as_code(text) + "\n"]
            continue
        lines += [f"## class `torchyard.{name}`\n", text + "\n"]
        rows = {key: about for key, about in _field_docs(value).items() if about}
        for key, member in vars(value).items():
            if isinstance(member, property) or (inspect.isfunction(member) and key[0] != "_"):
                call = "" if isinstance(member, property) else "()"
                rows[f"{key}{call}"] = " ".join((inspect.getdoc(member) or "").split())
        lines += [*(f"- `{key}`: {about}" for key, about in rows.items()), ""]
    return "\n".join(lines).rstrip() + "\n"


def _call_text(function: Callable[..., Any]) -> str:
    """Return the signature without the annotations of other modules."""
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature(parameters)).replace("'", '"')


def _indented_as_code(text: str) -> str:
    """Return text with its indented blocks as fenced code."""
    blocks = re.split(r"\n\s*\n", text)
    return "\n\n".join(
        f"```python\n{inspect.cleandoc(block)}\n```" if block.startswith("    ") else block
        for block in blocks
    )


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "study-file.md": study_file_page,
    "exit-codes.md": exit_codes_page,
    "python-api.md": python_page,
    "recipe-file.md": lambda: build_reference.recipe_file_page(WRITTEN_BY, _type_text, _field_docs),
    "recipes.md": lambda: build_reference.recipes_page(WRITTEN_BY),
    "versions.md": lambda: build_reference.versions_page(WRITTEN_BY),
    "failures.md": lambda: build_reference.failures_page(WRITTEN_BY),
    "doctor.md": lambda: build_reference.doctor_page(WRITTEN_BY),
    "knobs.md": lambda: machine_reference.knobs_page(WRITTEN_BY),
    "suite-lists.md": lambda: suite_reference.lists_page(WRITTEN_BY),
    "variants.md": lambda: variant_reference.variants_page(WRITTEN_BY),
    "value-patterns.md": lambda: values_reference.patterns_page(WRITTEN_BY),
    "../man/torchyard.1": lambda: man_page.man_page(all_commands(), errors.EXIT_CODES),
}


def main() -> int:
    """Write the pages, or list those that are outdated."""
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, make in PAGES.items():
        path, text = REFERENCE / name, make()
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for name in stale:
        sys.stdout.write(f"{name}: {'outdated' if check else 'written'}\n")
    return 1 if check and stale else 0


def _is_argument(parameter: click.Parameter) -> bool:
    return isinstance(parameter, click.Argument)


def _help_text(text: str) -> str:
    """Return the help as Markdown: preformatted blocks as code, the rest as prose."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text))
    return "\n\n".join(
        "```\n" + block.lstrip("\b\n").removeprefix("Examples:\n") + "\n```"
        if block.startswith("\b")
        else block
        for block in blocks
    )


_OF_ALL_COMMANDS = {
    "as_json": ("`--json`", "one JSON object on stdout"),
    "debug": ("`--debug`", "tracebacks of errors"),
    "quiet": ("`-q`, `--quiet`", "no progress"),
}
"""Parameters of all commands, or of all that show progress: words and meaning."""
_COMMON = {
    "--target": (
        "--target PYTHON|build:NAME",
        " [this one]: interpreter with torch: a path, a virtual environment, a command on PATH or a build",
        r"(Interpreter with (PyTorch|torch): .*)|Python interpreter or build.*",
    ),
    "--device": (
        "--device DEVICE",
        " [cpu]: `cpu`, `cuda`, `cuda:1`, `xpu`, ...",
        r"(Device of the workload: )?cpu, cuda.*|cpu, cuda or cuda:1\.",
    ),
    "--threads": (
        "--threads N",
        " [one per core]: threads of torch",
        r"(PyTorch threads|Number of torch threads)\.",
    ),
    "--batch-size": (
        "--batch-size N",
        " [the workload's own]",
        r"Batch size( of the workload)?\.",
    ),
    "--run-dir": (
        "--run-dir FOLDER",
        " [one in the results directory]: new or empty folder for the results",
        r"Store the (run|race) here.*|Directory for the .*; must be new or empty\.|Folder of the sweep\.",
    ),
    "--html": (
        "--html FILE",
        ": write the report as one HTML file",
        r"Write (an?|the) .*|Write the race with.*",
    ),
    "--format": (
        "--format FORMAT",
        " [from the suffix of `--output`]: output format",
        r"Output format\.",
    ),
    "--output": (
        "--output FILE",
        " [stdout]",
        r"Output file\.|Write to a file instead of stdout\.",
    ),
    "--share": (
        "--share",
        ": redact host names, users, paths, values of variables and command lines",
        r".*",
    ),
    "--dry-run": ("--dry-run", ": show what would be done; do nothing", r".*"),
    "--margin": (
        "--margin PERCENT",
        " [1%]: smaller differences count as the same",
        r"(Differences below this|Smaller differences) count as the same\.",
    ),
    "--issue": ("--issue FILE", ": write Markdown text for an upstream issue", r".*"),
    "--jobs": (
        "--jobs N|auto",
        ": parallel compile jobs; `auto` chooses by cores and memory",
        r"Parallel compile.*",
    ),
}
"""Option -> words, meaning, and a pattern of the help texts that say no more than that."""
_COMMON_DEFAULTS = {
    "--target": ("this one", "this interpreter", "this interpreter."),
    "--device": ("cpu",),
    "--threads": ("one per core",),
    "--batch-size": ("the workload's own", "its own"),
    "--output": ("stdout",),
    "--margin": ("1%",),
    "--run-dir": ("a new one in the sweeps directory",),
}
_DEFAULT = re.compile(r"\s*\[default: (.*)\]$")


@dataclasses.dataclass
class _Shown:
    """What earlier commands described."""

    rows: dict[str, str]
    """Row of an option -> the first command that has it."""
    common: bool
    """Whether the page describes common options in its head."""

    def common_words(self, option: click.Option) -> str:
        """Return the words that name a common option; empty for all others."""
        name = option.opts[-1]
        if not self.common or name not in _COMMON or option.multiple:
            return ""
        _, _, pattern = _COMMON[name]
        about = option.help or ""
        default = _DEFAULT.search(about)
        if not re.fullmatch(pattern, _DEFAULT.sub("", about).strip()):
            return ""
        shown = _signature(option) if name == "--format" else f"`{name}`"
        if (
            default is None
            or default[1] in _COMMON_DEFAULTS.get(name, ())
            or "suffix" in default[1]
        ):
            return shown
        return f"{shown} [{default[1]}]"


def _options(words: str, command: click.Command, shown: _Shown) -> list[str]:
    sections: dict[str, list[click.Option]] = {}
    common: list[str] = []
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in _OF_ALL_COMMANDS:
            if named := shown.common_words(parameter):
                common.append(named)
                continue
            sections.setdefault(getattr(parameter, "section", ""), []).append(parameter)
    lines: list[str] = []
    for heading, options in sections.items():
        title = heading or ("Other" if len(sections) > 1 else "Options")
        rows = [_option_row(option) for option in options]
        repeated = [
            option.opts[-1] for option, row in zip(options, rows, strict=True) if row in shown.rows
        ]
        few = len(repeated) < _FEW and all(len(row) < _LONG for row in rows if row in shown.rows)
        new = [row for row in rows if few or row not in shown.rows]
        lines += ["", *([] if title == "Options" else [f"{title}:\n"]), *new]
        if not few:
            names = ", ".join(f"`{name}`" for name in repeated)
            lines.append(f"- {names}: as for {_places(shown.rows, rows)}.")
        for row in new:
            shown.rows.setdefault(row, words)
    if common:
        lines += ["", f"Common: {', '.join(common)}."]
    return lines


_FEW = 2
"""Number of options from which those of an earlier command are not repeated."""
_LONG = 70
"""Length of the text from which a single one is not repeated."""


def _places(shown: dict[str, str], rows: list[str]) -> str:
    commands = dict.fromkeys(shown[row] for row in rows if row in shown)
    return ", ".join(
        f"[{words.removeprefix('torchyard ')}](#{words.replace(' ', '-')})" for words in commands
    )


def _option_row(option: click.Option) -> str:
    about = re.sub(
        r"(?: \(repeatable\)|[;,] (?:repeatable|may be repeated))(?=\.|$)|\s*May be repeated\.\s*|"
        r"\s*\[default: no-[a-z0-9-]+\]",
        "",
        option.help or "",
    )
    default = _DEFAULT.search(about)
    about = _DEFAULT.sub("", about).strip()
    shown = f" [{default[1]}]" if default else ""
    return f"- {_signature(option)}{shown}{': ' if about else ''}{about}"


def _signature(option: click.Option) -> str:
    words = ", ".join(option.opts)
    if option.secondary_opts:
        words += " / " + ", ".join(option.secondary_opts)
    if option.is_flag:
        return f"`{words}`"
    choices = getattr(option.type, "choices", None)
    value = option.metavar or ("|".join(map(str, choices)) if choices else str(option.name).upper())
    return f"`{words} {value}{'...' if option.multiple else ''}`"


def _field_docs(kind: type[Any]) -> dict[str, str]:
    """Return the docstring below each field."""
    tree = ast.parse(inspect.getsource(kind))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs: dict[str, str] = {}
    for first, second in pairwise(body):
        if (
            isinstance(first, ast.AnnAssign)
            and isinstance(first.target, ast.Name)
            and isinstance(second, ast.Expr)
            and isinstance(second.value, ast.Constant)
        ):
            docs[first.target.id] = " ".join(str(second.value.value).split())
    return docs


def _type_text(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        rest = [argument for argument in arguments if argument is not type(None)]
        if set(rest) == {str, int, float}:
            return "string or number"
        if set(rest) == {int, float, str, bool}:
            return "any value"
        return " or ".join(_type_text(argument) for argument in rest)
    if origin is tuple:
        return " ".join(("array", _type_text(arguments[0]))) if get_args(arguments[0]) else "array"
    if origin is dict:
        return "table"
    if dataclasses.is_dataclass(kind):
        return "table"
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))


def _default(field: dataclasses.Field[Any], defaults: Budget | MeasureSettings | None) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "**required**"
    if defaults is None:
        return ""
    for suffix, unit in (("", ""), ("_s", "s"), ("_bytes", "B")):
        value = getattr(defaults, field.name + suffix, None)
        if value is not None:
            if field.name in {"precision_goal", "margin"}:
                return f"default {value:.0%}"
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return f"default {value:g}{unit}"
            return f"default {str(value).lower()}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
