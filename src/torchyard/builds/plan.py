"""A build as data: every command, file and variable before anything is executed. No I/O.

A plan is a list of steps; a step is a list of actions. Actions are few and each can be written as
shell, so that one plan can be run here or exported as a script or a container definition.
`BuildEvent` reports the progress of a plan; user interfaces listen to nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from torchyard.builds.recipe import Recipe
from torchyard.core.records import encode

Variables = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Start a program and wait for it; anything but exit code 0 ends the step."""

    argv: tuple[str, ...]
    folder: str = ""
    """Absolute; empty means the plan's folder."""
    variables: Variables = ()
    """On top of the step's."""
    inside_root: bool = True
    """False: on this machine even when the step has a root folder (making that root, say)."""


@dataclass(frozen=True, kw_only=True)
class WriteFile:
    """Put text into a file, whole or not at all; folders are made."""

    path: str
    text: str
    executable: bool = False
    fingerprinted: bool = True
    """False: the text is a program of ours, and a better one must not cost a rebuild."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """Fetch one file; it appears under its name only when complete and of the right checksum."""

    url: str
    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SdistDownload:
    """Fetch a source distribution through the index that pip is configured for."""

    name: str
    version: str
    path: str
    """Where the archive goes; the name is ours, whatever the index calls it."""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class AptSources:
    """Write a private apt configuration: this machine's mirrors and keys, another suite."""

    folder: str
    """Gets apt.conf, sources.list and the state folders; `apt-get -c FOLDER/apt.conf` uses it."""
    suite: str
    """Empty means the machine's own suites."""
    sources: bool = True
    """List source packages, too."""


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check what a component made, and write its findings into `report`."""

    component: str
    report: str


Action = Command | WriteFile | Download | SdistDownload | AptSources | Verify


@dataclass(frozen=True, kw_only=True)
class Step:
    """One restartable unit of a build."""

    name: str
    """`component/what`, such as `pytorch/build`."""
    component: str
    title: str
    """What it does, for people: `build the wheel`."""
    actions: tuple[Action, ...]
    needs: tuple[str, ...] = ()
    """Names of the steps that come first."""
    variables: Variables = ()
    """The whole environment of its commands, apart from the few the runner adds."""
    network: bool = False
    """Only steps that fetch may reach the network."""
    root: str = ""
    """Root folder its commands run in; empty means this machine."""
    compiles: bool = False
    """Its compiles are measured and admitted by memory."""
    creates: tuple[str, ...] = ()
    """Paths that exist when it is done; one that is gone makes the step run again."""
    kept: bool = True
    """False: what it creates may go once the steps that need it are done (a fetched source)."""
    counts: bool = True
    """False: what it makes changes no result (the meter), so another one costs no rebuild."""
    inputs: tuple[tuple[str, str], ...] = ()
    """What else it depends on, by name: checksums of patches, versions of compilers."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """A resolved part of a plan and where its things are."""

    name: str
    recipe: Recipe
    source: str
    """The fetched source, shared and never changed."""
    tree: str
    """The working copy that is patched and built."""
    prefix: str
    """Where libraries and programs are installed."""
    wheels: str
    python: str
    """Interpreter of the environment; empty where none is needed."""
    release: str = ""
    """Release number the coupling table knows it by, such as 2.6."""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The resolved, printable, diffable list of steps."""

    name: str
    """Of the build, and of the target that it makes."""
    folder: str
    """Everything the build owns is below it."""
    components: tuple[Component, ...]
    steps: tuple[Step, ...]
    jobs: int
    jobs_why: str
    notes: tuple[str, ...] = ()
    """What was chosen for the user and why."""
    missing: tuple[str, ...] = ()
    """Programs and rights this machine lacks: the plan can be shown, and not run."""
    runner_variables: dict[str, str] = field(default_factory=dict)
    """Variables the runner adds that are no part of any fingerprint: job counts, launchers."""

    def component(self, name: str) -> Component:
        """The component of that name."""
        return next(part for part in self.components if part.name == name)


def fingerprints(plan: Plan) -> Mapping[str, str]:
    """A fingerprint for each step, of all it does and of all it depends on.

    Titles do not count: better words must not cost a rebuild. Neither do steps that change no
    result, so that a newer Torchyard with a better meter goes on with what an older one built.
    """
    found: dict[str, str] = {}
    counting = {step.name for step in plan.steps if step.counts}
    for step in plan.steps:
        content = encode(step)
        del content["title"], content["counts"]
        for action in content["actions"]:
            if not action.pop("fingerprinted", True):
                del action["text"]
        content["needs"] = [found[name] for name in step.needs if name in counting]
        text = json.dumps(content, sort_keys=True)
        found[step.name] = hashlib.sha256(text.encode()).hexdigest()
    return found


BuildEventKind = Literal["start", "skip", "progress", "done", "failed", "note"]


@dataclass(frozen=True, kw_only=True)
class BuildEvent:
    """Something that happened to a step."""

    kind: BuildEventKind
    step: str = ""
    text: str = ""
    done: int = 0
    """Of ninja's own count; 0 where there is none."""
    total: int = 0
    elapsed_s: float = 0.0
    remaining_s: float | None = None
    """None where nothing is known."""


BuildListener = Callable[[BuildEvent], None]


def ignore_build_events(event: BuildEvent) -> None:
    """The listener of whoever does not listen."""
