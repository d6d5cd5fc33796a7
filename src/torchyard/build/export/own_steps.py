"""Leaves out the steps that serve Torchyard only, and those with nothing to do by hand. No I/O."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path, PurePosixPath

from torchyard.build.export.plain_actions import plain_actions
from torchyard.build.layout import BuildFolder
from torchyard.core.build_plan import Plan, Step

__all__ = ["without_own_steps"]


def without_own_steps(plan: Plan) -> Plan:
    """The plan without the compile meter and without checks that only Torchyard can make."""
    meter = BuildFolder(folder=Path(plan.folder)).meter
    dropped = {
        step.name: step.needs
        for step in plan.steps
        if _only_makes(step, meter)
        or not any(plain_actions(plan, action) for action in step.actions)
    }
    return replace(
        plan,
        steps=tuple(
            replace(step, needs=_needs(step.needs, dropped))
            for step in plan.steps
            if step.name not in dropped
        ),
    )


def _only_makes(step: Step, folder: Path) -> bool:
    return bool(step.creates) and all(
        PurePosixPath(path).is_relative_to(folder) for path in step.creates
    )


def _needs(needs: tuple[str, ...], dropped: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Whoever needed a dropped step needs what that one needed."""
    found: list[str] = []
    for name in needs:
        found += _needs(dropped[name], dropped) if name in dropped else (name,)
    return tuple(dict.fromkeys(found))
