"""Leaves out the steps that serve Torchyard only, and those with nothing to do by hand. No I/O."""

from __future__ import annotations

from dataclasses import replace

from torchyard.build.export.plain_actions import plain_actions
from torchyard.core.build_plan import Plan

__all__ = ["without_own_steps"]


def without_own_steps(plan: Plan) -> Plan:
    """The plan without what changes no result (the meter) and checks that only Torchyard makes."""
    dropped = {
        step.name: step.needs
        for step in plan.steps
        if not step.counts or not any(plain_actions(plan, action) for action in step.actions)
    }
    return replace(
        plan,
        steps=tuple(
            replace(step, needs=_needs(step.needs, dropped))
            for step in plan.steps
            if step.name not in dropped
        ),
    )


def _needs(needs: tuple[str, ...], dropped: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Whoever needed a dropped step needs what that one needed."""
    found: list[str] = []
    for name in needs:
        found += _needs(dropped[name], dropped) if name in dropped else (name,)
    return tuple(dict.fromkeys(found))
