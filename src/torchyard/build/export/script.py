"""A plan as one POSIX shell script that does the same by hand, without Torchyard. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Final

from torchyard.build.export.contract import ExportedFile, ExportFacts
from torchyard.build.export.own_steps import without_own_steps
from torchyard.build.export.plain_actions import freeze_command
from torchyard.build.export.script_parts import (
    CLEAN_START,
    PRIVATE_MOUNTS,
    ROOT_FUNCTIONS,
    STEP_FUNCTION,
)
from torchyard.build.export.shell_step import (
    JOB_VARIABLES,
    difference_statements,
    exports,
    step_statements,
)
from torchyard.build.export.shell_words import comment, quoted
from torchyard.build.export.variables import Difference, distinct_differences, shared_by_most
from torchyard.build.layout import BuildFolder
from torchyard.core.build_plan import Plan, Step, fingerprints

__all__ = ["export_script"]

_SYSTEM: Final = re.compile(r"/(bin|boot|dev|etc|lib[^/]*|lost\+found|proc|run|sbin|sys|usr|var)/")

_HEAD: Final = """\
#!/bin/sh
# Builds {name} by hand, as Torchyard would: {title}
#
#   sh build.sh             do what is not done yet; run it again after a failure
#   JOBS=2 sh build.sh      compile two files at once{default}
#
# Sources are fetched to {sources}
# Everything else goes below {folder}
# To have everything done again, remove the folder by-hand there.
{notes}#
# Not the same as with Torchyard:
# - the network is not cut off in the steps that do not fetch, and nothing is kept from the
#   files of this machine;
# - compiles are not measured, and not held back by the memory they need: lower JOBS if they are
#   killed;
# - of the checks, only the import and the smoke tests are made, not those of options and libraries;
# - steps run one after the other.
#
# Quoted text that looks like shell is meant for the shell that gets it.
# shellcheck disable=SC2016
"""


def export_script(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """One file, to be run with `sh`."""
    plan = without_own_steps(plan)
    rooted = any(step.root for step in plan.steps)
    differences = distinct_differences(plan.steps)
    names = {key: f"variables_{number}" for number, key in enumerate(differences, start=1)}
    parts = [
        _head(plan, facts),
        "set -eu\n",
        CLEAN_START,
        *((PRIVATE_MOUNTS,) if rooted else ()),
        _places(plan),
        _shared(plan),
        STEP_FUNCTION,
        *((_root_functions(plan, facts),) if rooted else ()),
        *(_variables_function(names[key], key, users) for key, users in differences.items()),
        *(_step_function(plan, step, number, names) for number, step in _numbered(plan)),
        *_freeze(plan, names),
        _calls(plan),
    ]
    return (ExportedFile(name="build.sh", text="\n".join(parts), executable=True),)


def _numbered(plan: Plan) -> list[tuple[int, Step]]:
    return list(enumerate(plan.steps, start=1))


def _head(plan: Plan, facts: ExportFacts) -> str:
    names = [f"{part.name} {part.recipe.version}".strip() for part in plan.components]
    default = f" ({plan.jobs} without it)" if plan.jobs else " (one for each core without it)"
    return _HEAD.format(
        name=comment(plan.name),
        title=comment(", ".join(names)),
        default=default,
        folder=comment(plan.folder),
        sources=comment(facts.sources),
        notes="".join(f"# Note: {comment(note)}\n" for note in plan.notes),
    )


def _places(plan: Plan) -> str:
    jobs = str(plan.jobs) if plan.jobs else "$(nproc)"
    folder = quoted(plan.folder)
    return f"JOBS=${{JOBS:-{jobs}}}\nmarks={folder}/by-hand\nmkdir -p -- {folder}/by-hand\n"


def _shared(plan: Plan) -> str:
    lines = exports(shared_by_most(plan.steps), one_line=False)
    jobs = " ".join(f'{name}="$JOBS"' for name in JOB_VARIABLES)
    limit = ("# For steps that compile", "limit_jobs() {", f"    export {jobs}", "}", "")
    return "\n".join(("# For all steps", *(line.strip(" ") for line in lines), "", *limit))


def _variables_function(name: str, difference: Difference, users: tuple[str, ...]) -> str:
    told = [f"# {comment(user)}" for user in users]
    body = difference_statements(difference, one_line=False)
    return "\n".join((*told, f"{name}() {{", *body, "}", ""))


def _step_function(plan: Plan, step: Step, number: int, names: Mapping[Difference, str]) -> str:
    lines = [f"# {comment(step.name)}: {comment(step.title)}", f"{_function(number, step)}() ("]
    lines += _own_variables(plan, step, names)
    if step.compiles:
        lines.append("    limit_jobs")
    lines += step_statements(plan, step, one_line=False)
    return "\n".join((*lines, ") </dev/null", ""))


def _own_variables(plan: Plan, step: Step, names: Mapping[Difference, str]) -> list[str]:
    difference = Difference.of(step, shared_by_most(plan.steps))
    return [f"    {names[difference]}"] if difference in names else []


def _freeze(plan: Plan, names: Mapping[Difference, str]) -> tuple[str, ...]:
    """The list of Python packages, made anew each time: it costs a second."""
    command = freeze_command(plan, str(_freeze_file(plan)))
    if command is None or not plan.steps:
        return ()
    last = plan.steps[-1]
    step = replace(last, actions=(command,))
    statements = step_statements(plan, step, one_line=False)
    lines = ["freeze() (", *_own_variables(plan, last, names), *statements, ") </dev/null", ""]
    return ("\n".join(lines),)


def _freeze_file(plan: Plan) -> Path:
    return BuildFolder(folder=Path(plan.folder)).freeze_file


def _calls(plan: Plan) -> str:
    prints = fingerprints(plan)
    lines = []
    for number, step in _numbered(plan):
        mark = f"{re.sub(r'[^A-Za-z0-9._-]', '-', step.name)}.{prints[step.name][:16]}"
        lines.append(f"step {quoted(step.name)} {mark} {_function(number, step)}")
    if freeze_command(plan, "") and plan.steps:
        lines.append("freeze")
    lines.append(f"printf '\\nbuilt: %s\\n' {quoted(plan.folder)}")
    return "\n".join(lines) + "\n"


def _function(number: int, step: Step) -> str:
    return f"step_{number}_{re.sub(r'[^A-Za-z0-9]+', '_', step.name)}"


def _root_functions(plan: Plan, facts: ExportFacts) -> str:
    """Folders of the build that lie in the machine's system folders are shown one by one."""
    folders = [facts.home] if PurePosixPath(plan.folder).is_relative_to(facts.home) else []
    folders = folders or [plan.folder, facts.home]
    hidden = [folder for folder in folders if _SYSTEM.match(f"{folder}/")]
    shown = "".join(f"        show {quoted(folder)}\n" for folder in hidden)
    return ROOT_FUNCTIONS.format(shown=shown)
