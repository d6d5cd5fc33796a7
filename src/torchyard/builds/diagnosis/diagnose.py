"""Diagnose a log: read it once, then rank the causes that match and fill in their values."""

from __future__ import annotations

import io
import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

from torchyard.builds.diagnosis.log_blocks import read_blocks
from torchyard.builds.diagnosis.matching import Gate, Patterns, Sighting
from torchyard.builds.diagnosis.model import Cause, Diagnosis, Evidence
from torchyard.builds.diagnosis.scan import Scan, gate_for
from torchyard.builds.diagnosis.signature import Case, Signature, load_signatures
from torchyard.errors import NotAllowed, UsageError

_ORDER = {"fatal": 0, "general": 1, "loss": 2, "notice": 3}
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
_SAME_PARTS = (
    ("blas", "lapack", "openblas", "mkl", "flexiblas", "atlas", "blis", "generic"),
    ("cuda", "cudatoolkit", "nvcc", "cuda_toolkit"),
    ("mkldnn", "onednn", "dnnl"),
    ("jpeg", "libjpeg", "turbojpeg"),
    ("png", "libpng"),
    ("rocm", "hip"),
    ("xpu", "sycl", "intelsycl"),
    ("openmp", "omp"),
)
"""Parts that configurations and error messages call by different names."""
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What is known besides the log."""

    exit_code: int | None = None
    wanted_names: tuple[str, ...] = ()
    release: str = ""
    machine: str = ""
    failed: bool = True
    """Whether the build failed: otherwise only losses and notices count."""
    attempt: int = 0
    """Number of the attempt that failed; causes of earlier ones come later."""


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
        sighting
        for _, sighting in sorted(seen.items())
        if _applies(sighting.signature, circumstances)
    ]
    applying = _with_parts(applying)
    if not circumstances.failed:
        applying = [s for s in applying if s.signature.level in {"loss", "notice"}]
    applying = _without_overshadowed(applying)
    explained = _explained(applying)
    explaining = set(explained.values())
    applying = [
        s for s in applying if not s.signature.only_as_cause or s.signature.id in explaining
    ]
    applying.sort(
        key=lambda s: (
            s.signature.id in explained,
            s.attempt < circumstances.attempt and not s.signature.is_loss,
            # A loss that explains the failure is its cause.
            -1 if s.signature.is_loss and s.signature.id in explaining else 0,
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


def _with_parts(sightings: list[Sighting]) -> list[Sighting]:
    """Of each loss that is only told as a cause, what a failure shows to be missing."""
    kept = []
    for sighting in sightings:
        if not sighting.signature.only_as_cause:
            kept.append(sighting)
            continue
        for other in sightings:
            if other.signature.id not in sighting.signature.explains:
                continue
            name = other.values.get("part") or other.signature.defaults.get("part", "")
            evidence = [sighting.parts[part] for part in same_parts(name) if part in sighting.parts]
            before = [e for e in evidence if e.line < max(other.lines, default=0)]
            if before:
                first = min(before, key=lambda e: e.line)
                lines = {e.line for e in before}
                found = replace(sighting, evidence=[first], lines=lines, values={"part": name})
                kept.append(replace(found, matches=len(lines)))
                break
    return kept


def same_parts(name: str) -> tuple[str, ...]:
    """The names under which configurations know a part of a build, in small letters."""
    plain = name.lower().removeprefix("lib")
    return next((names for names in _SAME_PARTS if plain in names), (plain, f"lib{plain}"))


def _explained(sightings: list[Sighting]) -> dict[str, str]:
    """Id of each cause that another one explains -> id of that one.

    A loss explains only what comes after it: a failure before it has another cause.
    """
    last_lines = {s.signature.id: max(s.lines, default=0) for s in sightings}
    explained: dict[str, str] = {}
    for sighting in sightings:
        for other in sighting.signature.explains:
            first = min(sighting.lines, default=0)
            if not sighting.signature.is_loss or first < last_lines.get(other, 0):
                explained.setdefault(other, sighting.signature.id)
    return explained


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


_SIGNALLED = 128


def diagnose(
    log: str | Path | BinaryIO,
    *,
    exit_code: int | None = None,
    wanted_names: tuple[str, ...] = (),
    release: str = "",
    machine: str = "",
) -> Diagnosis:
    """Why a build failed: known causes, the first real error, the command that failed.

    A str is the log itself, a Path the file it is in, and a stream is read to its end. `exit_code` is that of the failed command
    (a negative one names a signal), `wanted_names` the hosts that a build without network asked
    for, `release` and `machine` (as `uname -m`) choose between remedies.
    """
    code = _SIGNALLED - exit_code if exit_code is not None and exit_code < 0 else exit_code
    circumstances = Circumstances(
        exit_code=code, wanted_names=wanted_names, release=release, machine=machine
    )
    if isinstance(log, Path):
        with _opened(log) as file:
            return _read(file, circumstances, log=str(log))
    if isinstance(log, str):
        return _read(io.BytesIO(log.encode("utf-8", "replace")), circumstances, log="")
    return _read(log, circumstances, log="")


@cache
def _shipped() -> tuple[Patterns, Gate]:
    patterns = Patterns(load_signatures())
    return patterns, gate_for(patterns)


def _opened(path: Path) -> BinaryIO:
    """Open a log; a device never ends, and a FIFO without a writer never begins."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise UsageError(f"there is no log {path}", hint="give the path of a log file") from None
    except PermissionError:
        raise NotAllowed(f"cannot read {path}", hint="ask its owner, or copy it") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {str(path)!r}", why=str(error), hint="give the path of a log file"
        ) from None
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind) and not (stat.S_ISFIFO(kind) and _is_open_already(path)):
        os.close(descriptor)
        what = "a folder" if stat.S_ISDIR(kind) else "a device, a socket or a FIFO"
        hint = "give a log file in it" if stat.S_ISDIR(kind) else "pipe the log in, and give `-`"
        raise UsageError(f"{path} is {what}", hint=hint)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def _is_open_already(path: Path) -> bool:
    """Whether the path names a pipe that this process was started with, as `<(command)` does."""
    return path.parent in (Path("/dev/fd"), Path("/proc/self/fd")) or path == Path("/dev/stdin")


def _read(file: BinaryIO, circumstances: Circumstances, *, log: str) -> Diagnosis:
    patterns, gate = _shipped()
    scan = Scan(patterns, gate)
    try:
        for block in read_blocks(file):
            scan.feed(block)
    except OSError as error:
        raise UsageError(
            f"cannot read {log or 'the log'}", why=str(error), hint="give the path of a log file"
        ) from error
    scan.end()
    code = circumstances.exit_code
    failed = (
        code != 0 if code is not None else scan.outcome.failed or bool(circumstances.wanted_names)
    )
    found = scan.evidence if failed else scan.finder
    first, command = found.found, found.failed_command
    attempt = scan.matcher.attempt if found is scan.finder and (first or command) else 0
    circumstances = replace(circumstances, failed=failed, attempt=attempt)
    return Diagnosis(
        causes=rank(patterns.signatures, scan.matcher.sightings, circumstances),
        first_error=first if failed else None,
        failed_command=command if failed else None,
        lines=scan.lines,
        log=log,
        exit_code=code,
        failed=failed,
        overcome=None if failed else scan.evidence.found,
    )
