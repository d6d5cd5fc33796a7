"""A virtual environment, created by uv or by Python itself, or an existing interpreter unchanged.

uv is preferred if it is available and finds the same packages. It reads neither the variables nor
the files of pip: if only those configure an index, pip is used. Messages name the location of such
settings, not their values, because these may be secret.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from torchyard.builds.environments.base_interpreter import (
    Base,
    Interpreter,
    find_base,
    find_interpreter,
    find_program,
)
from torchyard.builds.environments.model import (
    COMPONENT,
    SYSTEM_PATH,
    EnvironmentPlan,
    EnvironmentRequest,
    layer_actions,
    ordered_variables,
    packages_steps,
    pip_installer,
    python_variables,
    required_packages,
)
from torchyard.builds.plan import Action, Command, Step, Variables
from torchyard.core.toml_file import read_toml
from torchyard.errors import UsageError

_SETTINGS: Final = (
    "cert",
    "client-cert",
    "extra-index-url",
    "find-links",
    "index-url",
    "no-index",
    "proxy",
    "trusted-host",
)
_UV_INDEX_VARIABLES: Final = (
    "UV_DEFAULT_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_INDEX",
    "UV_INDEX_URL",
)

_UV_INDEX_KEYS: Final = frozenset(
    ("index", "index-url", "extra-index-url", "find-links", "no-index")
)


def uv_has_own_index(environ: Mapping[str, str]) -> bool:
    """Whether a package index is configured for uv, in a variable or its configuration file."""
    if any(environ.get(name) for name in _UV_INDEX_VARIABLES):
        return True
    config = Path(environ.get("XDG_CONFIG_HOME") or f"{environ.get('HOME') or '/'}/.config")
    file = Path(environ.get("UV_CONFIG_FILE") or config / "uv" / "uv.toml")
    try:
        settings = read_toml(file)
    except UsageError:
        return False
    tables = (settings, settings.get("pip"))
    return any(isinstance(table, dict) and not _UV_INDEX_KEYS.isdisjoint(table) for table in tables)


def pip_setting_locations(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return variables (`PIP_FIND_LINKS`) and files (`/etc/pip.conf: index-url`) that set an index."""
    locations = [
        name
        for setting in _SETTINGS
        if environ.get(name := "PIP_" + setting.upper().replace("-", "_"))
    ]
    for file in _files(environ):
        names = _settings_of(file)
        if names:
            locations.append(f"{file}: {', '.join(names)}")
    return tuple(locations)


def _files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the configuration files of pip, in order of precedence: machine, user, PIP_CONFIG_FILE."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return ()
    home = Path(environ.get("HOME") or "/")
    machine = [Path(folder) / "pip" for folder in environ.get("XDG_CONFIG_DIRS", "").split(":")]
    folders = [
        *(folder for folder in machine if folder.is_absolute()),
        Path("/etc"),
        home / ".pip",
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip",
    ]
    files = [folder / "pip.conf" for folder in folders]
    return (*files, Path(named)) if named else tuple(files)


def _settings_of(file: Path) -> list[str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return []
    names = {
        name.replace("_", "-")
        for section in parser.sections()
        if section in ("global", "install", "download")
        for name, value in parser.items(section)
        if value
    }
    return sorted(names.intersection(_SETTINGS))


def plan_venv(request: EnvironmentRequest) -> EnvironmentPlan:
    """Return the plan: create `env` in the build folder and install the requirements.

    With a base in a root folder, the environment is created and used in that root.
    """
    where, table = request.where, request.table
    base = find_base(table.base, request.environ, where=f"{where}.base") if table.base else None
    interpreter = _interpreter(request, base)
    uv, notes = _choose_uv(request)
    if base:
        notes = (*notes, *_base_notes(base))
    environment = str(request.folder / "env")
    python = f"{environment}/bin/python"
    base_variables = dict(base.variables) if base else {}
    modules = base_variables.get("PYTHONPATH")
    variables = ordered_variables(
        request,
        programs=(f"{environment}/bin",),
        loaded=(base_variables["LD_LIBRARY_PATH"],) if "LD_LIBRARY_PATH" in base_variables else (),
        prefixes=(environment,),
        more=(
            *python_variables(request, environment),
            *((("PYTHONPATH", modules),) if modules else ()),
        ),
    )
    installer = _uv_installer(uv, environment) if uv else pip_installer(python)
    root = base.root if base else ""
    return EnvironmentPlan(
        kind="venv",
        python=python,
        root=root,
        steps=(
            _python_step(request, interpreter, uv, variables, base),
            *packages_steps(request, installer, variables, root=root),
        ),
        variables=variables,
        missing=_missing(interpreter, uv),
        notes=notes,
    )


def _interpreter(request: EnvironmentRequest, base: Base | None) -> Interpreter:
    """Return the interpreter: the one given, else that of the base, else Torchyard's."""
    named = request.table.python
    if base and (base.root or not named):
        if named:
            raise UsageError(
                f"{request.where}.python: the base runs in the root folder {base.root}, so only its "
                "own interpreter can be used",
                hint="remove environment.python",
            )
        return base.interpreter
    return find_interpreter(named, request.environ, where=f"{request.where}.python")


def _base_notes(base: Base) -> tuple[str, ...]:
    owner = f"the build {base.build}" if base.build else base.interpreter.path
    note = f"uses the packages of {owner}, which is not changed"
    return (note, f"the build runs in its root, {base.root}") if base.root else (note,)


def _choose_uv(request: EnvironmentRequest) -> tuple[str, tuple[str, ...]]:
    """Return the path of uv, empty if it is not used, and notes with the reason."""
    uv = find_program("uv", request.environ)
    if not uv:
        return "", ()
    if request.table.base:
        # uv considers the environment's own folder only: it would install a second torch.
        return "", ("pip is used instead of uv: uv does not see the packages of the base",)
    locations = pip_setting_locations(request.environ)
    if locations and not uv_has_own_index(request.environ):
        return "", (
            f"pip is used instead of uv: uv ignores the settings of pip ({'; '.join(locations)})",
        )
    return uv, (f"the environment is created by uv ({uv})",)


def _python_step(
    request: EnvironmentRequest,
    interpreter: Interpreter,
    uv: str,
    variables: Variables,
    base: Base | None,
) -> Step:
    """Return the step that creates the environment from scratch."""
    environment = str(request.folder / "env")
    base_build = base if base and base.build else None
    root = base.root if base else ""
    create_actions: tuple[Action, ...]
    if uv:
        # Removed first, because uv replaces an environment, prompts or fails, depending on its
        # version. With pip, because projects run `python -m pip`; not with `--seed`, which uses the
        # public index whatever uv is configured for (seen with uv 0.13.7).
        create_actions = (
            Command(argv=("rm", "-rf", "--", environment)),
            Command(argv=(uv, "venv", "--python", interpreter.path, environment)),
            Command(argv=(*_uv_installer(uv, environment), "--", "pip")),
        )
    else:
        create_actions = (
            Command(argv=(interpreter.path, "-m", "venv", "--clear", "--", environment)),
        )
    return Step(
        name=f"{COMPONENT}/python",
        component=COMPONENT,
        title=f"create the virtual environment (Python {interpreter.version or 'not found'})",
        actions=(
            *create_actions,
            *layer_actions(
                request,
                f"{environment}/bin/python",
                base=base_build.interpreter.path if base_build else "",
            ),
        ),
        variables=tuple(pair for pair in variables if pair[0] != "PIP_CONSTRAINT"),
        network=True,
        root=root,
        # With a root, `bin/python` is a link that is valid inside the root only.
        creates=(
            *(() if root else (f"{environment}/bin/python",)),
            f"{environment}/pyvenv.cfg",
        ),
        inputs=(
            ("python", f"{interpreter.implementation} {interpreter.version}"),
            *((("base", base_build.checksum),) if base_build else ()),
        ),
    )


def _uv_installer(uv: str, environment: str) -> tuple[str, ...]:
    return (uv, "pip", "install", "--python", f"{environment}/bin/python")


def _missing(interpreter: Interpreter, uv: str) -> tuple[str, ...]:
    if uv:
        # uv searches more locations than PATH, and can download an interpreter.
        return ()
    if not interpreter.version:
        return (f"{interpreter.path} (install it, or give another environment.python)",)
    if not interpreter.has_pip:
        minor = interpreter.version.rpartition(".")[0]
        return (f"ensurepip of {interpreter.path} (apt-get install python{minor}-venv)",)
    return ()


def plan_current(request: EnvironmentRequest) -> EnvironmentPlan:
    """Return a plan without steps, with variables that put the interpreter first."""
    named, packages = request.table.python, required_packages(request)
    if request.table.base:
        raise UsageError(
            f"{request.where}.base: the environment 'current' cannot have a base",
            hint='use = "venv" creates an environment with that base',
        )
    if not named:
        if packages:
            raise UsageError(
                f"{request.where}.python is missing, but the build requires {', '.join(packages)}",
                hint='give environment.python, or use = "venv" to have them installed',
            )
        return EnvironmentPlan(kind="current", python="", variables=ordered_variables(request))
    interpreter = find_interpreter(named, request.environ, where=f"{request.where}.python")
    if not interpreter.version:
        return EnvironmentPlan(
            kind="current",
            python=interpreter.path,
            variables=ordered_variables(request),
            missing=(f"{interpreter.path} (install it, or give another environment.python)",),
        )
    notes = [f"the build uses {interpreter.path} unchanged (Python {interpreter.version})"]
    if packages:
        notes.append(f"not installed into your environment: {', '.join(packages)}")
    return EnvironmentPlan(
        kind="current",
        python=interpreter.path,
        variables=_variables(request, Path(interpreter.path).parent),
        notes=tuple(notes),
    )


def _variables(request: EnvironmentRequest, programs: Path) -> Variables:
    if str(programs) in SYSTEM_PATH.split(":"):
        return ordered_variables(request)
    prefix = str(programs.parent)
    if (programs.parent / "pyvenv.cfg").is_file():
        more: Variables = (("VIRTUAL_ENV", prefix), ("PYTHONNOUSERSITE", "1"))
    elif (programs.parent / "conda-meta").is_dir():
        more = (("CONDA_PREFIX", prefix),)
    else:
        more = ()
    return ordered_variables(request, programs=(str(programs),), prefixes=(prefix,), more=more)
