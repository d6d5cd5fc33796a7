"""Builds of a recipe: one for each revision or version, with a compiler cache that they share.

All builds of a round must exist at the same time, so each has its own working copy and prefix. Finished steps
are not repeated: an interrupted search resumes inside a build.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from torchyard.bisect.model import Ready, Request, RevisionFailed, SearchFolder
from torchyard.bisect.places import Invocation, Places, RunSetup
from torchyard.builds.commands.run import build_request
from torchyard.builds.plan import BuildListener
from torchyard.builds.recipe import Recipe
from torchyard.builds.recipe_file import BuildRequest, resolve
from torchyard.builds.record import read_earlier
from torchyard.builds.running.build import BuildChoices, plan_build, run_build
from torchyard.errors import NotAllowed, TorchyardError, UsageError

_NAME_LENGTH: Final = 12

ShowProgress = Callable[[], AbstractContextManager[BuildListener]]
"""Show the progress of one build."""


def build_of(request: Request, name: str) -> tuple[BuildRequest, str]:
    """Return the build of a revision or version, and its name.

    A revision replaces the source of the recipe. A version is that of the recipe if the recipe has a source,
    else of a source distribution.
    """
    base = build_request(request.recipe, "", "", request.build_settings, "")
    settings: dict[str, dict[str, Any]] = {key: dict(value) for key, value in base.settings.items()}
    own = settings.setdefault("", {})
    package = request.releases.partition(":")[0]
    if request.repo:
        own |= {"source.use": "git", "source.git.url": request.repo, "source.git.ref": name}
    elif _is_sdist(request):
        own |= {
            "source.use": "sdist",
            "source.sdist.name": package,
            "source.sdist.version": name,
            "version": name,
        }
    else:
        own["version"] = name
    text = json.dumps([request.recipe, request.build_settings, request.repo, package])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    parts = (Path(request.recipe).stem, digest, name[:_NAME_LENGTH])
    build = "-".join(re.sub(r"[^A-Za-z0-9.+-]", "-", part) for part in parts)
    made = BuildRequest(recipe=base.recipe, variant=base.variant, settings=settings)
    return made, f"bisect-{build}"


def _is_sdist(request: Request) -> bool:
    """Whether versions are those of a source distribution: the recipe has no other source."""
    source = _recipe_of(request).source
    return not any((source.git, source.folder, source.tarball, source.debian))


def _recipe_of(request: Request) -> Recipe:
    return resolve(build_request(request.recipe, "", "", request.build_settings, "")).recipe


def check_build(request: Request, name: str) -> None:
    """Raise UsageError if the recipe or its settings are not valid."""
    recipe = _recipe_of(request)
    if recipe.components:
        raise UsageError(
            f"--recipe: {recipe.name} is a stack of several projects",
            hint="use the recipe of one component",
        )
    build, build_name = build_of(request, name)
    plan_build(build, BuildChoices(name=build_name))


@dataclass(frozen=True, kw_only=True)
class RecipePlaces(Places):
    """A build for each revision or version; programs start in the current folder."""

    request: Request
    folder: SearchFolder
    progress: ShowProgress

    def prepare(self, name: str, setup: RunSetup) -> Invocation:
        """Build a revision, unless it is built, and run its setup."""
        invocation = self._build(name)
        if name not in self.folder.state.ready:
            setup(invocation)
            self.folder.append(Ready(commit=name))
        return invocation

    def _build(self, name: str) -> Invocation:
        build, build_name = build_of(self.request, name)
        choices = BuildChoices(name=build_name)
        try:
            with self.progress() as listener:
                outcome = run_build(plan_build(build, choices), choices, listener)
            if outcome.errors:
                raise outcome.errors[0]
        except (UsageError, NotAllowed):
            raise
        except TorchyardError as error:
            log = f"\nlog: {error.log}" if error.log else ""
            raise RevisionFailed(name, f"build: {error.why or error.what}{log}") from error
        record = read_earlier(outcome.folder.folder)
        return Invocation(
            folder=Path.cwd(),
            variables={} if record is None else dict(record.variables),
            replacements={
                "python": outcome.python,
                "prefix": str(outcome.folder.prefix),
                "build": str(outcome.folder.folder),
            },
        )
