"""The files that the recipe promises are there: below the prefix, or in the working copy."""

from __future__ import annotations

from pathlib import Path

from torchyard.build.verify.check import Checked, Subject
from torchyard.core.build_record import CheckFinding

__all__ = ["check_files"]


def check_files(subject: Subject) -> Checked:
    """Every name or glob pattern matches something, and what it matches is not empty."""
    component = subject.component
    findings = []
    for said in component.recipe.verify.files:
        # A project that installs nothing leaves its result in the tree: {tree}/build/libx.so.
        below = component.tree if said.startswith(f"{component.tree}/") else component.prefix
        pattern = said.removeprefix(f"{component.tree}/")
        trouble = _trouble(subject.outside(below), pattern)
        if trouble:
            findings.append(
                CheckFinding(
                    check="files",
                    level="failure",
                    what=f"{pattern} is {trouble}",
                    why=f"looked in {below}",
                    mend=f"torchyard build ... --from {component.name}/build",
                )
            )
    return Checked(findings=tuple(findings))


def _trouble(prefix: Path, pattern: str) -> str:
    if pattern.startswith("/") or ".." in Path(pattern).parts:
        return "not a name"
    matches = list(prefix.glob(pattern)) if prefix.is_dir() else []
    if not matches:
        return "missing"
    # A full disk leaves files of zero bytes behind. (A link into a root is not followed: the file
    # behind it may be visible only inside.)
    plain = [path for path in matches if not path.is_symlink() and path.is_file()]
    if plain and len(plain) == len(matches) and all(path.stat().st_size == 0 for path in plain):
        return "empty"
    return ""
