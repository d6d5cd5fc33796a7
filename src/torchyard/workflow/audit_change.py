"""Two audits side by side: which spreads changed, and how sure that is. Pure.

What is compared is what differs between processes and pairs; the time of the kernel itself is
shown, but a faster kernel is not a quieter machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from torchyard.core.audit import Audit, AuditChange, AuditLaunch
from torchyard.stats.spread import change_between, change_within

__all__ = ["WITHIN", "changes_between", "differences"]

WITHIN: Final = "within launches"
BETWEEN: Final = "between launches"
UNPAIRED: Final = "without pairing"


def changes_between(before: Sequence[Audit], after: Sequence[Audit]) -> tuple[AuditChange, ...]:
    """Later over earlier, for each kind of spread. Several audits of one state are taken together.

    A level that moved between two audits of one state is noise of that state, so levels are not
    centred for each audit.
    """
    one, other = _launches(before), _launches(after)
    return (
        change_within(WITHIN, _spreads(one), _spreads(other)),
        change_between(BETWEEN, _effects(one), _effects(other)),
        change_between(UNPAIRED, _levels(one), _levels(other)),
    )


def differences(before: Audit, after: Audit) -> tuple[str, ...]:
    """What else is not the same, so that the change may have another cause."""
    found: list[str] = []
    for name, one, other in (
        ("kernel", before.kernel, after.kernel),
        ("threads", str(before.threads), str(after.threads)),
        ("cores", _cores(before), _cores(after)),
    ):
        if one != other:
            found.append(f"{name}: {one} before, {other} after")
    for what, pairs in (("target", before.target), ("machine", before.machine)):
        then = dict(pairs)
        now = dict(after.target if what == "target" else after.machine)
        found.extend(
            f"{name}: {then[name]} before, {now[name]} after"
            for name in then
            if name in now and name != "load" and then[name] != now[name]
        )
    return tuple(found)


def _launches(audits: Sequence[Audit]) -> list[AuditLaunch]:
    return [launch for audit in audits for launch in audit.launches]


def _spreads(launches: Sequence[AuditLaunch]) -> list[float]:
    return [launch.spread for launch in launches if launch.spread is not None]


def _effects(launches: Sequence[AuditLaunch]) -> list[float]:
    return [launch.effect for launch in launches if launch.effect is not None]


def _levels(launches: Sequence[AuditLaunch]) -> list[float]:
    return [math.log(launch.levels_ns[0]) for launch in launches]


def _cores(audit: Audit) -> str:
    return ",".join(map(str, audit.cores)) or "not pinned"
