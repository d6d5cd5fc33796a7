"""Verify a finished component: all checks, one report.

The checks of files, import and options are here: promised files exist, the module imports outside
the source tree and is the one that was built, and each requested option reached CMake and shows in
the finished module. PyTorch forwards only some variables to CMake, a project may change an option,
and an old CMakeCache.txt may override it, all silently.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final

from torchyard.builds.cmake_cache import CacheEntry, as_truth, find_cache, read_cache, same_value
from torchyard.builds.plan import Component
from torchyard.builds.recipe import Scalar, TestFile
from torchyard.builds.record import (
    CheckFinding,
    ImportedModule,
    OptionVerdict,
    OptionVerdictKind,
    TestAccount,
    VerifyReport,
)
from torchyard.builds.verify.linked_libraries import check_libraries
from torchyard.builds.verify.probe import (
    IMPLIED,
    READ_FROM_ENVIRONMENT,
    RENAMED,
    config_name,
    config_value,
    probe_environment,
    probe_module,
)
from torchyard.builds.verify.project_tests import check_smoke, run_test_file
from torchyard.builds.verify.target_python import (
    Check,
    Checked,
    EnvironmentFolders,
    ModuleFacts,
    RunInTarget,
    Subject,
    TargetPython,
)
from torchyard.errors import StepFailed


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
            _import_error(
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
        return _import_error(
            f"{module.name} does not import",
            why=module.failure,
            mend="torchyard build explain LOG names known causes of such messages",
        )
    return _import_error(
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
            _import_error(
                f"{module.name} comes from the source tree, not from the environment",
                why=f"its file is {module.file}",
                mend="install the wheel; remove a .pth file or an editable install that points to the tree",
            )
        ]
    if any(place and file.is_relative_to(place) for place in places):
        return []
    return [
        _import_error(
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


def _import_error(what: str, *, why: str, mend: str) -> CheckFinding:
    return CheckFinding(check="import", level="failure", what=what, why=why, mend=mend)


_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_options(subject: Subject) -> Checked:
    """A verdict for each option of the recipe; a request that was not met is a failure."""
    component = subject.component
    recipe = component.recipe
    path = cache_of(component)
    cache = read_cache(path) if path is not None else None
    not_declared = [
        name for name in recipe.options if cache and name in cache and not cache[name].declared
    ]
    read = names_in_cmake_files(Path(component.tree), not_declared)
    is_torch = recipe.verify.import_name == "torch"
    config = subject.module.config if subject.module is not None else {}
    verdicts = tuple(
        judge_option(
            name,
            requested,
            cache=cache,
            config=config,
            is_torch=is_torch,
            excused=name in recipe.verify.ignored_options or name in read or _cmakes_own(name),
        )
        for name, requested in recipe.options.items()
    )
    findings = [
        finding for verdict in verdicts if (finding := _option_finding(verdict, path)) is not None
    ]
    return Checked(findings=tuple(findings), options=verdicts)


def _cmakes_own(name: str) -> bool:
    """Whether CMake itself reads the variable, so that no project has to mention it."""
    return name.startswith("CMAKE_") or name in ("BUILD_SHARED_LIBS", "BUILD_TESTING")


def cache_of(component: Component) -> Path | None:
    """The CMakeCache.txt of a component; None for a project without one."""
    recipe = component.recipe
    tree = Path(component.tree)
    folder = recipe.cmake.folder if recipe.builder == "cmake" else ""
    likely = recipe.python.build_folder if recipe.builder == "python" else "build"
    return find_cache(tree, project=tree / folder, likely=likely)


def names_in_cmake_files(tree: Path, names: Iterable[str]) -> set[str]:
    """Those of the names that some CMake file of the tree mentions.

    A project may read a variable that it never declares: OpenBLAS does so with NO_LAPACK.
    """
    missing = set(names)
    found: set[str] = set()
    for folder, folders, files in os.walk(tree) if missing else ():
        # What CMake itself wrote mentions every name that it was given.
        folders[:] = [name for name in folders if name not in (".git", "CMakeFiles")]
        for name in files:
            if name == "CMakeLists.txt" or name.endswith(".cmake"):
                text = Path(folder, name).read_text(encoding="utf-8", errors="replace")
                found |= missing & set(_WORD.findall(text))
                missing -= found
        if not missing:
            break
    return found


def judge_option(
    name: str,
    requested: Scalar,
    *,
    cache: Mapping[str, CacheEntry] | None,
    config: Mapping[str, str],
    is_torch: bool = False,
    excused: bool = False,
) -> OptionVerdict:
    """What became of one option: the finished module has the last word, then the cache."""
    asked = _text(requested)
    name = name.partition(":")[0]
    cached_as, wanted = name, asked
    if is_torch:
        cached_as = RENAMED.get(name, name)
        if name in IMPLIED and as_truth(asked):
            cached_as, wanted = IMPLIED[name]
    entry = cache.get(cached_as) if cache is not None else None
    cached = entry.value if entry is not None else None
    told = config.get(config_name(cached_as)) if is_torch else None

    def verdict(kind: OptionVerdictKind, why: str) -> OptionVerdict:
        return OptionVerdict(
            name=name, requested=asked, cache=cached, config=told, verdict=kind, why=why
        )

    if told is not None:
        if same_value(config_value(cached_as, wanted), told):
            return verdict("honoured", f"the finished module says {config_name(cached_as)}={told}")
        return verdict("overridden", f"the finished module says {config_name(cached_as)}={told}")
    if entry is not None:
        if not same_value(wanted, entry.value):
            return verdict("overridden", f"CMakeCache.txt has {cached_as}={entry.value}")
        if entry.declared or excused:
            return verdict("honoured", f"CMakeCache.txt has {cached_as}={entry.value}")
        return verdict(
            "unknown", "it reached CMakeCache.txt, and no CMake file of the project mentions it"
        )
    if cache is None:
        return verdict("unknown", "the build has no CMakeCache.txt")
    if excused:
        return verdict("unknown", "the recipe says that no CMakeCache.txt shows it")
    if is_torch and name in READ_FROM_ENVIRONMENT:
        return verdict("unknown", "it is read from the environment, and not kept")
    if is_torch and name in IMPLIED:
        return verdict("honoured", "off is what happens without it")
    return verdict("ignored", "it never reached CMakeCache.txt")


def _option_finding(verdict: OptionVerdict, path: Path | None) -> CheckFinding | None:
    if verdict.verdict == "overridden":
        return CheckFinding(
            check="options",
            level="failure",
            what=f"{verdict.name}={verdict.requested} was asked for and overridden",
            why=f"{verdict.why}; a dependency was not found, or an old cache was kept",
            mend="read the configure log for the reason, mend it, and build again with --force",
        )
    if verdict.verdict == "ignored":
        # What a project does not know cannot be switched on; off is what it already is.
        off = as_truth(verdict.requested) is False
        return CheckFinding(
            check="options",
            level="warning" if off else "failure",
            what=f"{verdict.name}={verdict.requested} was asked for and ignored",
            why=f"{verdict.why} ({path}): the project does not forward it, or has no such option",
            mend=f"take {verdict.name} out of the recipe, correct its name, or list it in verify.ignored-options",
        )
    if (
        verdict.verdict == "unknown"
        and verdict.cache is not None
        and as_truth(verdict.cache) is not False
    ):
        return CheckFinding(
            check="options",
            level="warning",
            what=f"{verdict.name}={verdict.requested} may have no effect",
            why=verdict.why,
            mend=f"look for {verdict.name} in the project's CMake files; correct the name, or list it in verify.ignored-options",
        )
    return None


def _text(value: Scalar) -> str:
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)


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
