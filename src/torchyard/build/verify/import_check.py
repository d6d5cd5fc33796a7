"""The module imports outside the source tree, and it is the one that was built."""

from __future__ import annotations

from pathlib import PurePath

from torchyard.build.verify.check import Checked, ModuleFacts, Subject
from torchyard.core.build_record import CheckFinding, ImportedModule

__all__ = ["check_import"]


def check_import(subject: Subject) -> Checked:
    """Import, origin and version."""
    module = subject.module
    if module is None:
        return Checked()
    if not module.file:
        return Checked(findings=(_not_imported(module),))
    findings = [*_wrong_origin(subject, module), *_wrong_version(subject, module)]
    if module.failure:
        findings.append(
            _finding(
                f"{module.name} imports, and the interpreter then ends badly",
                why=module.failure,
                mend="look for two copies of one runtime among the linked libraries",
            )
        )
    return Checked(
        findings=tuple(findings),
        imported=ImportedModule(name=module.name, version=module.version, file=module.file),
        config=module.config,
        loaded=module.loaded,
    )


def _not_imported(module: ModuleFacts) -> CheckFinding:
    if module.failure:
        return _finding(
            f"{module.name} does not import",
            why=module.failure,
            mend="torchyard build explain LOG names known causes of such messages",
        )
    return _finding(
        f"{module.name} imports as an empty namespace",
        why="Python found a folder of that name without __init__.py",
        mend="install the wheel again, and remove the left-over folder from site-packages",
    )


def _wrong_origin(subject: Subject, module: ModuleFacts) -> list[CheckFinding]:
    component = subject.component
    file = PurePath(module.file)
    places = (*subject.environment.site, component.prefix)
    if subject.editable:
        places = (component.tree,)
    elif file.is_relative_to(component.tree):
        return [
            _finding(
                f"{module.name} comes from the source tree, not from the environment",
                why=f"its file is {module.file}",
                mend="install the wheel; remove a .pth file or an editable install that points to the tree",
            )
        ]
    if any(place and file.is_relative_to(place) for place in places):
        return []
    return [
        _finding(
            f"{module.name} is another copy than the one built",
            why=f"its file is {module.file}, which is below none of {', '.join(filter(None, places))}",
            mend=f"install the wheel from {component.wheels} into the environment",
        )
    ]


def _wrong_version(subject: Subject, module: ModuleFacts) -> list[CheckFinding]:
    wanted = subject.component.recipe.version
    # `2.6.0` may report itself as 2.6.0, 2.6.0+cpu or 2.6.0a0+git1234; a branch name says nothing.
    if not wanted or not wanted[0].isdigit() or not module.version:
        return []
    if module.version == wanted or module.version.startswith(
        (f"{wanted}+", f"{wanted}a", f"{wanted}.")
    ):
        return []
    return [
        CheckFinding(
            check="import",
            level="warning",
            what=f"{module.name} says it is {module.version}; the recipe builds {wanted}",
            why="another copy is imported, or the project takes its version from somewhere else",
            mend="compare with the version of the wheel; set the project's version variable",
        )
    ]


def _finding(what: str, *, why: str, mend: str) -> CheckFinding:
    return CheckFinding(check="import", level="failure", what=what, why=why, mend=mend)
