"""Convert downloads, apt and checks, which only Torchyard performs, to plain commands and files.

Then every action of a plan is a command or a file, which all formats can express. Other features of
the runner (sandbox, meter, checks of options and libraries) cannot be exported;
`without_own_steps` removes the steps that only Torchyard needs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Final

from torchyard.builds.plan import (
    Action,
    AptSources,
    Command,
    Component,
    Download,
    Plan,
    SdistDownload,
    Verify,
    WriteFile,
)
from torchyard.builds.sources.fetch_plan import local_path

PlainAction = Command | WriteFile

_CHECK_SHA256: Final = """printf '%s  %s\\n' "$1" "$2" | sha256sum -c -"""
_GLOB: Final = re.compile(r"[*?\[]")
# `*` of find also matches `/`, so `**` works, but may match slightly more.
_FIND: Final = """cd "$1" && [ -n "$(find . -path "./$2" -print -quit)" ]"""
_TAKE_ONLY_FILE: Final = """set -- "$1" "$2" "$1"/*
if [ $# -ne 3 ]; then echo "pip left more than one file in $1" >&2; exit 1; fi
mv -T -- "$3" "$2" && rmdir -- "$1\""""
_FREEZE: Final = """"$1" -m pip freeze --all >"$2.part" && mv -T -- "$2.part" "$2\""""


def plain_actions(plan: Plan, action: Action) -> tuple[PlainAction, ...]:
    """Return commands and files that are equivalent to an action."""
    if isinstance(action, Command | WriteFile):
        return (action,)
    if isinstance(action, Download):
        return _download(action)
    if isinstance(action, SdistDownload):
        return _sdist(action, _python_for_sdist(plan, action.path))
    if isinstance(action, AptSources):
        return _apt(action)
    return verify_actions(plan, action)


def freeze_command(plan: Plan, path: str) -> Command | None:
    """Return a command that lists all Python packages; None if the plan has no Python."""
    python = next((part.python for part in plan.components if part.python), "")
    if not python:
        return None
    return Command(argv=("sh", "-c", _FREEZE, "freeze", python, path))


def verify_actions(plan: Plan, action: Verify) -> tuple[PlainAction, ...]:
    """Return the checks that need no Torchyard, run in an empty folder."""
    argvs = check_commands(plan.component(action.component))
    folder = f"{plan.folder}/check"
    make = (("rm", "-rf", "--", folder), ("mkdir", "-p", "--", folder)) if argvs else ()
    return (
        *(Command(argv=argv) for argv in make),
        *(Command(argv=argv, folder=folder) for argv in argvs),
    )


def check_commands(component: Component) -> tuple[tuple[str, ...], ...]:
    """Return commands that check files, import and smoke tests, to be run in an empty folder."""
    table = component.recipe.verify
    argvs = [_file_check(component.prefix, name) for name in table.files]
    snippets = [f"import {table.import_name}"] if table.import_name else []
    snippets += [test.python.strip("\n") for test in table.smoke]
    if not component.python:
        return tuple(argvs)
    # -I: nothing from the working folder, PYTHONPATH or user packages can be imported.
    return (*argvs, *((component.python, "-I", "-c", text) for text in snippets))


def _file_check(prefix: str, pattern: str) -> tuple[str, ...]:
    if not _GLOB.search(pattern):
        return ("test", "-e", str(PurePosixPath(prefix, pattern)))
    parts = PurePosixPath(pattern).parts
    plain = [*takewhile(lambda part: not _GLOB.search(part), parts)]
    folder = PurePosixPath(prefix, *plain)
    return ("sh", "-c", _FIND, "find", str(folder), "/".join(parts[len(plain) :]))


def _download(action: Download) -> tuple[PlainAction, ...]:
    path = PurePosixPath(action.path)
    part = f"{path.name}.part"
    local = local_path(action.url)
    fetch: tuple[str, ...]
    if local is None:
        fetch = ("curl", "--fail", "--location", "--retry", "3", "--output", part, action.url)
    else:
        fetch = ("cp", "--", str(local), part)
    folder = str(path.parent)
    return (
        Command(argv=("mkdir", "-p", "--", folder), inside_root=False),
        Command(argv=fetch, folder=folder, inside_root=False),
        _check_sha256(action.sha256, part, folder),
        Command(argv=("mv", "-T", "--", part, path.name), folder=folder, inside_root=False),
    )


def _sdist(action: SdistDownload, python: str) -> tuple[PlainAction, ...]:
    path = PurePosixPath(action.path)
    folder, arrived = str(path.parent), f"{path.name}.arrived"
    # For this package only: `:all:` would also apply to its build requirements.
    pip = (python, "-m", "pip", "download", "--no-deps", "--no-binary", action.name)
    actions = [
        Command(argv=("rm", "-rf", "--", arrived), folder=folder, inside_root=False),
        Command(
            argv=(*pip, "--dest", arrived, "--", f"{action.name}=={action.version}"), folder=folder
        ),
        Command(
            argv=("sh", "-c", _TAKE_ONLY_FILE, "take", arrived, path.name),
            folder=folder,
            inside_root=False,
        ),
    ]
    if action.sha256:
        actions.append(_check_sha256(action.sha256, path.name, folder))
    return tuple(actions)


def _python_for_sdist(plan: Plan, path: str) -> str:
    """Return the interpreter of the component of an sdist, whose environment exists already.

    An interpreter in a root folder does not run on the machine, where sources are fetched.
    """
    if any(step.root for step in plan.steps):
        return "python3"
    owners = [
        part for part in plan.components if path.startswith((f"{part.source}/", f"{part.source}."))
    ]
    return next((part.python for part in owners if part.python), "python3")


def _apt(action: AptSources) -> tuple[PlainAction, ...]:
    script = f"{action.folder}/write-apt-sources.sh"
    text = resources.files(__package__).joinpath("apt_sources.sh").read_text(encoding="utf-8")
    kinds = "deb deb-src" if action.sources else "deb"
    return (
        WriteFile(path=script, text=text),
        Command(argv=("sh", script, action.folder, action.suite, kinds), inside_root=False),
    )


def _check_sha256(sha256: str, name: str, folder: str) -> Command:
    # Without the folder: sha256sum interprets backslashes in a path as escapes.
    argv = ("sh", "-c", _CHECK_SHA256, "check", sha256, name)
    return Command(argv=argv, folder=folder, inside_root=False)


def without_own_steps(plan: Plan) -> Plan:
    """Remove steps that do not affect the result (the meter) or that only Torchyard can run."""
    dropped = {
        step.name: step.needs
        for step in plan.steps
        if not step.counts or not any(plain_actions(plan, action) for action in step.actions)
    }
    return replace(
        plan,
        steps=tuple(
            replace(step, needs=_needs(step.needs, dropped))
            for step in plan.steps
            if step.name not in dropped
        ),
    )


def _needs(needs: tuple[str, ...], dropped: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Replace dropped steps by the steps that they need."""
    resolved: list[str] = []
    for name in needs:
        resolved += _needs(dropped[name], dropped) if name in dropped else (name,)
    return tuple(dict.fromkeys(resolved))
