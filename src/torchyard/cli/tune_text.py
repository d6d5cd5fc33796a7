"""Tunes and restores as text and as JSON, for the commands that make them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchyard.core.machine import KnobState
from torchyard.core.machine_change import Restored, SettingChange, SettingReturn, Tuned

__all__ = ["restored_json", "restored_text", "tuned_json", "tuned_summary", "tuned_text"]

_STATE = 14
"""Width of that column."""


def tuned_text(tuned: Tuned, *, dry_run: bool = False) -> str:
    """One line per knob and value, with the reason below where there is one."""
    width = 2 + max((len(state.knob) for state in tuned.knobs), default=4)
    lines = [f"{'knob':<{width}}{'state':<{_STATE}}found -> wanted, and where"]
    for state in tuned.knobs:
        lines += _knob_lines(state, list(_changes(tuned, state)), width=width, dry_run=dry_run)
    return "\n".join(lines)


def tuned_summary(tuned: Tuned, *, dry_run: bool = False) -> str:
    """Counts, in one line."""
    settings = [change for state in tuned.knobs for change in _changes(tuned, state)]
    counts = {"written": 0, "already so": 0, "refused": 0}
    for change in settings:
        if change.state in counts:
            counts[change.state] += 1
    unavailable = sum(bool(state.unavailable) for state in tuned.knobs)
    said = "would be written" if dry_run else "written"
    return (
        f"{counts['written']} {said}, {counts['already so']} already so, "
        f"{counts['refused']} refused, {unavailable} knobs unavailable"
    )


def tuned_json(tuned: Tuned, *, mode: str) -> dict[str, Any]:
    """Everything a tune did, as plain values."""
    return {
        "mode": mode,
        "profiles": list(tuned.wish.profiles),
        "cores": list(tuned.wish.cores),
        "knobs": [
            {
                "knob": state.knob,
                "unavailable": state.unavailable,
                "notes": list(state.notes),
                "settings": [
                    {
                        "place": change.setting.place,
                        "found": change.setting.found,
                        "wanted": change.setting.wanted,
                        "state": change.state,
                        "reason": change.reason,
                    }
                    for change in _changes(tuned, state)
                ],
            }
            for state in tuned.knobs
        ],
    }


def restored_text(restored: Restored) -> str:
    """What was put back, what was not and what others had changed."""
    if restored.rebooted:
        lines = ["the machine was started anew since the tune, which undid it: nothing to write"]
    else:
        back = [item for item in restored.settings if item.state == "restored"]
        same = sum(item.state == "was so" for item in restored.settings)
        lines = [f"{len(back)} put back, {same} were so, {len(restored.missing)} not put back"]
        lines += [f"  {_where(item)}: {item.setting.found}" for item in back]
    for item in restored.settings:
        if item.meanwhile and restored.rebooted:
            lines.append(f"  {_where(item)} is {item.meanwhile!r}, was {item.setting.found!r}")
        elif item.meanwhile:
            lines.append(f"  somebody else had changed {_where(item)} to {item.meanwhile!r}")
    lines += [
        f"  NOT put back: {_where(item)} to {item.setting.found!r}, because {item.reason}"
        for item in restored.missing
    ]
    return "\n".join(lines)


def restored_json(restored: Restored) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "complete": restored.complete,
        "rebooted": restored.rebooted,
        "settings": [
            {
                "knob": item.setting.knob,
                "place": item.setting.place,
                "found": item.setting.found,
                "wanted": item.setting.wanted,
                "state": item.state,
                "reason": item.reason,
                "meanwhile": item.meanwhile,
            }
            for item in restored.settings
        ],
    }


def _where(item: SettingReturn) -> str:
    return f"{item.setting.knob} ({item.setting.where})"


def _changes(tuned: Tuned, state: KnobState) -> Iterator[SettingChange]:
    """What became of each setting; in a dry run those that would be written have no change yet."""
    known = {change.setting: change for change in tuned.of_knob(state.knob)}
    for setting in state.settings:
        yield known.get(setting) or SettingChange(setting=setting, state="written")


def _knob_lines(
    state: KnobState, changes: list[SettingChange], *, width: int, dry_run: bool
) -> Iterator[str]:
    start = f"{state.knob:<{width}}"
    below = " " * (width + _STATE)
    if state.unavailable:
        yield f"{start}{'unavailable':<{_STATE}}because {state.unavailable}"
    elif not changes:
        yield f"{start}{'left alone':<{_STATE}}{'; '.join(state.notes)}".rstrip()
        return
    for group in _alike(changes):
        first = group[0]
        said = "to be written" if dry_run and first.state == "written" else first.state
        yield f"{start}{said:<{_STATE}}{_values(first)}  {_places(group)}".rstrip()
        if first.reason and first.state == "refused":
            yield f"{below}because {first.reason}"
        start = " " * width
    for note in state.notes:
        yield f"{below}{note}"


def _values(change: SettingChange) -> str:
    found, wanted = change.setting.found or "nothing", change.setting.wanted
    return (
        found
        if wanted is None or change.state == "already so"
        else f"{found} -> {wanted or 'nothing'}"
    )


def _places(group: list[SettingChange]) -> str:
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    return f"{group[0].setting.where}{more}"


def _alike(changes: Iterable[SettingChange]) -> Iterator[list[SettingChange]]:
    """Settings of the same values and the same end, as one line."""
    groups: dict[tuple[str, str, str | None, str], list[SettingChange]] = {}
    for change in changes:
        name = change.setting.place.rpartition("/")[2]
        key = (change.state, change.setting.found, change.setting.wanted, name)
        groups.setdefault(key, []).append(change)
    return iter(groups.values())
