"""Verify a finished component: all checks, one report.

The checks of files, import and options are here: expected files exist, the module imports outside
the source tree and is the one that was built, and each requested option took effect in CMake and in
the built module. PyTorch forwards only some variables to CMake, a project may change an option,
and an old CMakeCache.txt may override it, all silently.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Final

from torchyard.builds.cmake_cache import (
    CacheEntry,
    cmake_bool,
    cmake_value,
    find_cache,
    read_cache,
    same_value,
)
from torchyard.builds.plan import Component
from torchyard.builds.recipe import Scalar
from torchyard.builds.record import (
    CheckFinding,
    CheckResult,
    ImportedModule,
    OptionVerdict,
    OptionVerdictKind,
    VerifyReport,
)
from torchyard.builds.verify.linked_libraries import check_libraries
from torchyard.builds.verify.project_tests import check_smoke
from torchyard.builds.verify.target_python import (
    IMPLIED,
    READ_FROM_ENVIRONMENT,
    RENAMED,
    Check,
    EnvironmentFolders,
    ModuleFacts,
    RunInTarget,
    Subject,
    TargetPython,
    config_name,
    config_value,
    probe_environment,
    probe_module,
)
from torchyard.errors import StepFailed


def check_files(subject: Subject) -> CheckResult:
    """Check that every file pattern of the recipe matches a non-empty file."""
    component = subject.component
    findings = []
    for path in component.recipe.verify.files:
        # A project that installs nothing has its result in the tree: {tree}/build/libx.so.
        folder = component.tree if path.startswith(f"{component.tree}/") else component.prefix
        pattern = path.removeprefix(f"{component.tree}/")
        problem = _problem_with(subject.outside(folder), pattern)
        if problem:
            findings.append(
                CheckFinding(
                    check="files",
                    level="failure",
                    what=f"{pattern} is {problem}",
                    why=f"searched in {folder}",
                    fix=f"torchyard build ... --from {component.name}/build",
                )
            )
    return CheckResult(findings=tuple(findings))


def _problem_with(prefix: Path, pattern: str) -> str:
    if pattern.startswith("/") or ".." in Path(pattern).parts:
        return "not a relative path"
    matches = list(prefix.glob(pattern)) if prefix.is_dir() else []
    if not matches:
        return "missing"
    # A full disk leaves empty files. (A link is not followed: its target may exist only inside
    # the root.)
    plain = [path for path in matches if not path.is_symlink() and path.is_file()]
    if plain and len(plain) == len(matches) and all(path.stat().st_size == 0 for path in plain):
        return "empty"
    return ""


def check_import(subject: Subject) -> CheckResult:
    """Check import, origin and version of the module."""
    module = subject.module
    if module is None:
        return CheckResult()
    if not module.file:
        return CheckResult(findings=(_not_imported(module),))
    findings = [*_wrong_origin(subject, module), *_wrong_version(subject, module)]
    if module.failure:
        findings.append(
            _import_error(
                f"{module.name} imports, but the interpreter crashes at exit",
                why=module.failure,
                fix="check the linked libraries for two copies of one runtime",
            )
        )
    return CheckResult(
        findings=tuple(findings),
        imported=ImportedModule(name=module.name, version=module.version, file=module.file),
        config=module.config,
        loaded=module.loaded,
    )


def _not_imported(module: ModuleFacts) -> CheckFinding:
    if module.failure:
        return _import_error(
            f"{module.name} cannot be imported",
            why=module.failure,
            fix="look for known causes: torchyard build explain LOG",
        )
    return _import_error(
        f"{module.name} imports as an empty namespace package",
        why="Python found a folder of that name without __init__.py",
        fix="reinstall the wheel, and remove the leftover folder from site-packages",
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
                f"{module.name} is imported from the source tree, not from the environment",
                why=f"its file is {module.file}",
                fix="install the wheel; remove .pth files and editable installs of the tree",
            )
        ]
    if any(place and file.is_relative_to(place) for place in places):
        return []
    return [
        _import_error(
            f"{module.name} is not the copy that was built",
            why=f"its file {module.file} is not in {' or '.join(filter(None, places))}",
            fix=f"install the wheel from {component.wheels} into the environment",
        )
    ]


def _wrong_version(subject: Subject, module: ModuleFacts) -> list[CheckFinding]:
    expected = subject.component.recipe.version
    # `2.6.0` may report itself as 2.6.0, 2.6.0+cpu or 2.6.0a0+git1234; a branch name has no version.
    if not expected or not expected[0].isdigit() or not module.version:
        return []
    if module.version == expected or module.version.startswith(
        (f"{expected}+", f"{expected}a", f"{expected}.")
    ):
        return []
    return [
        CheckFinding(
            check="import",
            level="warning",
            what=f"{module.name} reports version {module.version}; the recipe builds {expected}",
            why="another copy is imported, or the project determines its version differently",
            fix="compare with the version of the wheel; set the version variable of the project",
        )
    ]


def _import_error(what: str, *, why: str, fix: str) -> CheckFinding:
    return CheckFinding(check="import", level="failure", what=what, why=why, fix=fix)


_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_options(subject: Subject) -> CheckResult:
    """Return a verdict for each option of the recipe; one without effect is a failure."""
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
        option_verdict(
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
    return CheckResult(findings=tuple(findings), options=verdicts)


def _cmakes_own(name: str) -> bool:
    """Return whether CMake itself reads the variable, even if no project mentions it."""
    return name.startswith("CMAKE_") or name in ("BUILD_SHARED_LIBS", "BUILD_TESTING")


def cache_of(component: Component) -> Path | None:
    """Return the CMakeCache.txt of a component; None for a project without one."""
    recipe = component.recipe
    tree = Path(component.tree)
    folder = recipe.cmake.folder if recipe.builder == "cmake" else ""
    likely = recipe.python.build_folder if recipe.builder == "python" else "build"
    return find_cache(tree, project=tree / folder, likely=likely)


def names_in_cmake_files(tree: Path, names: Iterable[str]) -> set[str]:
    """Return the names that a CMake file of the tree mentions.

    A project may read a variable that it never declares: OpenBLAS does so with NO_LAPACK.
    """
    missing = set(names)
    mentioned: set[str] = set()
    for folder, folders, files in os.walk(tree) if missing else ():
        # Files written by CMake mention every name that was passed to it.
        folders[:] = [name for name in folders if name not in (".git", "CMakeFiles")]
        for name in files:
            if name == "CMakeLists.txt" or name.endswith(".cmake"):
                text = Path(folder, name).read_text(encoding="utf-8", errors="replace")
                mentioned |= missing & set(_WORD.findall(text))
                missing -= mentioned
        if not missing:
            break
    return mentioned


def option_verdict(
    name: str,
    requested: Scalar,
    *,
    cache: Mapping[str, CacheEntry] | None,
    config: Mapping[str, str],
    is_torch: bool = False,
    excused: bool = False,
) -> OptionVerdict:
    """Return the verdict on one option, from the built module if it tells, else from the cache."""
    request = cmake_value(requested)
    name = name.partition(":")[0]
    cached_as, expected = name, request
    if is_torch:
        cached_as = RENAMED.get(name, name)
        if name in IMPLIED and cmake_bool(request):
            cached_as, expected = IMPLIED[name]
    entry = cache.get(cached_as) if cache is not None else None
    cached = entry.value if entry is not None else None
    built = config.get(config_name(cached_as)) if is_torch else None

    def verdict(kind: OptionVerdictKind, why: str) -> OptionVerdict:
        return OptionVerdict(
            name=name, requested=request, cache=cached, config=built, verdict=kind, why=why
        )

    if built is not None:
        why = f"the built module has {config_name(cached_as)}={built}"
        honoured = same_value(config_value(cached_as, expected), built)
        return verdict("honoured" if honoured else "overridden", why)
    if entry is not None:
        if not same_value(expected, entry.value):
            return verdict("overridden", f"CMakeCache.txt has {cached_as}={entry.value}")
        if entry.declared or excused:
            return verdict("honoured", f"CMakeCache.txt has {cached_as}={entry.value}")
        return verdict(
            "unknown", "it is in CMakeCache.txt, but no CMake file of the project mentions it"
        )
    if cache is None:
        return verdict("unknown", "the build has no CMakeCache.txt")
    if excused:
        return verdict("unknown", "according to the recipe it does not appear in CMakeCache.txt")
    if is_torch and name in READ_FROM_ENVIRONMENT:
        return verdict("unknown", "it is read from the environment and not stored")
    if is_torch and name in IMPLIED:
        return verdict("honoured", "off is the default")
    return verdict("ignored", "it is not in CMakeCache.txt")


def _option_finding(verdict: OptionVerdict, path: Path | None) -> CheckFinding | None:
    if verdict.verdict == "overridden":
        return CheckFinding(
            check="options",
            level="failure",
            what=f"{verdict.name}={verdict.requested} was requested but overridden",
            why=f"{verdict.why}; a dependency was not found, or a stale cache was used",
            fix="find the reason in the configure log, fix it, and build again with --force",
        )
    if verdict.verdict == "ignored":
        # An unknown option is off anyway.
        off = cmake_bool(verdict.requested) is False
        return CheckFinding(
            check="options",
            level="warning" if off else "failure",
            what=f"{verdict.name}={verdict.requested} was requested but ignored",
            why=f"{verdict.why} ({path}): the project does not forward it, or has no such option",
            fix=f"remove {verdict.name} from the recipe, correct its name, or list it in"
            " verify.ignored-options",
        )
    if (
        verdict.verdict == "unknown"
        and verdict.cache is not None
        and cmake_bool(verdict.cache) is not False
    ):
        return CheckFinding(
            check="options",
            level="warning",
            what=f"{verdict.name}={verdict.requested} may have no effect",
            why=verdict.why,
            fix=f"search the CMake files of the project for {verdict.name}; correct the name, or list it"
            " in verify.ignored-options",
        )
    return None


CHECKS: Final[tuple[Check, ...]] = (
    check_import,
    check_options,
    check_libraries,
    check_files,
    check_smoke,
)
"""In the order of the report."""


def perform_verify(
    component: Component,
    *,
    root: str,
    run: RunInTarget,
    smoke_limit_s: float = 300.0,
    device_folder: Path = Path("/dev"),
) -> VerifyReport:
    """Run all checks on a finished component. Problems are findings of the report."""
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
            device_folder=device_folder,
        )
        checked = [check(subject) for check in CHECKS]
    return VerifyReport(
        component=component.name,
        findings=tuple(finding for one in checked for finding in one.findings),
        imported=next((one.imported for one in checked if one.imported is not None), None),
        options=tuple(verdict for one in checked for verdict in one.options),
        config=next((one.config for one in checked if one.config), {}),
        libraries=tuple(library for one in checked for library in one.libraries),
        loaded=next((one.loaded for one in checked if one.loaded), ()),
        smoke=tuple(result for one in checked for result in one.smoke),
        duration_s=time.monotonic() - started,
    )


@contextmanager
def open_target(component: Component, run: RunInTarget) -> Iterator[TargetPython | None]:
    """Yield the interpreter of a component with an empty working directory; None if it has none.

    The directory is next to the wheels, because the folder of a build is visible in a root folder
    at the same path.
    """
    if not component.python:
        yield None
        return
    parent = Path(component.wheels).parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".verify-", dir=parent)
    except OSError as error:
        raise StepFailed(
            f"cannot create a folder in {parent}: {error.strerror}",
            hint="free disk space, or make the folder writable",
        ) from error
    with folder as name:
        yield TargetPython(python=component.python, run=run, folder=name)
