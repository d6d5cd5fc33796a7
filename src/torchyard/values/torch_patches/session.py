"""Propose, build, check and measure patches of torch for the findings of one sweep.

The report is stored after every part, so that an interrupt loses nothing that was known before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchyard.builds import BUILD_PREFIX
from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.record import list_builds
from torchyard.core.study import Target
from torchyard.errors import NothingToDo, StepFailed, UsageError
from torchyard.files.safe_writing import replace_bytes
from torchyard.results.directory import new_run_folder, write_profile_file
from torchyard.values.operator_sweep.model import SweepFolder
from torchyard.values.torch_patches.candidates import SourceTree, edited, patches_of
from torchyard.values.torch_patches.checks import (
    compare_samples,
    compare_speed,
    install_test_packages,
    run_tests,
    sweep_again,
)
from torchyard.values.torch_patches.model import SuiteCheck, TorchFixReport, TorchPatch
from torchyard.values.torch_patches.patched_build import PatchedBuild
from torchyard.values.torch_patches.patched_wheel import NotReplaceable, PatchedWheel
from torchyard.values.torch_patches.report import series_text, speed_text, upstream_text

REPORT_FILE: Final = "torch-patches.json"
PATCHES: Final = "patches"

Say = Callable[[str], None]


def fix_torch(
    sweep: Path,
    *,
    source_tree: Path | None = None,
    finding: int | None = None,
    rebuild: bool = False,
    time_s: float = 20.0,
    say: Say = lambda _text: None,
) -> tuple[TorchFixReport, Path]:
    """Return the patches for the findings of a sweep, and the folder of the report.

    The sweep is of a build, or of an installed torch with the `source_tree` of its release. With `rebuild`, the
    patched library is built, checked against the unchanged one and compared in speed; a patch that fails a
    check is left out, and the library is built again without it.
    """
    result = SweepFolder(sweep).read()
    settings = result.settings
    source: PatchedBuild | PatchedWheel
    if source_tree is None:
        source = PatchedBuild(_build_of(settings.python))
    else:
        source = PatchedWheel(
            settings.python, source_tree, sweep / "patched", variables=settings.variables
        )
    patches = patches_of(result.cases, SourceTree(root=source.tree))
    if finding is not None:
        if not 1 <= finding <= len(patches):
            raise UsageError(
                f"there is no finding {finding}", hint=f"the sweep has {len(patches)} for patches"
            )
        patches = [patches[finding - 1]]
    if not patches:
        raise NothingToDo("the sweep has no wasted write inside an operator")
    source.patches_folder.mkdir(exist_ok=True)
    folder = new_run_folder(source.patches_folder)
    report = TorchFixReport(
        sweep=str(sweep),
        build=source.name,
        torch=result.torch,
        patches=tuple(patches),
    )
    session = _Session(source, folder, say)
    session.keep(report)
    if rebuild and report.proposed:
        try:
            report = session.built(report, time_s)
        except KeyboardInterrupt:
            report = session.keep(replace(session.kept, interrupted=True))
    _write_patches(report, folder)
    return report, folder


def _build_of(python: str) -> str:
    """Return the build with an interpreter; raise UsageError if it is none of a build."""
    for entry in list_builds(BuildsDirectory.default()):
        if entry.record is not None and entry.record.python == python:
            return entry.name
    raise UsageError(
        f"the sweep ran with {python}, which is no build of Torchyard",
        why="a patch of torch needs the source tree and the compiled files of a build",
        hint=(
            "give the sources of that release with --source FOLDER, or sweep a build "
            f"(--target {BUILD_PREFIX}NAME; `torchyard build list` shows names)"
        ),
    )


class _Session:
    def __init__(self, build: PatchedBuild | PatchedWheel, folder: Path, say: Say) -> None:
        self._build, self._folder, self._say = build, folder, say
        self.kept = TorchFixReport()

    def keep(self, report: TorchFixReport) -> TorchFixReport:
        """Store the report."""
        self.kept = report
        write_profile_file(self._folder / REPORT_FILE, report)
        return report

    def built(self, report: TorchFixReport, time_s: float) -> TorchFixReport:
        """Build the library with all patches, and check it; leave patches out that fail a check."""
        report = replace(report, method=self._build.method)
        for _ in range(len(report.patches)):
            chosen = [one for one in report.patches if one.diff and not one.why_not]
            if not chosen:
                return report
            sources = self._sources(chosen)
            try:
                before = self._build.unchanged(sorted(sources), self._folder, say=self._say)
                target = self._build.build(sources, self._folder, say=self._say)
            except NotReplaceable as error:
                self._say(f"{error.what}; building again without it")
                of_file = [one for one in chosen if one.file == error.file]
                report = self.keep(
                    _with(report, [replace(one, why_not=error.what) for one in of_file])
                )
                continue
            report = self.keep(replace(report, built=True, python=target.python))
            checked = self._checked(chosen, before, target)
            report = self.keep(_with(report, checked))
            if all(one.verified for one in checked):
                self._say("comparing speed; a quiet machine gives narrower intervals")
                measured, _ = compare_speed(checked, before, target, time_s=time_s, say=self._say)
                return self.keep(
                    _with(report, [replace(one, why_not=why_slower(one)) for one in measured])
                )
            failed = [one for one in checked if not one.verified]
            names = ", ".join(one.operator for one in failed)
            self._say(f"a check failed, building again without: {names}")
            report = self.keep(
                _with(report, [replace(one, why_not=_why_not(one)) for one in failed])
            )
        return report

    def _sources(self, patches: Sequence[TorchPatch]) -> dict[str, str]:
        tree = SourceTree(root=self._build.tree)
        files: dict[str, list[TorchPatch]] = {}
        for patch in patches:
            files.setdefault(patch.file, []).append(patch)
        return {
            name: edited(tree.text(Path(name)), [edit for one in several for edit in one.edits])
            for name, several in files.items()
        }

    def _checked(
        self, patches: Sequence[TorchPatch], before: Target, target: Target
    ) -> list[TorchPatch]:
        say = self._say
        packages, why = install_test_packages(before, self._build.patches_folder, say)
        say("comparing results of sample inputs, with garbage in uninitialized memory")
        samples = compare_samples(patches, before, target, self._folder, packages)
        patches = [replace(one, samples=check) for one, check in zip(patches, samples, strict=True)]
        patches = sweep_again(patches, target, self._folder, say)
        tests = [SuiteCheck(why=why)] * len(patches)
        if not why:
            try:
                tests = run_tests(
                    patches,
                    before,
                    target,
                    tree=self._build.tree,
                    folder=self._folder,
                    packages=packages,
                    say=say,
                )
            except StepFailed as error:
                tests = [SuiteCheck(why=error.what)] * len(patches)
        return [replace(one, tests=check) for one, check in zip(patches, tests, strict=True)]


def why_slower(patch: TorchPatch) -> str:
    """Return in which cases a correct patch is slower."""
    slower = [one for one in patch.comparisons if one.verdict == "slower"]
    if not slower:
        return ""
    return (
        f"passes all checks, but {', '.join(f'{one.case} is {speed_text(one)}' for one in slower)}"
    )


def _why_not(patch: TorchPatch) -> str:
    if patch.samples.different:
        return f"results differ: {patch.samples.different[0]}"
    if not patch.samples.compared:
        return patch.samples.why or "no result was compared"
    if patch.tests.broken:
        return f"a test of torch fails: {patch.tests.broken[0]}"
    return f"the finding remains in {', '.join(patch.remaining)}"


def _with(report: TorchFixReport, patches: Sequence[TorchPatch]) -> TorchFixReport:
    changed = {(one.file, one.edits): one for one in patches}
    return replace(
        report, patches=tuple(changed.get((one.file, one.edits), one) for one in report.patches)
    )


def _write_patches(report: TorchFixReport, folder: Path) -> None:
    """Write each patch in the format of `git apply`, the text of a report to torch's developers, and a table."""
    for number, patch in enumerate(report.proposed, start=1):
        path = folder / PATCHES / f"{number:02}-{patch.function}.patch"
        path.parent.mkdir(exist_ok=True)
        for file, text in (
            (path, patch.diff),
            (path.with_suffix(".md"), upstream_text(report, patch)),
        ):
            replace_bytes(file, text.encode("utf-8", errors="surrogateescape"))
    if report.proposed:
        replace_bytes(folder / PATCHES / "README.md", series_text(report).encode("utf-8"))
