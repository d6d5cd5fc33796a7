"""Format machine views, applied settings and restores as text and as JSON. Prints nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final

from torchyard.core.records import encode
from torchyard.machine.model import (
    Advice,
    Fact,
    KnobState,
    MachineView,
    Restored,
    SettingChange,
    SettingReturn,
    Tuned,
)

DEFAULT_WIDTH: Final = 100
_NAME: Final = 32
_LEAST_WIDTH: Final = 60


def machine_text(view: MachineView, *, notes: tuple[str, ...] = (), width: int = 0) -> str:
    """Facts by section, then advice, then the verdict: what matters most is read last."""
    width = max(width or DEFAULT_WIDTH, _LEAST_WIDTH)
    lines: list[str] = []
    for section in dict.fromkeys(fact.section for fact in view.facts):
        facts = [fact for fact in view.facts if fact.section == section]
        lines += ["", section, *_section_lines(facts, width)]
    lines += ["", "advice, largest effect first"] if view.advice else []
    for number, advice in enumerate(view.advice, start=1):
        lines += _advice_lines(number, advice, width)
    lines.append("")
    for note in notes:
        lines += textwrap.wrap(note, width)
    lines += textwrap.wrap(verdict(view), width)
    return "\n".join(lines[1:])


def machine_json(view: MachineView, *, tune: dict[str, Any] | None) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "fit": view.fit,
        "facts": [encode(fact) for fact in view.facts],
        "advice": [encode(advice) for advice in view.advice],
        "tune": tune,
    }


def verdict(view: MachineView) -> str:
    """One sentence."""
    wrong = [advice.name for advice in view.advice if advice.unfit]
    if wrong:
        return f"not fit for benchmarks now ({', '.join(wrong)}): numbers must not be believed"
    if not view.advice:
        return "fit for benchmarks, and nothing to advise"
    large = sum(advice.effect == "large" for advice in view.advice)
    return (
        f"fit for benchmarks, with advice: {large} of {len(view.advice)} with a large effect; "
        "`torchyard machine audit` measures what it is worth"
    )


def _section_lines(facts: list[Fact], width: int) -> Iterator[str]:
    """What is known first, then what is not, by reason."""
    reasons: dict[str, list[str]] = {}
    for fact in facts:
        if fact.value is None:
            reasons.setdefault(fact.unavailable, []).append(fact.name)
        else:
            yield from _row(fact.name, fact.value, width)
    for because, names in reasons.items():
        text = f"{', '.join(names)}, because {because}"
        yield from _row("unavailable", text, width)


def _row(name: str, value: str, width: int) -> Iterator[str]:
    column = max(_NAME, len(name) + 1)
    wrapped = textwrap.wrap(value, width - 2 - column, break_on_hyphens=False) or [""]
    yield f"  {name:<{column}}{wrapped[0]}"
    for line in wrapped[1:]:
        yield f"  {'':<{column}}{line}"


def _advice_lines(number: int, advice: Advice, width: int) -> Iterator[str]:
    head = f"{number:>3}. {'unfit' if advice.unfit else advice.effect:<7} "
    yield from _wrapped(head, advice.what, width)
    inner = " " * 5
    yield from _wrapped(inner + "why     ", advice.why, width)
    if advice.mend:
        needs = [("root", advice.needs_root), ("a restart of the machine", advice.needs_reboot)]
        needed = " and ".join(word for word, wanted in needs if wanted)
        yield from _wrapped(
            inner + "mend    ", advice.mend + (f"  (needs {needed})" if needed else ""), width
        )


def _wrapped(head: str, text: str, width: int) -> Iterator[str]:
    # Commands are copied from here: a break behind a hyphen would cut an option in two.
    wrapped = textwrap.wrap(
        text, width - len(head), break_on_hyphens=False, break_long_words=False
    ) or [""]
    yield head + wrapped[0]
    for line in wrapped[1:]:
        yield " " * len(head) + line


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
