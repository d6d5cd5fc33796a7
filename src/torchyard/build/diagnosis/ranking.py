"""From sightings to causes: which apply here, which comes first, with the values filled in.

Values come from a log, so anybody's program may have written them: into sentences they go as they
are, into commands only quoted for a shell, and never where they could be read as an option.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchyard.build.diagnosis.matching import Sighting
from torchyard.build.diagnosis.signature import Case, Signature
from torchyard.build.diagnosis.verdict import Cause, Evidence

__all__ = ["Circumstances", "rank"]

_ORDER = {"fatal": 0, "general": 1, "loss": 2, "notice": 3}
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")
_SUCCESS = 0


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What is known besides the log."""

    exit_code: int | None = None
    wanted_names: tuple[str, ...] = ()
    release: str = ""
    machine: str = ""


def rank(
    signatures: Sequence[Signature],
    sightings: Mapping[int, Sighting],
    circumstances: Circumstances,
) -> tuple[Cause, ...]:
    """The causes, the likeliest root first, consequences last."""
    seen = dict(sightings)
    for index, signature in enumerate(signatures):
        _add_unwritten(seen, index, signature, circumstances)
    applying = [
        sighting for sighting in seen.values() if _applies(sighting.signature, circumstances)
    ]
    if circumstances.exit_code == _SUCCESS:
        applying = [s for s in applying if s.signature.level in {"loss", "notice"}]
    applying = _without_overshadowed(applying)
    explained = {
        other: sighting.signature.id
        for sighting in applying
        for other in sighting.signature.explains
    }
    applying.sort(
        key=lambda s: (
            s.signature.id in explained,
            # What no line of the log shows may be true and yet not why it failed.
            max(_ORDER[s.signature.level], _ORDER["general"] if not s.lines else 0),
            not s.in_failed_block,
            min((e.line for e in s.evidence if e.line), default=1 << 62),
        )
    )
    return tuple(
        _cause(sighting, explained.get(sighting.signature.id, ""), circumstances)
        for sighting in applying
    )


def _add_unwritten(
    seen: dict[int, Sighting], index: int, signature: Signature, circumstances: Circumstances
) -> None:
    """What needs no line: an exit code, and the names an offline build asked for."""
    unwritten: list[str] = []
    if circumstances.exit_code in signature.exit_codes:
        unwritten.append(f"exit code {circumstances.exit_code}")
    names = [name for name in circumstances.wanted_names if _HOST.fullmatch(name)]
    if signature.network and names:
        unwritten += [f"the build asked for the address of {name}" for name in names[:5]]
    if not unwritten:
        return
    sighting = seen.setdefault(index, Sighting(signature))
    sighting.evidence += [Evidence(line=0, text=text) for text in unwritten]
    if signature.network and names:
        sighting.values["names"] = ", ".join(names)


def _applies(signature: Signature, circumstances: Circumstances) -> bool:
    return _holds(signature, circumstances) is not False


def _holds(condition: Signature | Case, circumstances: Circumstances) -> bool | None:
    """Whether releases and machines fit; None when that is not known."""
    sure = True
    if condition.since or condition.before:
        release = _release(circumstances.release)
        if not release:
            sure = False
        elif not _between(condition.since, release, condition.before):
            return False
    if condition.machines:
        if not circumstances.machine:
            sure = False
        elif circumstances.machine not in condition.machines:
            return False
    return True if sure else None


def _between(since: str, release: tuple[int, ...], before: str) -> bool:
    return (not since or release >= _release(since)) and (not before or release < _release(before))


def _release(text: str) -> tuple[int, ...]:
    numbers = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", text.strip())
    return tuple(int(number or 0) for number in numbers.groups()) if numbers else ()


def _without_overshadowed(sightings: list[Sighting]) -> list[Sighting]:
    """Without causes that say less about the same lines than another one."""
    fatal = {line for s in sightings if s.signature.level == "fatal" for line in s.lines}
    return [
        s
        for s in sightings
        if not s.lines
        or any(not evidence.line for evidence in s.evidence)
        or not (
            (s.signature.level == "general" and s.lines <= fatal)
            or any(
                s.signature.id in other.signature.explains and s.lines <= other.lines
                for other in sightings
            )
        )
    ]


def _cause(sighting: Sighting, consequence_of: str, circumstances: Circumstances) -> Cause:
    signature = sighting.signature
    values = signature.defaults | sighting.values
    remedy = [_filled(text, values) for text in signature.remedy]
    commands = [*signature.commands]
    for case in signature.cases:
        holds = _holds(case, circumstances)
        if holds is False:
            continue
        prefix = "" if holds else f"{_condition(case)}: "
        remedy += [prefix + _filled(text, values) for text in case.remedy]
        commands += case.commands if holds else ()
    return Cause(
        id=signature.id,
        title=_filled(signature.title, values),
        level=signature.level,
        cause=_filled(signature.cause, values),
        remedy=tuple(remedy),
        commands=tuple(c for text in commands if (c := _command(text, values))),
        references=signature.references,
        evidence=tuple(sighting.evidence),
        matches=max(sighting.matches, len(sighting.evidence)),
        values=dict(sighting.values),
        consequence_of=consequence_of,
    )


def _condition(case: Case) -> str:
    parts = []
    if case.since:
        parts.append(f"from release {case.since} on")
    if case.before:
        parts.append(f"before release {case.before}")
    if case.machines:
        parts.append(f"on {' or '.join(case.machines)}")
    text = ", ".join(parts)
    return text[:1].upper() + text[1:]


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[1]), text)


def _command(template: str, values: Mapping[str, str]) -> str:
    """The command with its values quoted; empty where a value could act as an option."""
    wanted = [values.get(name, "") for name in _PLACEHOLDER.findall(template)]
    if any(value.startswith("-") or not value.isprintable() for value in wanted):
        return ""
    return _PLACEHOLDER.sub(lambda match: shlex.quote(values.get(match[1], "")), template)
