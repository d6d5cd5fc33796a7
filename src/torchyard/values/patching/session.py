"""Propose, verify, measure and apply patches of the findings of one profile.

The report is stored after every finding, so that an interrupt loses nothing that was known before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from torchyard.core.study import DEFAULT_ENVIRONMENT, Target
from torchyard.errors import NotAllowed, NothingToDo, StepFailed, UsageError
from torchyard.files.safe_writing import replace_bytes
from torchyard.results.directory import new_run_folder, write_profile_file
from torchyard.values.model import ValueFinding, ValueProfile, read_profile
from torchyard.values.patching.candidates import patch_of
from torchyard.values.patching.model import (
    Applied,
    Edit,
    FixReport,
    Gain,
    NotProposed,
    Patch,
    Proposal,
    StoredRequest,
    digest,
    read_request,
)
from torchyard.values.patching.program_copy import ProgramCopy, absolute
from torchyard.values.patching.source_file import SourceFile
from torchyard.values.patching.verification import PAIRS, Interrupted, Verifier
from torchyard.values.report.descriptions import ordered

REPORT_FILE: Final = "fixes.json"
_COPY: Final = "program"
_BEFORE: Final = "before"


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    """A patch before it is verified."""

    place: int
    """Index in the list of proposals."""
    patch: Patch
    source: SourceFile


def fix_profile(
    path: Path,
    *,
    target: Target,
    finding: int | None = None,
    classes: Collection[str] = (),
    say: Callable[[str], None] = lambda _text: None,
    pairs: int = PAIRS,
) -> tuple[FixReport, Path]:
    """Return the patches of a profile, verified and measured, and the folder with the report.

    `target` is the interpreter that runs the program; a profile never names what is executed besides the program.
    """
    profile, stored = read_profile(path), read_request(path)
    if stored.request.target.python != target.python:
        raise UsageError(
            f"the program was profiled with {stored.request.target.python}",
            why=f"it would now run with {target.python}",
            hint="give the same interpreter with --target",
        )
    request = replace(stored.request, target=target, environment=DEFAULT_ENVIRONMENT)
    stored = replace(stored, request=request)
    findings = ordered(profile)
    if finding is not None and not 1 <= finding <= len(findings):
        raise UsageError(
            f"there is no finding {finding}",
            hint=f"the profile has {len(findings)}: `torchyard values show {path.parent}`",
        )
    if not findings:
        raise NothingToDo("the profile has no findings")
    home = path.parent / "fixes"
    home.mkdir(exist_ok=True)
    folder = new_run_folder(home)
    session = _Session(stored, profile, folder, say, pairs)
    report = FixReport(profile=str(path), program=profile.program)
    numbers = range(1, len(findings) + 1) if finding is None else (finding,)
    candidates, proposals = session.candidates(
        [(number, findings[number - 1]) for number in numbers], classes
    )
    report = session.keep(replace(report, proposals=tuple(proposals)))
    if candidates:
        report = session.verified(report, candidates)
    return report, folder


class _Session:
    def __init__(
        self,
        stored: StoredRequest,
        profile: ValueProfile,
        folder: Path,
        say: Callable[[str], None],
        pairs: int,
    ) -> None:
        self._stored, self._profile, self._folder = stored, profile, folder
        self._say, self._pairs = say, pairs
        self._working_folder = Path(stored.folder)
        self._copy = ProgramCopy(stored.request, self._working_folder, folder / _COPY)
        self._sources: dict[str, SourceFile] = {}
        self._kept = FixReport()

    def keep(self, report: FixReport) -> FixReport:
        """Store the report."""
        self._kept = report
        write_profile_file(self._folder / REPORT_FILE, report)
        return report

    def candidates(
        self, findings: Sequence[tuple[int, ValueFinding]], classes: Collection[str]
    ) -> tuple[list[_Candidate], list[Proposal]]:
        """Return the patches that the source permits, and the proposals of all findings."""
        candidates: list[_Candidate] = []
        proposals: list[Proposal] = []
        for number, finding in findings:
            proposal = Proposal(
                finding=number,
                pattern=finding.pattern,
                operator=finding.operator,
                file=finding.place.file,
                line=finding.place.line,
            )
            try:
                source = self._source(finding.place.file)
                patch = patch_of(
                    finding,
                    source,
                    main=self._copy.main,
                    root=self._copy.root,
                    classes=classes,
                )
                _check_new(patch, candidates)
                diff = source.diff(patch.edits, _name(source.path, self._copy.root))
                proposal = replace(proposal, kind=patch.kind, text=patch.text, diff=diff)
                candidates.append(_Candidate(place=len(proposals), patch=patch, source=source))
            except NotProposed as why:
                proposal = replace(proposal, why_not=str(why))
            proposals.append(proposal)
        return candidates, proposals

    def verified(self, report: FixReport, candidates: list[_Candidate]) -> FixReport:
        """Return the report with results and times of the patched program."""
        try:
            return self._verified(report, candidates)
        finally:
            shutil.rmtree(self._folder / _COPY, ignore_errors=True)

    def _verified(self, report: FixReport, candidates: list[_Candidate]) -> FixReport:
        original = {one.source.path: one.source.data for one in candidates}
        try:
            self._copy.create(sorted(original))
            verifier = Verifier(
                copy=self._copy,
                folder=self._folder,
                original=original,
                profiled_s=self._profile.seconds,
                pairs=self._pairs,
                say=self._say,
            )
            verifier.prepare()
        except NotProposed as why:
            return self._none(report, candidates, str(why))
        except Interrupted:
            report = self._none(report, candidates, "interrupted before it was verified")
            return self.keep(replace(report, interrupted=True))
        accepted: list[_Candidate] = []
        try:
            for one in candidates:
                report = self._one(report, one, verifier)
                if report.proposals[one.place].proposed:
                    accepted.append(one)
            return self._all(report, accepted, verifier)
        except Interrupted:
            report = self._kept  # with what the interrupted part has stored
            for one in candidates:
                proposal = report.proposals[one.place]
                if not proposal.verification.passed and not proposal.why_not:
                    report = self._none(report, [one], "interrupted before it was verified")
            return self.keep(replace(report, interrupted=True))

    def _one(self, report: FixReport, one: _Candidate, verifier: Verifier) -> FixReport:
        proposal = report.proposals[one.place]
        where = f"{proposal.operator} at {proposal.file}:{proposal.line}"
        self._say(f"running the program with a patch: {where}, {proposal.text}")
        patched = {one.source.path: one.source.edited(one.patch.edits)}
        contents = {**verifier.original, **patched}
        verification = verifier.verify(contents, rounds=one.patch.rounds)
        if not verification.passed:
            proposal = replace(proposal, verification=verification, why_not=verification.why)
        else:
            proposal = replace(proposal, verification=verification)
            report = self.keep(_with(report, one.place, proposal))
            self._say(f"timing the program with and without it: up to {self._pairs} pairs of runs")
            gain = verifier.measure(contents)
            proposal = replace(proposal, gain=gain)
            if gain.interval is not None and gain.interval.high < 0:
                proposal = replace(proposal, why_not="the program is slower with the patch")
        return self.keep(_with(report, one.place, proposal))

    def _all(self, report: FixReport, accepted: list[_Candidate], verifier: Verifier) -> FixReport:
        """Verify and measure all accepted patches together."""
        if not accepted:
            return report
        edits, accepted, report = self._combined(report, accepted)
        contents = dict(verifier.original)
        diffs = []
        for path, own in edits.items():
            source = next(one.source for one in accepted if one.source.path == path)
            contents[path] = source.edited(own)
            diffs.append(source.diff(own, _name(path, self._copy.root)))
        if len(accepted) == 1:
            proposal = report.proposals[accepted[0].place]
            together, gain = proposal.verification, proposal.gain
        else:
            self._say(f"running the program with all {len(accepted)} patches")
            rounds = any(one.patch.rounds for one in accepted)
            together = verifier.verify(contents, rounds=rounds)
            gain = verifier.measure(contents) if together.passed else Gain(why=together.why)
        diff = "".join(diffs)
        for path, content in contents.items():
            if content != verifier.original[path]:
                replace_bytes(self._folder / _after(path, self._copy.root), content)
        replace_bytes(self._folder / "fixes.diff", diff.encode("utf-8"))
        return self.keep(replace(report, diff=diff, together=together, gain=gain))

    def _combined(
        self, report: FixReport, accepted: list[_Candidate]
    ) -> tuple[dict[Path, list[Edit]], list[_Candidate], FixReport]:
        edits: dict[Path, list[Edit]] = {}
        combined = []
        for one in accepted:
            together = [*edits.get(one.source.path, ()), *one.patch.edits]
            try:
                compile(one.source.edited(together), str(one.source.path), "exec")
            except (NotProposed, SyntaxError, ValueError):
                report = self._none(report, [one], "it overlaps with the patch of another finding")
                continue
            edits[one.source.path] = together
            combined.append(one)
        return edits, combined, report

    def _none(self, report: FixReport, candidates: Sequence[_Candidate], why: str) -> FixReport:
        for one in candidates:
            report = _with(report, one.place, replace(report.proposals[one.place], why_not=why))
        return self.keep(report)

    def _source(self, file: str) -> SourceFile:
        """Return a file that may be patched; raise NotProposed for others."""
        if self._profile.state != "finished":
            raise NotProposed("the program did not finish")
        if self._profile.compiled:
            raise NotProposed("the program uses torch.compile")
        path = absolute(file, self._working_folder)
        if path.suffix != ".py":
            raise NotProposed("the code is not in a Python file")
        if not self._copy.contains(path):
            raise NotProposed("the file is not in the folder of the program")
        stored = self._stored.sources.get(file)
        if stored is None:
            raise NotProposed("the file was not there when the program was profiled")
        if stored.written:
            raise NotProposed("the program writes this file itself")
        if path.is_symlink() or not path.resolve().is_relative_to(self._copy.root.resolve()):
            raise NotProposed("the file is a link, or in a folder that is one")
        source = self._sources.get(file) or SourceFile.read(path)
        self._sources[file] = source
        if digest(source.data) != stored.sha256:
            raise NotProposed("the file has changed since the program was profiled")
        return source


def apply_patches(report: FixReport, folder: Path) -> FixReport:
    """Write the patched files; raise an error, and change nothing, if one of them cannot be written.

    Earlier contents are kept in the folder of the report.
    """
    if not report.proposed or not report.diff:
        raise NothingToDo("no patch was proposed, so none is applied")
    if not report.together.passed:
        raise StepFailed(
            "the patches are not applied: together they were not verified",
            why=report.together.why,
            hint="apply them one by one with --finding",
        )
    stored = read_request(Path(report.profile))
    working_folder = Path(stored.folder)
    root = ProgramCopy(stored.request, working_folder, folder / _COPY).root
    changes: list[tuple[Path, bytes, bytes]] = []
    for name in sorted({one.file for one in report.proposed}):
        path = absolute(name, working_folder)
        before = path.read_bytes() if path.is_file() else b""
        if digest(before) != stored.sources[name].sha256:
            raise UsageError(
                f"{name} has changed since the program was profiled",
                why="no file was changed",
                hint="run `torchyard values fix` on the program again",
            )
        if not path.stat().st_mode & 0o200:
            raise NotAllowed(
                f"{name} is read-only", why="no file was changed", hint="make it writable"
            )
        changes.append((path, before, (folder / _after(path, root)).read_bytes()))
    applied = []
    for path, before, after in changes:
        backup = folder / _BEFORE / path.relative_to(root)
        backup.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(backup, before)
        replace_bytes(path, after, mode=path.stat().st_mode & 0o7777)
        applied.append(Applied(file=str(path), backup=str(backup)))
        report = replace(report, applied=tuple(applied))
        write_profile_file(folder / REPORT_FILE, report)
    return report


def _check_new(patch: Patch, candidates: Sequence[_Candidate]) -> None:
    if any(one.patch.edits == patch.edits for one in candidates):
        raise NotProposed("the patch of another finding changes the same code")


def _with(report: FixReport, place: int, proposal: Proposal) -> FixReport:
    proposals = list(report.proposals)
    proposals[place] = proposal
    return replace(report, proposals=tuple(proposals))


def _name(path: Path, root: Path) -> str:
    return str(path.relative_to(root))


def _after(path: Path, root: Path) -> str:
    return "after-" + "-".join(path.relative_to(root).parts)
