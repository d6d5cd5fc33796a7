"""Format machine views, applied settings and restores as text and as JSON. Prints nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from textwrap import wrap
from typing import Any, Final

from torchyard.core.records import encode
from torchyard.machine.model import (
    Advice,
    AppliedSettings,
    Fact,
    KnobState,
    MachineView,
    Restored,
    SettingChange,
    SettingReturn,
)
from torchyard.presentation.safe_text import wrapped

DEFAULT_WIDTH: Final = 100
_NAME: Final = 32
_LEAST_WIDTH: Final = 60


def machine_text(view: MachineView, *, notes: tuple[str, ...] = (), width: int = 0) -> str:
    """Format facts by section, then advice, then the verdict (last, next to the prompt)."""
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
        lines += wrapped(note, width)
    lines += wrapped(verdict(view), width)
    return "\n".join(lines[1:])


def machine_json(view: MachineView, *, quieting: dict[str, Any] | None) -> dict[str, Any]:
    """Return a view as JSON values."""
    return {
        "fit": view.fit,
        "facts": [encode(fact) for fact in view.facts],
        "advice": [encode(advice) for advice in view.advice],
        "tune": quieting,
    }


def verdict(view: MachineView) -> str:
    """Say in one sentence whether the machine is fit for benchmarks."""
    causes = [advice.name for advice in view.advice if advice.unfit]
    if causes:
        return f"not fit for benchmarks now ({', '.join(causes)}): measurements not trustworthy"
    if not view.advice:
        return "fit for benchmarks, no advice"
    large = sum(advice.effect == "large" for advice in view.advice)
    return (
        f"fit for benchmarks, {len(view.advice)} suggestions, {large} with a large effect; "
        "`torchyard machine audit` measures the noise"
    )


def _section_lines(facts: list[Fact], width: int) -> Iterator[str]:
    """Format the values first, then the names of unavailable facts grouped by reason."""
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
    first, rest = f"  {name:<{column}}", " " * (2 + column)
    yield from wrap(
        value, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ) or [first]


def _advice_lines(number: int, advice: Advice, width: int) -> Iterator[str]:
    head = f"{number:>3}. {'unfit' if advice.unfit else advice.effect:<7} "
    yield from _wrapped(head, advice.what, width)
    inner = " " * 5
    yield from _wrapped(inner + "why     ", advice.why, width)
    if advice.fix:
        needs = [("root", advice.needs_root), ("a reboot", advice.needs_reboot)]
        needed = " and ".join(word for word, is_needed in needs if is_needed)
        yield from _wrapped(
            inner + "fix     ", advice.fix + (f"  (needs {needed})" if needed else ""), width
        )


def _wrapped(head: str, text: str, width: int) -> list[str]:
    return wrapped(text, width, first=head, rest=" " * len(head))


_STATE: Final = 14
"""Width of the state column."""
_STATE_TEXTS: Final = {"already so": "unchanged", "left alone": "skipped"}
"""How states are shown that the JSON output and the journal call otherwise."""


def quieting_table(applied: AppliedSettings, *, dry_run: bool = False) -> str:
    """Format one line per knob and value, with the reason below where there is one."""
    width = 2 + max((len(state.knob) for state in applied.knobs), default=4)
    lines = [f"{'knob':<{width}}{'state':<{_STATE}}original -> requested value, location"]
    for state in applied.knobs:
        lines += _knob_lines(state, list(_changes(applied, state)), width=width, dry_run=dry_run)
    return "\n".join(lines)


def quieting_summary(applied: AppliedSettings, *, dry_run: bool = False) -> str:
    """Count the settings by state, in one line."""
    counts = Counter(change.state for state in applied.knobs for change in _changes(applied, state))
    unavailable = sum(bool(state.unavailable) for state in applied.knobs)
    verb = "would be written" if dry_run else "written"
    return (
        f"{counts['written']} {verb}, {counts['already so']} unchanged, "
        f"{counts['refused']} refused, {unavailable} knobs unavailable"
    )


def quieting_json(applied: AppliedSettings, *, mode: str) -> dict[str, Any]:
    """Return everything that quieting did, as JSON values."""
    return {
        "mode": mode,
        "profiles": list(applied.request.profiles),
        "cores": list(applied.request.cores),
        "knobs": [
            {
                **encode(state),
                "settings": [_flat(change, without="knob") for change in _changes(applied, state)],
            }
            for state in applied.knobs
        ],
    }


def restored_text(restored: Restored) -> str:
    """Format what was restored, what was not, and what other programs had changed."""
    if restored.rebooted:
        lines = ["nothing to restore: a reboot has reset the settings"]
    else:
        written = [item for item in restored.settings if item.state == "restored"]
        same = sum(item.state == "was so" for item in restored.settings)
        lines = [f"{len(written)} restored, {same} unchanged, {len(restored.missing)} not restored"]
        lines += [f"  {_where(item)}: {item.setting.found}" for item in written]
    for item in restored.settings:
        if item.meanwhile and restored.rebooted:
            lines.append(f"  {_where(item)} is {item.meanwhile!r}, was {item.setting.found!r}")
        elif item.meanwhile:
            lines.append(f"  another program had set {_where(item)} to {item.meanwhile!r}")
    lines += [
        f"  NOT restored: {_where(item)} to {item.setting.found!r}, because {item.reason}"
        for item in restored.missing
    ]
    return "\n".join(lines)


def restored_json(restored: Restored) -> dict[str, Any]:
    """Return a restore as JSON values."""
    return {
        "complete": restored.complete,
        "rebooted": restored.rebooted,
        "settings": [_flat(item) for item in restored.settings],
    }


def _flat(item: SettingChange | SettingReturn, *, without: str = "") -> dict[str, Any]:
    """Return the fields of the setting and those of its outcome."""
    record = {**encode(item.setting), **encode(item)}
    return {name: value for name, value in record.items() if name not in ("setting", without)}


def _where(item: SettingReturn) -> str:
    return f"{item.setting.knob} ({item.setting.where})"


def _changes(applied: AppliedSettings, state: KnobState) -> Iterator[SettingChange]:
    """Yield the change of each setting; a dry run has none yet for settings it would write."""
    changes = {change.setting: change for change in applied.of_knob(state.knob)}
    for setting in state.settings:
        yield changes.get(setting) or SettingChange(setting=setting, state="written")


def _knob_lines(
    state: KnobState, changes: list[SettingChange], *, width: int, dry_run: bool
) -> Iterator[str]:
    start = f"{state.knob:<{width}}"
    below = " " * (width + _STATE)
    if state.unavailable:
        yield f"{start}{'unavailable':<{_STATE}}because {state.unavailable}"
    elif not changes:
        yield f"{start}{'skipped':<{_STATE}}{'; '.join(state.notes)}".rstrip()
        return
    for group in _alike(changes):
        first = group[0]
        shown = _STATE_TEXTS.get(first.state, first.state)
        if dry_run and first.state == "written":
            shown = "to be written"
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        yield f"{start}{shown:<{_STATE}}{_values(first)}  {first.setting.where}{more}".rstrip()
        if first.reason and first.state == "refused":
            yield f"{below}because {first.reason}"
        start = " " * width
    for note in state.notes:
        yield f"{below}{note}"


def _values(change: SettingChange) -> str:
    original, requested = change.setting.found or "nothing", change.setting.wanted
    if requested is None or change.state == "already so":
        return original
    return f"{original} -> {requested or 'nothing'}"


def _alike(changes: Iterable[SettingChange]) -> Iterator[list[SettingChange]]:
    """Group settings with the same values, state and file name into one line."""
    groups: dict[tuple[str, str, str | None, str], list[SettingChange]] = {}
    for change in changes:
        name = change.setting.place.rpartition("/")[2]
        key = (change.state, change.setting.found, change.setting.wanted, name)
        groups.setdefault(key, []).append(change)
    return iter(groups.values())
