"""Python packages of an environment: which, by which installer, and over which base.

`names_command` copies the DNS settings of the machine into a root folder before a step that uses
the network.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

from torchyard.builds.environments.model import COMPONENT, EnvironmentRequest
from torchyard.builds.plan import Action, Command, Step, Variables, WriteFile


def names_command(root: str) -> Command:
    """Bring the machine's resolver settings into the root, before a step that uses the network.

    A link there would lead out of the root, so it is replaced and not followed.
    """
    return Command(
        argv=("cp", "-L", "--remove-destination", "/etc/resolv.conf", f"{root}/etc/resolv.conf"),
        inside_root=False,
    )


_LAYER_PROGRAM: Final = "layer-packages.py"


def wanted_packages(request: EnvironmentRequest) -> tuple[str, ...]:
    """The recipe's packages and those of all components, each once, in a stable order."""
    return tuple(dict.fromkeys((*request.table.venv.packages, *request.packages)))


def pip_installer(python: str) -> tuple[str, ...]:
    """The pip of that interpreter, without questions."""
    return (python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check")


def packages_steps(
    request: EnvironmentRequest,
    installer: tuple[str, ...],
    variables: Variables,
    *,
    root: str = "",
) -> tuple[Step, ...]:
    """The step that installs the wanted packages; none where nothing is wanted."""
    packages = wanted_packages(request)
    if not packages:
        return ()
    before = (names_command(root),) if root else ()
    return (
        Step(
            name=f"{COMPONENT}/packages",
            component=COMPONENT,
            title="install the Python packages",
            actions=(*before, Command(argv=(*installer, "--", *packages))),
            needs=(f"{COMPONENT}/python",),
            variables=variables,
            network=True,
            root=root,
        ),
    )


def python_variables(request: EnvironmentRequest, environment: str) -> Variables:
    """What makes `environment` the active virtual environment, without the user's own packages."""
    return (
        ("VIRTUAL_ENV", environment),
        # An environment that sees the system's packages would see ~/.local as well.
        ("PYTHONNOUSERSITE", "1"),
        *layer_variables(request),
    )


def layer_actions(
    request: EnvironmentRequest, python: str, *, base: str = ""
) -> tuple[Action, ...]:
    """Let the environment see the packages of its base, behind its own.

    `base` is the interpreter as the step starts it, where that is not what the recipe names.
    """
    base = base or request.table.base
    if not base:
        return ()
    program = str(request.folder / _LAYER_PROGRAM)
    text = resources.files(__package__).joinpath("layer_packages.py").read_text(encoding="utf-8")
    constraints = str(request.folder / "base-constraints.txt")
    return (
        WriteFile(path=program, text=text, fingerprinted=False),
        Command(argv=(python, program, base, constraints)),
    )


def layer_variables(request: EnvironmentRequest) -> Variables:
    """Hold every pip of the build to the torch that the base has.

    As an address: pip cuts the variable at spaces, and a folder may have some.
    """
    if not request.table.base:
        return ()
    return (("PIP_CONSTRAINT", (request.folder / "base-constraints.txt").as_uri()),)
