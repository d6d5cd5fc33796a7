"""From options to a search: what is searched, where programs run, and how rounds are measured."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from torchyard.bench.commands.options import spec_of_option
from torchyard.bench.request import Request as BenchRequest
from torchyard.bench.study_assembly import assemble
from torchyard.bench.workload_text import choose_workload
from torchyard.bisect.delta import set_name
from torchyard.bisect.environments import PackageEnvironments, available_versions, parse_releases
from torchyard.bisect.model import Kind, Request, Revision, SearchFolder, Setting
from torchyard.bisect.places import GitPlaces, Places, ReleasePlaces, SettingPlaces, open_repository
from torchyard.bisect.prior import without_code
from torchyard.bisect.program_rounds import ProgramRounds
from torchyard.bisect.workload_rounds import WorkloadRounds
from torchyard.cli.output import print_message
from torchyard.core.study import Scalar, Study
from torchyard.core.toml_file import read_toml
from torchyard.errors import NothingToDo, UsageError
from torchyard.sweep.executors.slurm.job_options import read_options

_TABLES: Final[dict[str, Kind]] = {
    "variables": "variable",
    "packages": "package",
    "values": "value",
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BUILD: Final = "build:"
_FORM: Final = 'write "NAME=VALUE NAME=VALUE", build:NAME, or a TOML file with [variables], [packages] or [values]'
_MOST: Final = 1000

Side = dict[tuple[Kind, str], str]


def read_settings(good: str, bad: str) -> tuple[Setting, ...]:
    """Return all settings of both sides, differing or not; raise if none differs."""
    sides = [_side(text) for text in (good, bad)]
    keys = list(dict.fromkeys([*sides[0], *sides[1]]))
    settings = tuple(
        Setting(
            kind=kind, name=name, good=sides[0].get((kind, name)), bad=sides[1].get((kind, name))
        )
        for kind, name in keys
    )
    if len(settings) > _MOST:
        raise UsageError(f"--settings: more than {_MOST} settings", hint="remove equal settings")
    if all(one.good == one.bad for one in settings):
        raise NothingToDo("--settings: both sides are the same", hint="give two different sides")
    return settings


def _side(text: str) -> Side:
    if text.startswith(_BUILD):
        return _build_packages(text.removeprefix(_BUILD))
    if text.endswith(".toml"):
        return _file(Path(text))
    side: Side = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--settings: {text!r} cannot be split", why=str(error), hint=_FORM
        ) from error
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise UsageError(f"--settings: {word!r} is not NAME=VALUE", hint=_FORM)
        side["variable", name] = value
    return side


def _file(path: Path) -> Side:
    side: Side = {}
    for table, values in read_toml(path, what="settings file").items():
        kind = _TABLES.get(table)
        if kind is None or not isinstance(values, dict):
            raise UsageError(
                f"{path}: {table!r} is not a table of settings", hint=f"use {', '.join(_TABLES)}"
            )
        for name, value in values.items():
            if isinstance(value, (dict, list)) or not _is_name(kind, name):
                raise UsageError(
                    f"{path}: {table}.{name} is not a setting", hint='write NAME = "VALUE"'
                )
            side[kind, name] = str(value).lower() if isinstance(value, bool) else str(value)
    return side


def _is_name(kind: Kind, name: str) -> bool:
    if kind == "package":
        return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None
    return _VARIABLE.fullmatch(name) is not None


def _build_packages(name: str) -> Side:
    """Return the packages of a build that come from an index, and its run-time variables."""
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.record import find_build

    record = find_build(name, BuildsDirectory.default()).record
    side: Side = {}
    if record is not None:
        side |= {("package", one.name): one.version for one in record.packages if not one.origin}
        side |= {("variable", key): value for key, value in record.variables.items()}
    return side


_WORKLOAD_METRICS: Final = ("compile-time", "accuracy")


def request_of_options(options: dict[str, Any], *, why: bool) -> tuple[Request, list[Revision]]:
    """Return the request and the revisions or releases to search."""
    axes = [name for name in ("good", "releases", "settings") if options[name]]
    if len(axes) != 1:
        raise UsageError(
            "give one of --good, --releases and --settings",
            why="they search revisions, releases and settings",
            hint="`torchyard bisect --help` shows an example of each",
        )
    python = str((options["python"] or Path(sys.executable)).absolute())
    shared = {key: options[key] for key in ("command", "setup", "metric")}
    shared["study"] = _study(options, why=why)
    shared |= _recipe(options)
    if options["packages"] and not options["releases"]:
        raise UsageError("--with has no effect", hint="it applies to --releases")
    if options["settings"]:
        settings = read_settings(*options["settings"])
        packages = any(one.kind == "package" for one in settings)
        if options["setup"] and not packages:
            raise UsageError("--setup has no environment to run in", hint="use it with [packages]")
        if shared["study"] is not None:
            _check_settings(settings)
        return Request(settings=settings, python=python if packages else "", **shared), []
    if options["releases"]:
        package, text = parse_releases(options["releases"])
        sources = bool(options["recipe"])
        versions = available_versions(python, package, text, sources=sources)
        if len(versions) < 2:  # noqa: PLR2004
            raise NothingToDo(
                f"--releases: {len(versions)} versions of {package} in {text}",
                hint="`pip index versions` lists versions",
            )
        releases = f"{package}:{','.join(versions)}"
        request = Request(
            releases=releases,
            packages=tuple(options["packages"]),
            python="" if sources else python,
            **shared,
        )
        _check_recipe(request, versions[0])
        return request, [Revision(commit=one, subject=package) for one in versions]
    repository = open_repository(options["repo"])
    request = Request(
        repo=str(repository.top / repository.prefix),
        good=repository.commit(options["good"], option="--good"),
        bad=repository.commit(options["bad"] or "HEAD", option="--bad"),
        python=str(options["python"] or ""),
        **shared,
    )
    _check_recipe(request, request.good)
    return request, repository.revisions(request.good, request.bad)


def _recipe(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a request that name a recipe."""
    recipe = options["recipe"] or ""
    if not recipe:
        if options["build_settings"]:
            raise UsageError("--set has no effect", hint="it applies to --recipe")
        return {}
    useless = [f"--{name}" for name in ("settings", "python") if options[name]]
    useless += ["--with"] * bool(options["packages"])
    if useless:
        raise UsageError(
            f"{useless[0]} does not apply to --recipe",
            hint="use --set environment.python=..., environment.base=... or "
            "environment.venv.packages+=...",
        )
    if "/" in recipe or recipe.endswith(".toml"):
        recipe = str(Path(recipe).expanduser().absolute())
    return {"recipe": recipe, "build_settings": tuple(options["build_settings"])}


def _check_recipe(request: Request, name: str) -> None:
    if request.recipe:
        from torchyard.bisect.recipe_places import check_build

        check_build(request, name)


def _study(options: dict[str, Any], *, why: bool) -> Study | None:
    """Return the study of --workload; None for a program."""
    metric, text = options["metric"], options["workload"]
    if bool(options["command"]) == bool(text):
        raise UsageError("give one of --command and --workload", hint='such as --command "./bench"')
    if text is None:
        useless = [f"--{name}" for name in ("variant", "mode", "threads") if options[name]]
        useless += ["--why"] * why + [f"--metric {metric}"] * (metric in _WORKLOAD_METRICS)
        if useless:
            raise UsageError(
                f"{useless[0]} needs --workload",
                why="a program is run as it is",
                hint="use `--metric printed` or `--metric failure` for what the program measures itself",
            )
        return None
    if metric == "printed" or (why and metric != "time"):
        raise UsageError(
            f"--metric {metric} does not apply" + (" to --why" if why else " to --workload"),
            hint="use --metric time",
        )
    here = Path.cwd()
    study = assemble(
        BenchRequest(
            workloads=(choose_workload(spec_of_option(text, "--workload", here)),),
            baseline=spec_of_option(options["variant"] or "eager", "--variant", here),
            modes=(options["mode"],) if options["mode"] else (),
            settings={} if options["threads"] is None else {"threads": options["threads"]},
        ),
        here=sys.executable,
    )
    if metric == "compile-time" and study.baseline.backend == "eager":
        raise UsageError("eager code is not compiled", hint="add --variant inductor")
    return replace(study, candidates=(), workloads=study.workloads[:1])


def _check_settings(settings: Sequence[Setting]) -> None:
    """Raise unless the settings can be those of a target."""
    for one in settings:
        if one.kind == "value":
            raise UsageError("--workload has no [values]", hint="use [variables] and [packages]")
        if None in (one.good, one.bad) and one.kind == "variable" and one.name in os.environ:
            raise UsageError(
                f"{one.name} is set, but one side of --settings does not set it",
                hint=f"`unset {one.name}`, or give it a value on both sides",
            )


def places_of(request: Request, folder: SearchFolder, *, quiet: bool) -> Places:
    """Return where programs of a request run; `quiet` shows no progress of builds and installations."""
    if request.recipe:
        from torchyard.bisect.recipe_places import RecipePlaces
        from torchyard.builds.commands.progress_display import show_build_progress

        progress = partial(show_build_progress, quiet=quiet)
        return RecipePlaces(request=request, folder=folder, progress=progress)
    environments = PackageEnvironments(python=request.python, setup=request.setup)
    if not quiet:
        environments = replace(environments, say=print_message)
    if request.settings:
        return SettingPlaces(settings=request.settings, environments=environments)
    if request.releases:
        return ReleasePlaces(
            package=request.releases.partition(":")[0],
            others=request.packages,
            environments=environments,
        )
    return GitPlaces(
        repository=open_repository(Path(request.repo)), folder=folder, python=request.python
    )


def unlikely_of(request: Request) -> frozenset[str]:
    """Return the revisions of a git range that touch no code."""
    if not request.repo:
        return frozenset()
    files = open_repository(Path(request.repo)).files(request.good, request.bad)
    workload = "" if request.study is None else request.study.workloads[0].name
    named = f"{request.command} {request.setup} {workload}"
    return frozenset(name for name, touched in files.items() if without_code(touched, named))


def rounds_of(
    request: Request,
    places: Places,
    folder: SearchFolder,
    *,
    limit_s: float,
    signatures: bool = True,
) -> ProgramRounds:
    """Return how rounds are measured on this machine."""
    if request.study is None:
        return ProgramRounds(request, places, folder, limit_s=limit_s)
    good = request.good or request.releases.partition(":")[2].partition(",")[0]
    if request.settings:
        good = set_name(0, sum(one.good != one.bad for one in request.settings))
    return WorkloadRounds(
        request,
        request.study,
        places,
        folder,
        limit_s=limit_s,
        good=good,
        signatures=signatures and not request.settings,
    )


def slurm_options(options: dict[str, Any]) -> list[tuple[str, Scalar]] | None:
    """Return the options of Slurm; None to measure on this machine."""
    if options["executor"] == "local":
        if options["slurm"]:
            raise UsageError("--slurm has no effect", hint="add --executor slurm")
        return None

    parts = [text.partition("=") for text in options["slurm"]]
    pairs: list[tuple[str, Scalar]] = [
        (name.strip(), value if equals else True) for name, equals, value in parts
    ]
    read_options(pairs)
    return pairs
