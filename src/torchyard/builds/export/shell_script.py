"""A plan as one POSIX shell script that runs the same steps without Torchyard.

Its fixed parts are in `build.sh.j2`: a clean environment (the rule of
`environments.model.inherited_variables`; a test compares the two), markers of finished steps, and a
root folder if the plan has one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.export.shell import (
    Difference,
    ExportedFile,
    ExportFacts,
    comment,
    difference_statements,
    distinct_differences,
    exports,
    freeze_command,
    quoted,
    shared_by_most,
    step_statements,
    without_own_steps,
)
from torchyard.builds.meter.compile_costs import JOB_VARIABLES
from torchyard.builds.plan import Plan, Step, fingerprints

if TYPE_CHECKING:
    from jinja2 import Template

_SYSTEM: Final = re.compile(r"/(bin|boot|dev|etc|lib[^/]*|lost\+found|proc|run|sbin|sys|usr|var)/")


def export_script(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """Return one file, to be run with `sh`."""
    plan = without_own_steps(plan)
    differences = distinct_differences(plan.steps)
    names = {key: f"variables_{number}" for number, key in enumerate(differences, start=1)}
    component_names = [f"{part.name} {part.recipe.version}".strip() for part in plan.components]
    text = _template().render(
        name=comment(plan.name),
        title=comment(", ".join(component_names)),
        default=f" [default: {plan.jobs}]" if plan.jobs else " [default: one per core]",
        folder=comment(plan.folder),
        sources=comment(facts.sources),
        notes="".join(f"# Note: {comment(note)}\n" for note in plan.notes),
        rooted=any(step.root for step in plan.steps),
        jobs=plan.jobs or "$(nproc)",
        quoted_folder=quoted(plan.folder),
        shared=_shared(plan),
        shown=_shown_folders(plan, facts),
        functions=[
            *(_variables_function(names[key], key, users) for key, users in differences.items()),
            *(_step_function(plan, step, number, names) for number, step in _numbered(plan)),
            *_freeze(plan, names),
        ],
        calls=_calls(plan),
    )
    return (ExportedFile(name="build.sh", text=text, executable=True),)


def _template() -> Template:
    from jinja2 import Environment

    text = Path(__file__).with_name("build.sh.j2").read_text(encoding="utf-8")
    # No escaping: all values are quoted for the shell.
    environment = Environment(autoescape=False, trim_blocks=True, keep_trailing_newline=True)  # noqa: S701
    return environment.from_string(text)


def _numbered(plan: Plan) -> list[tuple[int, Step]]:
    return list(enumerate(plan.steps, start=1))


def _shared(plan: Plan) -> str:
    lines = exports(shared_by_most(plan.steps), one_line=False)
    jobs = " ".join(f'{name}="$JOBS"' for name in JOB_VARIABLES)
    limit = ("# Steps that compile", "limit_jobs() {", f"    export {jobs}", "}", "")
    return "\n".join(("# All steps", *(line.strip(" ") for line in lines), "", *limit))


def _variables_function(name: str, difference: Difference, users: tuple[str, ...]) -> str:
    comments = [f"# {comment(user)}" for user in users]
    body = difference_statements(difference, one_line=False)
    return "\n".join((*comments, f"{name}() {{", *body, "}", ""))


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
    """Return the function that lists Python packages, updated at every run: it takes a second."""
    command = freeze_command(plan, str(BuildFolder(folder=Path(plan.folder)).freeze_file))
    if command is None or not plan.steps:
        return ()
    last = plan.steps[-1]
    step = replace(last, actions=(command,))
    statements = step_statements(plan, step, one_line=False)
    lines = ["freeze() (", *_own_variables(plan, last, names), *statements, ") </dev/null", ""]
    return ("\n".join(lines),)


def _calls(plan: Plan) -> str:
    prints = fingerprints(plan)
    lines = []
    for number, step in _numbered(plan):
        mark = f"{re.sub(r'[^A-Za-z0-9._-]', '-', step.name)}.{prints[step.name].partition(':')[2][:16]}"
        lines.append(f"step {quoted(step.name)} {mark} {_function(number, step)}")
    if freeze_command(plan, "") and plan.steps:
        lines.append("freeze")
    lines.append(f"printf '\\nbuilt: %s\\n' {quoted(plan.folder)}")
    return "\n".join(lines) + "\n"


def _function(number: int, step: Step) -> str:
    return f"step_{number}_{re.sub(r'[^A-Za-z0-9]+', '_', step.name)}"


def _shown_folders(plan: Plan, facts: ExportFacts) -> str:
    """Return statements that mount build folders inside system folders individually."""
    folders = [facts.home] if PurePosixPath(plan.folder).is_relative_to(facts.home) else []
    folders = folders or [plan.folder, facts.home]
    hidden = [folder for folder in folders if _SYSTEM.match(f"{folder}/")]
    return "".join(f"        show {quoted(folder)}\n" for folder in hidden)
