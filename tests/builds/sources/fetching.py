"""Run fetch plans in tests as the runner does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from torchyard.builds.plan import Action, AptSources, Command, Download, SdistDownload, WriteFile
from torchyard.builds.recipe import SourceTable
from torchyard.builds.record import SourceIdentity
from torchyard.builds.running.steps import perform_fetch
from torchyard.builds.sources import fetch_actions, source_identity, update_actions
from torchyard.builds.sources.fetch_plan import FetchPlace, FetchPlan


class CommandFailed(Exception):
    """A command of a plan ended badly; the text is its output."""


def carry_out(plan: FetchPlan, folder: Path) -> list[str]:
    """Execute every action; return the messages."""
    said: list[str] = []
    for action in plan.actions:
        if isinstance(action, Command):
            assert action.inside_root is False, "fetching happens on this machine"
            ended = subprocess.run(
                action.argv,
                cwd=action.folder or folder,
                env={**os.environ, **dict(action.variables)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
            )
            said += ended.stdout.splitlines()
            if ended.returncode != 0:
                raise CommandFailed(ended.stdout)
        elif isinstance(action, WriteFile):
            Path(action.path).parent.mkdir(parents=True, exist_ok=True)
            Path(action.path).write_text(action.text)
        else:
            assert isinstance(action, Download | SdistDownload | AptSources)
            perform_fetch(action, progress=said.append)
    return said


class Place:
    """A home for sources and downloads, as the planner lays it out."""

    def __init__(self, folder: Path) -> None:
        self.downloads = folder / "downloads"
        self.destination = folder / "sources" / "the source"
        self.part = folder / "sources" / "the source.part"
        self.destination.parent.mkdir(parents=True)
        self.complete: Callable[[Path], tuple[Action, ...]] = lambda _: ()

    @property
    def _place(self) -> FetchPlace:
        return FetchPlace(
            destination=self.destination,
            downloads=self.downloads,
            where="source",
            complete=self.complete,
        )

    def plan(self, source: SourceTable) -> FetchPlan:
        return fetch_actions(source, self._place)

    def fetch(self, source: SourceTable) -> list[str]:
        return carry_out(self.plan(source), self.destination.parent)

    def plan_update(self, source: SourceTable) -> FetchPlan:
        return update_actions(source, self._place)

    def update(self, source: SourceTable) -> list[str]:
        return carry_out(self.plan_update(source), self.destination.parent)

    def identity(self, source: SourceTable) -> SourceIdentity:
        return source_identity(source, self.destination)
