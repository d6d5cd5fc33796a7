"""What a run measured, as the name of a version: said by the user, by the CI job, or by torch itself.

Looks at variables and at the records of a run; asks no version control.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torchyard.core.study import Study
from torchyard.core.variant import Variant

__all__ = [
    "CI_VARIABLES",
    "revision_from_ci",
    "revision_of_run",
    "revision_of_variant",
    "target_facts",
]

CI_VARIABLES: Final = (
    "GITHUB_SHA",
    "CI_COMMIT_SHA",
    "BUILDKITE_COMMIT",
    "CIRCLE_SHA1",
    "GIT_COMMIT",
    "BUILD_SOURCEVERSION",
    "DRONE_COMMIT_SHA",
    "TRAVIS_COMMIT",
    "BITBUCKET_COMMIT",
)
"""Where GitHub, GitLab, Buildkite, CircleCI, Jenkins, Azure, Drone, Travis and Bitbucket say which
commit a job is about, in the order they are asked."""


def revision_from_ci(variables: Mapping[str, str]) -> str:
    """The commit that a CI job is about; empty outside of one."""
    return next((variables[name] for name in CI_VARIABLES if variables.get(name)), "")


def target_facts(info: Mapping[str, Any], variant: Variant) -> Mapping[str, Any]:
    """What the variant's target said of itself in its handshake; empty when it never did."""
    targets = info.get("targets")
    if not isinstance(targets, Mapping):
        return {}
    # Recorded by target and environment; folders of early versions have the target alone.
    for key in ("+".join(variant.process_key), variant.target.name):
        facts = targets.get(key)
        if isinstance(facts, Mapping):
            return facts
    return {}


def revision_of_run(info: Mapping[str, Any], study: Study) -> str:
    """What was said for the run, else the commits of the candidates' torch."""
    found = dict.fromkeys(revision_of_variant(info, variant) for variant in study.candidates)
    return ", ".join(filter(None, found)) or str(info.get("revision") or "")


def revision_of_variant(info: Mapping[str, Any], variant: Variant) -> str:
    """What was said for the run, else the commit of the variant's torch; empty when unknown."""
    return str(info.get("revision") or target_facts(info, variant).get("torch_git") or "")
