"""`--fail-on`: conditions under which findings fail a run; the command sets the exit code.

Separate from `command.py`, which imports it only when a program is profiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchyard.core.units import parse_bytes, parse_fraction
from torchyard.errors import UsageError
from torchyard.values.model import Certainty, ValueFinding, ValueProfile
from torchyard.values.prices import steps_of

_CERTAINTIES = {certainty.value for certainty in Certainty}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One condition; a finding meets it if all parts hold."""

    text: str
    certainty: str = ""
    pattern: str = ""
    least_bytes_per_step: int = 0
    least_share: float = 0.0


def parse_limit(text: str, patterns: Sequence[str]) -> Limit:
    """Parse comma-separated parts: any, a certainty, a pattern, `bytes=10MiB`, `share=1%`."""
    certainty = pattern = ""
    size, share = 0, 0.0
    for part in (word.strip() for word in text.split(",")):
        key, equals, value = part.partition("=")
        try:
            if equals and key == "bytes":
                size = parse_bytes(value)
                continue
            if equals and key == "share":
                share = parse_fraction(value)
                continue
        except (UsageError, ValueError):
            raise _invalid_condition(part, text, patterns) from None
        if part in _CERTAINTIES:
            certainty = part
        elif part in patterns:
            pattern = part
        elif part != "any":
            raise _invalid_condition(part, text, patterns)
    return Limit(
        text=text,
        certainty=certainty,
        pattern=pattern,
        least_bytes_per_step=size,
        least_share=share,
    )


def _invalid_condition(part: str, text: str, patterns: Sequence[str]) -> UsageError:
    return UsageError(
        f"--fail-on: {part!r} in {text!r} is not a valid condition",
        hint="give any, proven, tested, likely, a pattern ("
        + ", ".join(patterns)
        + "), bytes=SIZE (per "
        "step) or share=PERCENT (of a step), joined by commas",
    )


def crossed(profile: ValueProfile, limits: Sequence[Limit]) -> list[tuple[Limit, ValueFinding]]:
    """Return each finding that meets a condition, with the first condition that it meets."""
    failed: list[tuple[Limit, ValueFinding]] = []
    for finding in profile.findings:
        for limit in limits:
            if _crosses(finding, limit, steps_of(finding, profile)):
                failed.append((limit, finding))
                break
    return failed


def _crosses(finding: ValueFinding, limit: Limit, steps: int) -> bool:
    if limit.certainty and finding.proof.certainty.value != limit.certainty:
        return False
    if limit.pattern and finding.pattern != limit.pattern:
        return False
    if finding.bytes_wasted / steps < limit.least_bytes_per_step:
        return False
    share = finding.worth.share_of_step
    return not limit.least_share or (share is not None and share >= limit.least_share)
