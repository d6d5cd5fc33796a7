"""A virtual environment, made by uv or by Python itself.

uv is used where it is available and sees the same packages. uv reads neither the variables nor the
files of pip: where only those lead to the packages, pip is used. Messages name the places of such
settings, never their values, because they hold secrets.
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
    EnvironmentPlan,
    EnvironmentRequest,
    ordered_variables,
)
from torchyard.builds.environments.python_packages import (
    layer_actions,
    packages_steps,
    pip_installer,
    python_variables,
)
from torchyard.builds.plan import Action, Command, Step, Variables
from torchyard.builds.recipe import EnvironmentKind
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
    """Whether the user has told uv itself where packages are, in a variable or in its file."""
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


def places_of_pip_settings(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables (`PIP_FIND_LINKS`) and files (`/etc/pip.conf: index-url`) that lead pip to packages."""
    places = [
        name
        for setting in _SETTINGS
        if environ.get(name := "PIP_" + setting.upper().replace("-", "_"))
    ]
    for file in _files(environ):
        names = _settings_of(file)
        if names:
            places.append(f"{file}: {', '.join(names)}")
    return tuple(places)


def _files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The files pip reads, in its order: of the machine, of the user, and the one that is named."""
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
    found = {
        name.replace("_", "-")
        for section in parser.sections()
        if section in ("global", "install", "download")
        for name, value in parser.items(section)
        if value
    }
    return sorted(found.intersection(_SETTINGS))


class Venv:
    """The environment kind `venv`."""

    kind: EnvironmentKind = "venv"

    def plan(self, request: EnvironmentRequest) -> EnvironmentPlan:
        """Make `env` below the plan's folder and install what the components want.

        Over a base that lives in a root folder it is made, and used, in that root.
        """
        where, table = request.where, request.table
        base = find_base(table.base, request.environ, where=f"{where}.base") if table.base else None
        interpreter = _interpreter(request, base)
        uv, notes = _choose_uv(request)
        if base:
            notes = (*notes, *_base_notes(base))
        environment = str(request.folder / "env")
        python = f"{environment}/bin/python"
        needed = dict(base.variables) if base else {}
        modules = needed.get("PYTHONPATH")
        variables = ordered_variables(
            request,
            programs=(f"{environment}/bin",),
            loaded=(needed["LD_LIBRARY_PATH"],) if "LD_LIBRARY_PATH" in needed else (),
            prefixes=(environment,),
            more=(
                *python_variables(request, environment),
                *((("PYTHONPATH", modules),) if modules else ()),
            ),
        )
        installer = _uv_installer(uv, environment) if uv else pip_installer(python)
        root = base.root if base else ""
        return EnvironmentPlan(
            kind=self.kind,
            python=python,
            root=root,
            steps=(
                _python_step(request, interpreter, uv, variables, base),
                *packages_steps(request, installer, variables, root=root),
            ),
            variables=variables,
            installer=installer,
            missing=_missing(interpreter, uv),
            notes=notes,
        )


def _interpreter(request: EnvironmentRequest, base: Base | None) -> Interpreter:
    """What makes the environment: the one that is named, else the base's, else the yard's."""
    named = request.table.python
    if base and (base.root or not named):
        if named:
            raise UsageError(
                f"{request.where}.python: the base runs in the root folder {base.root}, and only its "
                "own interpreter does",
                hint="leave environment.python out",
            )
        return base.interpreter
    return find_interpreter(named, request.environ, where=f"{request.where}.python")


def _base_notes(base: Base) -> tuple[str, ...]:
    whose = f"the build {base.build}" if base.build else base.interpreter.path
    sees = f"sees the packages of {whose}, which stays as it is"
    return (sees, f"the build runs in its root, {base.root}") if base.root else (sees,)


def _choose_uv(request: EnvironmentRequest) -> tuple[str, tuple[str, ...]]:
    """The path of uv or nothing, and why."""
    uv = find_program("uv", request.environ)
    if not uv:
        return "", ()
    if request.table.base:
        # uv looks at the environment's own folder only: it would install a second torch.
        return "", ("pip installs, not uv: uv does not see the packages of the base",)
    places = places_of_pip_settings(request.environ)
    if places and not uv_has_own_index(request.environ):
        return "", (
            f"pip installs, not uv: uv would not see the settings of pip ({'; '.join(places)})",
        )
    return uv, (f"uv makes the environment ({uv})",)


def _python_step(
    request: EnvironmentRequest,
    interpreter: Interpreter,
    uv: str,
    variables: Variables,
    base: Base | None,
) -> Step:
    """Always from nothing: an environment that an earlier run left half-made is not repaired."""
    environment = str(request.folder / "env")
    of_build = base if base and base.build else None
    root = base.root if base else ""
    make: tuple[Action, ...]
    if uv:
        # Removed first, because whether uv replaces an environment, asks or refuses depends on its
        # version. With pip inside, because projects start `python -m pip`; not by `--seed`, which
        # goes to the public index whatever uv is configured for (seen with uv 0.13.7).
        make = (
            Command(argv=("rm", "-rf", "--", environment)),
            Command(argv=(uv, "venv", "--python", interpreter.path, environment)),
            Command(argv=(*_uv_installer(uv, environment), "--", "pip")),
        )
    else:
        make = (Command(argv=(interpreter.path, "-m", "venv", "--clear", "--", environment)),)
    return Step(
        name=f"{COMPONENT}/python",
        component=COMPONENT,
        title=f"make the virtual environment (Python {interpreter.version or 'not found'})",
        actions=(
            *make,
            *layer_actions(
                request,
                f"{environment}/bin/python",
                base=of_build.interpreter.path if of_build else "",
            ),
        ),
        variables=tuple(pair for pair in variables if pair[0] != "PIP_CONSTRAINT"),
        network=True,
        root=root,
        # Of an interpreter in a root, `bin/python` is a link that leads nowhere outside of it.
        creates=(
            *(() if root else (f"{environment}/bin/python",)),
            f"{environment}/pyvenv.cfg",
        ),
        inputs=(
            ("python", f"{interpreter.implementation} {interpreter.version}"),
            *((("base", of_build.checksum),) if of_build else ()),
        ),
    )


def _uv_installer(uv: str, environment: str) -> tuple[str, ...]:
    return (uv, "pip", "install", "--python", f"{environment}/bin/python")


def _missing(interpreter: Interpreter, uv: str) -> tuple[str, ...]:
    if uv:
        # uv looks in more places than PATH, and can fetch an interpreter.
        return ()
    if not interpreter.version:
        return (f"{interpreter.path} (install it, or give another environment.python)",)
    if not interpreter.has_pip:
        minor = interpreter.version.rpartition(".")[0]
        return (f"ensurepip of {interpreter.path} (apt-get install python{minor}-venv)",)
    return ()
