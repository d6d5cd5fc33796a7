"""A plan as text (every step, command, file and variable) and as JSON. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Final

from torchyard.builds import plan as plans
from torchyard.builds.export.shell import (
    Difference,
    ExportedFile,
    ExportFacts,
    command_text,
    own_variables,
    shared_by_most,
    wrapped,
)
from torchyard.builds.plan import Action, Command, Component, Plan, Step, Variables, fingerprints
from torchyard.core.records import encode
from torchyard.core.units import format_bytes

_WHOLE_LINES: Final = 24
"""A file up to this length is shown completely."""
_FIRST_LINES: Final = 6
_INDENT: Final = "     "


def export_text(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """Return one file with the complete plan; only the middle of long files is omitted."""
    shared = shared_by_most(plan.steps)
    lines = [*_head(plan, facts), "", "components"]
    for component in plan.components:
        lines += _component(component)
    lines += ["", "variables of all steps, unless a step overrides them"]
    lines += [f"  {text}" for text in _variables(shared)]
    if plan.runner_variables:
        lines += ["", "added at run time; changing them does not rerun steps"]
        lines += [f"  {text}" for text in _variables(tuple(plan.runner_variables.items()))]
    differences: dict[str, dict[str, Difference]] = {}
    for number, step in enumerate(plan.steps, start=1):
        lines += ["", *_step(plan, step, number, done=step.name in facts.done)]
        difference = Difference.of(step, shared)
        earlier = differences.setdefault(step.component, {})
        lines += _difference(difference, earlier)
        earlier[step.name] = difference
        lines += [f"{_INDENT}{line}" for line in _actions(plan, step)]
    return (ExportedFile(name="plan.txt", text="\n".join(map(_one_line, lines)) + "\n"),)


def _head(plan: Plan, facts: ExportFacts) -> list[str]:
    done = sum(step.name in facts.done for step in plan.steps)
    root = next((step.root for step in plan.steps if step.root), "")
    fetching = [step.name for step in plan.steps if step.network]
    why = f" ({plan.jobs_why})" if plan.jobs_why else ""
    lines = [
        f"plan {plan.name}",
        f"  folder    {plan.folder}",
        f"  sources   {facts.sources}",
    ]
    if root:
        lines.append(f"  root      {root}: Debian root folder of the steps marked `in the root`")
    lines += [
        f"  jobs      {plan.jobs or 'not chosen yet'}{why}",
        (
            f"  steps     {len(plan.steps)}, of which {done or 'none'} {'is' if done == 1 else 'are'} done"
        ),
        f"  network   allowed in {', '.join(fetching) or 'no step'}; blocked in all others",
    ]
    lines += [f"  missing   {text}: the plan cannot run here" for text in plan.missing]
    lines += [f"  note      {note}" for note in plan.notes]
    return lines


def _component(component: Component) -> list[str]:
    recipe = component.recipe
    parts = [recipe.version, f"variant {recipe.variant}" if recipe.variant else "", recipe.builder]
    lines = [f"  {component.name}: {', '.join(part for part in parts if part)}"]
    if component.needs:
        lines.append(f"    needs   {', '.join(component.needs)}")
    lines += [
        f"    source  {component.source}",
        f"    tree    {component.tree}",
    ]
    return lines


def _step(plan: Plan, step: Step, number: int, *, done: bool) -> list[str]:
    marks = [
        *(("done",) if done else ()),
        *(("network allowed",) if step.network else ()),
        *(("in the root",) if step.root else ()),
        *((f"compiles, {plan.jobs or '?'} jobs",) if step.compiles else ()),
    ]
    marked = f" [{'; '.join(marks)}]" if marks else ""
    lines = [f"{number:3}. {step.name}: {step.title}{marked}"]
    if step.needs:
        lines.append(f"{_INDENT}after: {', '.join(step.needs)}")
    lines += [f"{_INDENT}depends on {name}: {value}" for name, value in step.inputs]
    lines += [f"{_INDENT}creates: {path}" for path in step.creates]
    return lines


def _difference(difference: Difference, earlier: Mapping[str, Difference]) -> list[str]:
    """Return the variables of a step, relative to an earlier step of the component if shorter."""
    best, more = "", difference.more
    for name, other in earlier.items():
        beyond = difference.beyond(other)
        if beyond is not None and len(beyond) < len(more):
            best, more = name, beyond
    lines = []
    if best:
        lines.append(f"{_INDENT}variables: as {best}{', plus' if more else ''}")
    else:
        if difference.without:
            lines.append(f"{_INDENT}variables: without {', '.join(difference.without)}")
        if more:
            lines.append(f"{_INDENT}variables:")
    return [*lines, *(f"{_INDENT}  {text}" for text in _variables(more))]


def _variables(variables: Variables) -> list[str]:
    return [f"{name}={value}" for name, value in dict(variables).items()]


def _actions(plan: Plan, step: Step) -> Iterator[str]:
    here = plan.folder
    for action in step.actions:
        if isinstance(action, Command):
            folder = action.folder or plan.folder
            if folder != here:
                yield f"in {folder}"
                here = folder
            yield from _command(plan, step, action)
        else:
            yield from _other(plan, action)


def _other(plan: Plan, action: Action) -> list[str]:
    if isinstance(action, plans.WriteFile):
        return _file(action)
    if isinstance(action, plans.Download):
        return [f"download {action.url}", f"  to {action.path}", f"  with sha256 {action.sha256}"]
    if isinstance(action, plans.SdistDownload):
        checksum = f"sha256 {action.sha256}" if action.sha256 else "the checksum of the index"
        what = f"download the source distribution {action.name} {action.version} from the package index"
        return [what, f"  to {action.path}", f"  with {checksum}"]
    if isinstance(action, plans.AptSources):
        suite = action.suite or "the suites of this machine"
        kind = ", with source packages" if action.sources else ""
        what = (
            f"write an apt configuration for {suite}{kind}, with mirrors and keys of this machine"
        )
        return [what, f"  to {action.folder}"]
    return _verify(plan, action) if isinstance(action, plans.Verify) else []


def _command(plan: Plan, step: Step, command: Command) -> list[str]:
    prompt = "root$ " if step.root and command.inside_root else "$ "
    lines = [f"# {why}" for why in _reasons(plan, step, command)]
    words = command_text(command.argv, own_variables(step, command))
    text = wrapped(words, "").split("\n")
    lines.append(prompt + text[0])
    return [*lines, *(" " * len(prompt) + line for line in text[1:])]


def _reasons(plan: Plan, step: Step, command: Command) -> list[str]:
    """Return the reasons that the recipe gives for a command."""
    return [
        prepare.why
        for component in plan.components
        if component.name == step.component
        for prepare in component.recipe.prepare
        if prepare.run == command.argv and prepare.why
    ]


def _file(action: plans.WriteFile) -> list[str]:
    content = action.text.encode(errors="surrogateescape")
    digest = hashlib.sha256(content).hexdigest()[:16]
    program = ", executable" if action.executable else ""
    size = format_bytes(len(content))
    lines = [f"write {action.path} ({size}, sha256 {digest}{program})"]
    text = action.text.split("\n")
    if text[-1] == "":
        text.pop()
    shown = text if len(text) <= _WHOLE_LINES else text[:_FIRST_LINES]
    lines += [f"  | {line}" for line in shown]
    if len(shown) < len(text):
        lines.append(f"  | ... {len(text) - len(shown)} more lines")
    return lines


def _verify(plan: Plan, action: plans.Verify) -> list[str]:
    table = plan.component(action.component).recipe.verify
    checks = [
        *((f"import {table.import_name}",) if table.import_name else ()),
        "the options that took effect",
        *((f"linked libraries of {', '.join(table.libraries)}",) if table.libraries else ()),
        *((f"the files {', '.join(table.files)}",) if table.files else ()),
        *(f"smoke test: {test.name}" for test in table.smoke),
    ]
    lines = [f"check {action.component}, from outside the source tree"]
    return [*lines, *(f"  - {check}" for check in checks), f"  report to {action.report}"]


def _one_line(text: str) -> str:
    """Escape unprintable characters."""
    return "".join(
        character if character.isprintable() or character == "\t" else repr(character)[1:-1]
        for character in text
    )


SCHEMA: Final = "torchyard.build-plan"
SCHEMA_VERSION: Final = 1
"""Increased when a key changes its meaning or is removed, not when keys are added."""


def export_json(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """Return the complete plan, with the kinds of actions, fingerprints and states of steps."""
    prints = fingerprints(plan)
    document = encode(plan)
    for step, table in zip(plan.steps, document["steps"], strict=True):
        table["fingerprint"] = prints[step.name]
        table["done"] = step.name in facts.done
        # With the kind: the fields alone do not always distinguish them.
        table["actions"] = [
            {"kind": type(action).__name__, **fields}
            for action, fields in zip(step.actions, table["actions"], strict=True)
        ]
    whole = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "plan": document}
    return (ExportedFile(name="plan.json", text=json.dumps(whole, indent=2) + "\n"),)
