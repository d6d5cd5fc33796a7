"""Checking a finished component: all checks, one report."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from torchyard.build.verify.check import Check, EnvironmentFolders, Subject
from torchyard.build.verify.files_check import check_files
from torchyard.build.verify.import_check import check_import
from torchyard.build.verify.libraries_check import check_libraries
from torchyard.build.verify.options_check import check_options
from torchyard.build.verify.probe import probe_environment, probe_module
from torchyard.build.verify.project_tests import run_test_file
from torchyard.build.verify.smoke_check import check_smoke
from torchyard.build.verify.target_python import RunInTarget, TargetPython
from torchyard.core.build_plan import Component
from torchyard.core.build_record import CheckFinding, TestAccount, VerifyReport
from torchyard.core.recipe import TestFile
from torchyard.errors import StepFailed

__all__ = ["CHECKS", "open_target", "perform_verify"]

CHECKS: Final[tuple[Check, ...]] = (
    check_import,
    check_options,
    check_libraries,
    check_files,
    check_smoke,
)
"""In the order in which a person would ask."""


def perform_verify(
    component: Component,
    *,
    root: str,
    run: RunInTarget,
    smoke_limit_s: float = 300.0,
    tests: Sequence[TestFile] = (),
    results: Path | None = None,
) -> VerifyReport:
    """Check what the component made; findings are in the report, and only our own trouble raises.

    `tests` are run on request only: they can take hours. Their logs go to `results`.
    """
    started = time.monotonic()
    with open_target(component, run) as target:
        environment = probe_environment(target) if target is not None else EnvironmentFolders()
        name = component.recipe.verify.import_name
        subject = Subject(
            component=component,
            root=root,
            run=run,
            target=target,
            environment=environment,
            module=probe_module(target, name) if target is not None and name else None,
            smoke_limit_s=smoke_limit_s,
        )
        checked = [check(subject) for check in CHECKS]
        accounts = tuple(_accounts(component, run, tests, results))
    findings = [finding for one in checked for finding in one.findings]
    findings += [finding for account in accounts for finding in _test_findings(account)]
    return VerifyReport(
        component=component.name,
        findings=tuple(findings),
        imported=next((one.imported for one in checked if one.imported is not None), None),
        options=tuple(verdict for one in checked for verdict in one.options),
        config=next((one.config for one in checked if one.config), {}),
        libraries=tuple(library for one in checked for library in one.libraries),
        loaded=next((one.loaded for one in checked if one.loaded), ()),
        smoke=tuple(result for one in checked for result in one.smoke),
        tests=accounts,
        duration_s=time.monotonic() - started,
    )


@contextmanager
def open_target(component: Component, run: RunInTarget) -> Iterator[TargetPython | None]:
    """The component's interpreter, with an empty folder to work in; None when it has none.

    The folder is beside the wheels, because the folder of a build is one that a root folder sees
    at the same path.
    """
    if not component.python:
        yield None
        return
    beside = Path(component.wheels).parent
    try:
        beside.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".verify-", dir=beside)
    except OSError as error:
        raise StepFailed(
            f"cannot make a folder in {beside}: {error.strerror}",
            hint="free some space, or make the folder writable",
        ) from error
    with folder as name:
        yield TargetPython(python=component.python, run=run, folder=name)


def _accounts(
    component: Component, run: RunInTarget, tests: Sequence[TestFile], results: Path | None
) -> Iterator[TestAccount]:
    for test in tests:
        yield run_test_file(
            str(Path(component.tree) / test.path),
            test.known_failures,
            python=component.python,
            run=run,
            results=results or Path(component.wheels).parent / "tests" / component.name,
            import_name=component.recipe.verify.import_name,
        )


def _test_findings(account: TestAccount) -> Iterator[CheckFinding]:
    if account.good:
        return
    count = len(account.new_failures)
    parts = [f"{count} new failure{'s' if count != 1 else ''}"] if count else []
    parts += [f"{len(account.crashes)} crashes of the interpreter"] if account.crashes else []
    parts += [f"{account.not_run} tests never ran"] if account.not_run else []
    parts += ["the limit of time ran out"] if account.timed_out else []
    yield CheckFinding(
        check="tests",
        level="failure",
        what=f"{Path(account.path).name}: {', '.join(parts) or 'errors'}",
        why=", ".join(account.new_failures[:5]) + (" ..." if len(account.new_failures) > 5 else ""),  # noqa: PLR2004
        mend=f"read {account.log}; add what is known to verify.tests.known-failures",
    )
