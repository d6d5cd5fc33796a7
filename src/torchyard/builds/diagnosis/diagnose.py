"""Diagnose a log: read it once, then rank the causes that match and fill in their values."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import BinaryIO

from torchyard.builds.diagnosis.log_blocks import read_blocks
from torchyard.builds.diagnosis.matching import CompiledSignatures, Detection, FragmentSearch
from torchyard.builds.diagnosis.model import Cause, Diagnosis, Evidence
from torchyard.builds.diagnosis.scan import LogScan, fragment_search
from torchyard.builds.diagnosis.signature import Case, Signature, load_signatures
from torchyard.errors import NotAllowed, UsageError
from torchyard.files.safe_reading import open_regular_file

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
"""Groups of names that configure steps and error messages use for one component."""
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")


@dataclass(frozen=True, kw_only=True)
class BuildFacts:
    """Facts about a build apart from its log."""

    exit_code: int | None = None
    wanted_names: tuple[str, ...] = ()
    release: str = ""
    machine: str = ""
    failed: bool = True
    """If False, only losses and notices are reported."""
    attempt: int = 0
    """Number of the attempt that failed; causes of earlier attempts are ranked lower."""


def rank(
    signatures: Sequence[Signature],
    detections: Mapping[int, Detection],
    facts: BuildFacts,
) -> tuple[Cause, ...]:
    """Return the causes, the most likely root cause first, consequences last."""
    all_detections = dict(detections)
    for index, signature in enumerate(signatures):
        _add_without_line(all_detections, index, signature, facts)
    applying = [
        detection
        for _, detection in sorted(all_detections.items())
        if _holds(detection.signature, facts) is not False
    ]
    applying = _losses_by_part(applying)
    if not facts.failed:
        applying = [s for s in applying if s.signature.level in {"loss", "notice"}]
    applying = _without_redundant(applying)
    explained = _explained(applying)
    explaining = set(explained.values())
    applying = [
        s for s in applying if not s.signature.only_as_cause or s.signature.id in explaining
    ]
    applying.sort(
        key=lambda s: (
            s.signature.id in explained,
            s.attempt < facts.attempt and not s.signature.is_loss,
            # A loss that explains the failure is its cause.
            -1 if s.signature.is_loss and s.signature.id in explaining else 0,
            # A cause without a line in the log may be true and still not be the reason.
            max(_ORDER[s.signature.level], _ORDER["general"] if not s.lines else 0),
            not s.in_failed_block,
            min((e.line for e in s.evidence if e.line), default=1 << 62),
        )
    )
    return tuple(
        _cause(detection, explained.get(detection.signature.id, ""), facts)
        for detection in applying
    )


def _losses_by_part(detections: list[Detection]) -> list[Detection]:
    """Reduce each loss that is reported only as a cause to the component that a failure lacks."""
    remaining = []
    for detection in detections:
        if not detection.signature.only_as_cause:
            remaining.append(detection)
            continue
        for other in detections:
            if other.signature.id not in detection.signature.explains:
                continue
            name = other.values.get("part") or other.signature.defaults.get("part", "")
            evidence = [
                detection.parts[part] for part in same_parts(name) if part in detection.parts
            ]
            before = [e for e in evidence if e.line < max(other.lines, default=0)]
            if before:
                first = min(before, key=lambda e: e.line)
                lines = {e.line for e in before}
                values = {"part": name}
                reduced = replace(detection, evidence=[first], lines=lines, values=values)
                remaining.append(replace(reduced, matches=len(lines)))
                break
    return remaining


def same_parts(name: str) -> tuple[str, ...]:
    """Return the lower-case names that configure steps use for a component."""
    plain = name.lower().removeprefix("lib")
    return next((names for names in _SAME_PARTS if plain in names), (plain, f"lib{plain}"))


def _explained(detections: list[Detection]) -> dict[str, str]:
    """Return id of each explained cause -> id of the cause that explains it.

    A loss explains only failures after it.
    """
    last_lines = {s.signature.id: max(s.lines, default=0) for s in detections}
    explained: dict[str, str] = {}
    for detection in detections:
        for other in detection.signature.explains:
            first = min(detection.lines, default=0)
            if not detection.signature.is_loss or first < last_lines.get(other, 0):
                explained.setdefault(other, detection.signature.id)
    return explained


def _add_without_line(
    detections: dict[int, Detection], index: int, signature: Signature, facts: BuildFacts
) -> None:
    """Add detections by exit code and by the hosts that an offline build tried to reach."""
    texts: list[str] = []
    if facts.exit_code in signature.exit_codes:
        texts.append(f"exit code {facts.exit_code}")
    names = [name for name in facts.wanted_names if _HOST.fullmatch(name)]
    if signature.network and names:
        texts += [f"the build tried to reach {name}" for name in names[:5]]
    if not texts:
        return
    detection = detections.setdefault(index, Detection(signature))
    detection.evidence += [Evidence(line=0, text=text) for text in texts]
    if signature.network and names:
        detection.values["names"] = ", ".join(names)


def _holds(condition: Signature | Case, facts: BuildFacts) -> bool | None:
    """Return whether release and machine match; None if they are unknown."""
    certain = True
    if condition.since or condition.before:
        release = _release(facts.release)
        if not release:
            certain = False
        elif not _between(condition.since, release, condition.before):
            return False
    if condition.machines:
        if not facts.machine:
            certain = False
        elif facts.machine not in condition.machines:
            return False
    return True if certain else None


def _between(since: str, release: tuple[int, ...], before: str) -> bool:
    return (not since or release >= _release(since)) and (not before or release < _release(before))


def _release(text: str) -> tuple[int, ...]:
    numbers = re.match(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?", text.strip())
    return tuple(int(number or 0) for number in numbers.groups()) if numbers else ()


def _without_redundant(detections: list[Detection]) -> list[Detection]:
    """Drop causes that another, more specific cause covers on the same lines."""
    fatal = {line for s in detections if s.signature.level == "fatal" for line in s.lines}
    return [
        s
        for s in detections
        if not s.lines
        or any(not evidence.line for evidence in s.evidence)
        or not (
            (s.signature.level == "general" and s.lines <= fatal)
            or any(
                s.signature.id in other.signature.explains and s.lines <= other.lines
                for other in detections
            )
        )
    ]


def _cause(detection: Detection, consequence_of: str, facts: BuildFacts) -> Cause:
    signature = detection.signature
    values = signature.defaults | detection.values
    remedy = [_filled(text, values) for text in signature.remedy]
    commands = [*signature.commands]
    for case in signature.cases:
        holds = _holds(case, facts)
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
        evidence=tuple(detection.evidence),
        matches=max(detection.matches, len(detection.evidence)),
        values=dict(detection.values),
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
    """Return the command with quoted values; empty if a value could act as an option."""
    used = [values.get(name, "") for name in _PLACEHOLDER.findall(template)]
    if any(value.startswith("-") or not value.isprintable() for value in used):
        return ""
    return _PLACEHOLDER.sub(lambda match: shlex.quote(values.get(match[1], "")), template)


_SIGNAL_BASE = 128


def diagnose(
    log: str | Path | BinaryIO,
    *,
    exit_code: int | None = None,
    wanted_names: tuple[str, ...] = (),
    release: str = "",
    machine: str = "",
) -> Diagnosis:
    """Return why a build failed: known causes, the first real error, the failed command.

    `log` is the text, the path of the file, or a stream. `exit_code` is that of the failed command
    (negative for a signal), `wanted_names` are the hosts that a build without network tried to
    reach; `release` and `machine` (as `uname -m`) select the fixes.
    """
    code = _SIGNAL_BASE - exit_code if exit_code is not None and exit_code < 0 else exit_code
    facts = BuildFacts(exit_code=code, wanted_names=wanted_names, release=release, machine=machine)
    if isinstance(log, Path):
        with _opened(log) as file:
            return _read(file, facts, log=str(log))
    if isinstance(log, str):
        return _read(io.BytesIO(log.encode("utf-8", "replace")), facts, log="")
    return _read(log, facts, log="")


@cache
def _shipped() -> tuple[CompiledSignatures, FragmentSearch]:
    signatures = CompiledSignatures(load_signatures())
    return signatures, fragment_search(signatures)


def _opened(path: Path) -> BinaryIO:
    """Open a log. Devices and FIFOs are rejected: reading them may never end."""
    try:
        inherited = path.parent in (Path("/dev/fd"), Path("/proc/self/fd"))
        if (inherited or path == Path("/dev/stdin")) and path.is_fifo():
            return path.open("rb")  # as with `<(command)`
        return open_regular_file(path)
    except FileNotFoundError:
        raise UsageError(f"there is no log {path}", hint="give the path of a log file") from None
    except PermissionError:
        raise NotAllowed(
            f"cannot read {path}", hint="ask its owner for permission or a copy"
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{path} is a folder", hint="give a log file in it") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else None
        raise UsageError(
            f"cannot read {str(path)!r}",
            why=why or str(error),
            hint="give the path of a log file, or pipe the log and use `-`",
        ) from None


def _read(file: BinaryIO, facts: BuildFacts, *, log: str) -> Diagnosis:
    signatures, search = _shipped()
    scan = LogScan(signatures, search)
    try:
        for block in read_blocks(file):
            scan.feed(block)
    except OSError as error:
        raise UsageError(
            f"cannot read {log or 'the log'}", why=str(error), hint="give the path of a log file"
        ) from error
    scan.end()
    code = facts.exit_code
    failed = code != 0 if code is not None else scan.outcome.failed or bool(facts.wanted_names)
    finder = scan.evidence if failed else scan.finder
    first, command = finder.first_error, finder.failed_command
    attempt = scan.matcher.attempt if finder is scan.finder and (first or command) else 0
    facts = replace(facts, failed=failed, attempt=attempt)
    return Diagnosis(
        causes=rank(signatures.signatures, scan.matcher.detections, facts),
        first_error=first if failed else None,
        failed_command=command if failed else None,
        lines=scan.lines,
        log=log,
        exit_code=code,
        failed=failed,
        overcome=None if failed else scan.evidence.first_error,
    )
