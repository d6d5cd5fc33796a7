"""A build as data: all commands, files and variables before anything is executed. No I/O.

A plan is a list of steps; a step is a list of actions. Each kind of action can be expressed in
shell, so that a plan can be run here or exported as a script or a container definition.
`BuildEvent` reports the progress of a running plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, Literal

from torchyard.builds.recipe import Recipe
from torchyard.core.records import encode

Variables = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Command:
    """Run a program; a nonzero exit code fails the step."""

    argv: tuple[str, ...]
    folder: str = ""
    """Absolute; empty means the plan's folder."""
    variables: Variables = ()
    """In addition to those of the step."""
    inside_root: bool = True
    """False: run on this machine even if the step has a root folder (e.g. to create it)."""


@dataclass(frozen=True, kw_only=True)
class WriteFile:
    """Write a text file atomically; parent folders are created."""

    path: str
    text: str
    executable: bool = False
    fingerprinted: bool = True
    """False: the text is a program of Torchyard, and a new version must not cause a rebuild."""


@dataclass(frozen=True, kw_only=True)
class Download:
    """Download a file; it gets its name only when it is complete and its checksum matches."""

    url: str
    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class SdistDownload:
    """Download a source distribution from the package index that pip is configured for."""

    name: str
    version: str
    path: str
    """Path of the archive, whatever its name on the index."""
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class AptSources:
    """Write a private apt configuration with this machine's mirrors and keys for a suite."""

    folder: str
    """Folder for apt.conf, sources.list and apt's state, for `apt-get -c FOLDER/apt.conf`."""
    suite: str
    """Empty means the suites of this machine."""
    sources: bool = True
    """Include source packages."""


@dataclass(frozen=True, kw_only=True)
class Verify:
    """Check the result of a component and write the findings to `report`."""

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
    """Description shown to the user: `build the wheel`."""
    actions: tuple[Action, ...]
    needs: tuple[str, ...] = ()
    """Names of the steps it depends on."""
    variables: Variables = ()
    """The environment of its commands, except for the variables that the runner adds."""
    network: bool = False
    """Whether its commands may use the network."""
    root: str = ""
    """Root folder of its commands; empty means the root of this machine."""
    compiles: bool = False
    """Its compiles are measured and scheduled by memory."""
    creates: tuple[str, ...] = ()
    """Paths that exist when it is done; if one is missing, the step runs again."""
    kept: bool = True
    """False: its output may be removed once the steps that need it are done (a fetched source)."""
    counts: bool = True
    """False: its output does not affect the result (the meter), so a change causes no rebuild."""
    inputs: tuple[tuple[str, str], ...] = ()
    """Further inputs, by name: checksums of patches, versions of compilers."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """A resolved component of a plan and its paths."""

    name: str
    recipe: Recipe
    source: str
    """The fetched source, shared between builds and not modified."""
    tree: str
    """The working copy that is patched and built."""
    prefix: str
    """Installation prefix of libraries and programs."""
    wheels: str
    python: str
    """Interpreter of the environment; empty if none is needed."""
    release: str = ""
    """Release number in the compatibility table, such as 2.6."""
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The resolved list of steps of a build."""

    name: str
    """Name of the build and of its target."""
    folder: str
    """The folder of the build."""
    components: tuple[Component, ...]
    steps: tuple[Step, ...]
    jobs: int
    jobs_why: str
    notes: tuple[str, ...] = ()
    """Decisions made for the user, with reasons."""
    missing: tuple[str, ...] = ()
    """Missing programs and permissions: the plan can be shown but not run."""
    runner_variables: dict[str, str] = field(default_factory=dict)
    """Variables the runner adds that are not fingerprinted: job counts, compiler launchers."""

    def component(self, name: str) -> Component:
        """Return the component with this name."""
        return next(part for part in self.components if part.name == name)


FINGERPRINT_VERSION: Final = "2"
COMPILER_INPUT: Final = "compiler "
"""Prefix of the names of inputs that are compilers."""
_VERSION_1_KEYS: Final = frozenset(
    {
        *("name", "component", "actions", "needs", "variables", "network", "root", "compiles"),
        *("creates", "kept", "inputs"),
    }
)


def fingerprints(plan: Plan) -> Mapping[str, str]:
    """Return the fingerprint of each step, over its actions, inputs and dependencies.

    Titles are not included, nor are steps that do not affect the result, so that a newer Torchyard
    with other titles or another meter reuses finished steps. Fields with their default value are
    omitted: a field that is added later does not change the fingerprints of existing builds.
    """
    return _digests(plan, _content, f"{FINGERPRINT_VERSION}:")


def accepted_fingerprints(plan: Plan) -> Mapping[str, tuple[str, ...]]:
    """Return the fingerprints of a step's result that is up to date, the current version first."""
    current, first = fingerprints(plan), _digests(plan, _version_1_content, "")
    return {name: (digest, first[name]) for name, digest in current.items()}


def portable_fingerprints(plan: Plan, places: Mapping[str, str]) -> Mapping[str, str]:
    """Return fingerprints that are equal on machines that differ only in the given folders.

    `places` maps folders (of builds, of sources) to the names that replace them. Where a source comes
    from does not count: the caller adds its identity.
    """

    def content(step: Step) -> dict[str, Any]:
        variables = tuple(pair for pair in step.variables if pair[0] != "HOME")
        return _content(replace(step, variables=variables))

    steps = tuple(
        replace(step, counts=step.counts and not step.name.endswith("/fetch"))
        for step in plan.steps
    )
    return _digests(replace(plan, steps=steps), content, "portable:", places)


def _digests(
    plan: Plan,
    content_of: Callable[[Step], dict[str, Any]],
    prefix: str,
    places: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    digests: dict[str, str] = {}
    counting = {step.name for step in plan.steps if step.counts}
    for step in plan.steps:
        content = content_of(step)
        for action in content["actions"]:
            if not action.pop("fingerprinted", True):
                del action["text"]
        content["needs"] = [digests[name] for name in step.needs if name in counting]
        text = json.dumps(content, sort_keys=True)
        for folder, name in places.items():
            text = text.replace(folder, name)
        digests[step.name] = prefix + hashlib.sha256(text.encode()).hexdigest()
    return digests


def _content(step: Step) -> dict[str, Any]:
    content = _without_defaults(step)
    content.pop("title", None)
    content.pop("counts", None)
    actions = [
        {"kind": type(action).__name__, **_without_defaults(action)} for action in step.actions
    ]
    return {**content, "actions": actions}


def _without_defaults(item: Step | Action) -> dict[str, Any]:
    return {
        member.name: encode(value)
        for member in fields(item)
        if (value := getattr(item, member.name)) != member.default
    }


def _version_1_content(step: Step) -> dict[str, Any]:
    """Return what was fingerprinted before compilers were inputs, with all defaults."""
    own_inputs = tuple(item for item in step.inputs if not item[0].startswith(COMPILER_INPUT))
    content = encode(replace(step, inputs=own_inputs))
    return {key: value for key, value in content.items() if key in _VERSION_1_KEYS}


BuildEventKind = Literal["start", "skip", "progress", "done", "failed", "note"]


@dataclass(frozen=True, kw_only=True)
class BuildEvent:
    """A progress event of a build."""

    kind: BuildEventKind
    step: str = ""
    text: str = ""
    done: int = 0
    """Finished actions as counted by ninja or make; 0 if unknown."""
    total: int = 0
    elapsed_s: float = 0.0
    remaining_s: float | None = None
    """Estimated remaining time; None if unknown."""


BuildListener = Callable[[BuildEvent], None]


def ignore_build_events(event: BuildEvent) -> None:
    """Ignore an event (no-op listener)."""
