"""Python packages of an environment: requirements, installer and base.

`resolv_conf_command` copies the DNS settings of the machine into a root folder before a step that uses
the network.
"""

from __future__ import annotations

from importlib import resources
from typing import Final

from torchyard.builds.environments.model import COMPONENT, EnvironmentRequest
from torchyard.builds.plan import Action, Command, Step, Variables, WriteFile


def resolv_conf_command(root: str) -> Command:
    """Return a command that copies the machine's resolver settings into the root.

    An existing link is replaced, not followed, because it would lead out of the root.
    """
    return Command(
        argv=("cp", "-L", "--remove-destination", "/etc/resolv.conf", f"{root}/etc/resolv.conf"),
        inside_root=False,
    )


_LAYER_PROGRAM: Final = "layer-packages.py"


def required_packages(request: EnvironmentRequest) -> tuple[str, ...]:
    """Return the requirements of the recipe and all components, without duplicates."""
    return tuple(dict.fromkeys((*request.table.venv.packages, *request.packages)))


def pip_installer(python: str) -> tuple[str, ...]:
    """Return the install command of the interpreter's pip."""
    return (python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check")


def packages_steps(
    request: EnvironmentRequest,
    installer: tuple[str, ...],
    variables: Variables,
    *,
    root: str = "",
) -> tuple[Step, ...]:
    """Return the step that installs the required packages; empty if there are none."""
    packages = required_packages(request)
    if not packages:
        return ()
    before = (resolv_conf_command(root),) if root else ()
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
    """Return the variables that activate a virtual environment, without ~/.local packages."""
    return (
        ("VIRTUAL_ENV", environment),
        # An environment with system packages would also use those in ~/.local.
        ("PYTHONNOUSERSITE", "1"),
        *layer_variables(request),
    )


def layer_actions(
    request: EnvironmentRequest, python: str, *, base: str = ""
) -> tuple[Action, ...]:
    """Return actions that make the packages of the base visible, after those of the environment.

    `base` is the interpreter to start in the step, if it is not the one in the recipe.
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
    """Return the variable that constrains all pip runs to the torch of the base.

    The file is given as a URL, because pip splits the variable at spaces.
    """
    if not request.table.base:
        return ()
    return (("PIP_CONSTRAINT", (request.folder / "base-constraints.txt").as_uri()),)
