"""A virtual environment, made by uv where it is and can see the packages, else by Python itself."""

from __future__ import annotations

from torchyard.build.environments.base import Base, find_base
from torchyard.build.environments.contract import COMPONENT, EnvironmentPlan, EnvironmentRequest
from torchyard.build.environments.pip_settings import places_of_pip_settings, uv_has_own_index
from torchyard.build.environments.programs import Interpreter, find_interpreter, find_program
from torchyard.build.environments.python_packages import (
    layer_actions,
    packages_steps,
    pip_installer,
    python_variables,
)
from torchyard.build.environments.search_order import ordered_variables
from torchyard.core.build_plan import Action, Command, Step, Variables
from torchyard.core.recipe import EnvironmentKind
from torchyard.errors import UsageError

__all__ = ["Venv"]


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
