"""Brings the sources and working copies of a build to the newest, without losing its objects.

A whole new working copy, patched and prepared, is made beside the old one; then only what differs
goes over to the old one. So a file that did not change keeps its time, and what was built from it
stays. Says what to do; `sync_tree` does the last part.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.build.changing import build_steps
from torchyard.build.component_steps import copy_actions
from torchyard.build.layout import BuildFolder, YardHome
from torchyard.build.sources import fetch_actions, update_actions, used_kind
from torchyard.build.step_state import touch
from torchyard.build.sync_tree import first_edit
from torchyard.core.build_plan import Action, Command, Component, Plan, Step, fingerprints

__all__ = ["local_work", "settle", "update_plan"]

_SYNC: Final = str(Path(__file__).resolve().with_name("sync_tree.py"))
_OWN: Final = re.compile(r"commit|cherry-pick|am:|rebase|merge|revert").match
"""Beginnings of what git writes down for itself about commits that are made, not fetched."""


def update_plan(plan: Plan, components: Iterable[Component], home: YardHome) -> Plan | None:
    """A plan that brings sources and working copies to the newest; None when nothing can move."""
    steps: list[Step] = []
    for part in components:
        steps += _steps(plan, part, home)
    return replace(plan, steps=tuple(steps), notes=()) if steps else None


def local_work(part: Component) -> str:
    """What an update would throw away of a working copy: own commits, or edits; empty for none.

    Patches and preparation change files, too; where a recipe has such, edits cannot be told from
    them, and only commits are seen.
    """
    tree, source = Path(part.tree), Path(part.source)
    if used_kind(part.recipe.source, f"{part.name}: source") == "folder":
        changed = "" if part.recipe.patches or part.recipe.prepare else first_edit(source, tree)
        return f"{tree} has edits: {changed}" if changed else ""
    if not (tree / ".git").exists() or not (source / ".git").exists():
        return ""
    if _git(tree, "rev-parse", "HEAD") != _git(source, "rev-parse", "HEAD"):
        # Another build's update may have moved the source on: only commits made here are own work.
        made = [line for line in _git(tree, "reflog", "--format=%gs").splitlines() if _OWN(line)]
        if made:
            return f"{tree} has commits that its source has not: {made[0]}"
    if part.recipe.patches or part.recipe.prepare:
        return ""
    edited = _git(tree, "status", "--porcelain", "--untracked-files=no")
    return f"{tree} has edits: {edited.splitlines()[0].strip()}" if edited else ""


def _git(folder: Path, *words: str) -> str:
    # The copy belongs to whoever built it, which need not be who updates it.
    trusting = ("-c", f"safe.directory={folder}")
    ended = subprocess.run(
        ["git", *trusting, "-C", str(folder), *words],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    return ended.stdout.strip()


def settle(plan: Plan, updates: Plan) -> None:
    """After the updates: sources and working copies are what the plan wants of them."""
    folder = BuildFolder(folder=Path(plan.folder))
    prints = fingerprints(plan)
    moved = {step.component for step in updates.steps}
    for name in moved:
        folder.edited(name).unlink(missing_ok=True)
    for step in plan.steps:
        what = step.name.partition("/")[2]
        if step.component in moved and what in ("fetch", "tree"):
            state = folder.state(step.name)
            if what == "tree" and not Path(plan.component(step.component).tree).exists():
                # Removed to save space: it is made from the new source.
                state.unlink(missing_ok=True)
            else:
                touch(step, state, prints[step.name])


def _steps(plan: Plan, part: Component, home: YardHome) -> tuple[Step, ...]:
    source, where = Path(part.source), f"{part.name}: source"
    fresh = update_actions(
        part.recipe.source, destination=source, downloads=home.downloads, where=where
    )
    if not fresh.actions:
        return ()
    if not source.exists():  # removed to save space
        fresh = fetch_actions(
            part.recipe.source, destination=source, downloads=home.downloads, where=where
        )
    fetch = next(step for step in plan.steps if step.name == f"{part.name}/fetch")
    tree = next(step for step in plan.steps if step.name == f"{part.name}/tree")
    folder = BuildFolder(folder=Path(plan.folder))
    listed, new = folder.listed(part.name), f"{part.tree}.part"
    has_tree = Path(part.tree).exists()
    known: tuple[Action, ...] = ()
    if has_tree and source.exists() and not listed.exists():
        # Copied by an earlier Torchyard, which wrote no list of the source's files.
        known = (_sync("list", part.source, str(listed)),)
    steps = [
        Step(
            name=f"{part.name}/update",
            component=part.name,
            title="bring the source to the newest",
            actions=(*known, *fresh.actions),
            variables=fetch.variables,
            network=True,
        )
    ]
    if has_tree:
        first = build_steps(plan, part.name, from_configure=True)[0]
        copy, _ = copy_actions(part, new)
        steps.append(
            Step(
                name=f"{part.name}/update-tree",
                component=part.name,
                title="bring the working copy to the newest",
                actions=(
                    Command(argv=("rm", "-rf", new)),
                    *copy,
                    _sync("sync", new, part.tree, str(listed), str(folder.state(first))),
                ),
                needs=(steps[0].name,),
                variables=tree.variables,
                root=tree.root,
            )
        )
    return tuple(steps)


def _sync(*words: str) -> Command:
    return Command(argv=(sys.executable, "-I", "-S", _SYNC, *words), inside_root=False)
