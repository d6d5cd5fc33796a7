"""A Python project with native code: its wheel, whatever the era of its front end.

PyTorch up to 2.7 is driven by setup.py, 2.8 to 2.13 by the setuptools backend, 2.14 and newer by
scikit-build-core; `python -m build --no-isolation` drives both backends. Which one a release has is
looked up by the planner; this module only turns it into commands.
"""

from __future__ import annotations

from torchyard.build.builders.site import Site, as_cmake, as_variable
from torchyard.core.build_plan import Command, Step

__all__ = ["FRONT_ENDS", "option_variables", "requirement_steps", "steps"]

FRONT_ENDS = {
    "setup.py": ("setup.py", "bdist_wheel", "--dist-dir"),
    "pep517": (
        *("-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check"),
        "--outdir",
    ),
}
"""Arguments after `python` that make a wheel; the folder for it follows."""


def steps(site: Site) -> tuple[Step, ...]:
    """Requirements, configure where the project can, wheel, install."""
    component, table = site.component, site.recipe.python
    variables = option_variables(site)
    made = list(requirement_steps(site))
    needs = (made[-1].name,) if made else site.needs
    if table.configure:
        made.append(
            site.step(
                "configure",
                "configure",
                (
                    # PyTorch skips configuring where a cache exists, and then ignores new options.
                    Command(
                        argv=("rm", "-f", f"{component.tree}/{table.build_folder}/CMakeCache.txt")
                    ),
                    Command(argv=(component.python, *table.configure), folder=component.tree),
                ),
                needs=needs,
                variables=variables,
                compiles=True,
            )
        )
        needs = (made[-1].name,)
    if table.install == "editable":
        made.append(_editable(site, needs, variables))
        return tuple(made)
    dist = str(site.dist)
    front_end = FRONT_ENDS[site.front_end or "pep517"]
    made.append(
        site.step(
            "build",
            "compile and pack the wheel",
            (
                Command(argv=("rm", "-rf", dist)),
                Command(argv=("mkdir", "-p", dist)),
                Command(argv=(component.python, *front_end, dist), folder=component.tree),
            ),
            needs=needs,
            variables=variables,
            compiles=True,
            creates=(dist,),
        )
    )
    # The wheel's name holds version and platform, which only its build knows. One of an earlier
    # version goes, so that the folder never offers two.
    script = (
        '"$1" -m pip install --no-index --no-deps --force-reinstall "$2"/*.whl || exit\n'
        'for wheel in "$2"/*.whl; do name=${wheel##*/}; rm -f "$3/${name%%-*}"-*.whl; done\n'
        'cp "$2"/*.whl "$3"/'
    )
    install = Command(argv=("sh", "-c", script, "sh", component.python, dist, component.wheels))
    made.append(
        site.step(
            "install",
            "install the wheel and keep a copy",
            (Command(argv=("mkdir", "-p", component.wheels)), install),
            needs=(made[-1].name,),
            creates=(component.wheels,),
        )
    )
    return tuple(made)


def requirement_steps(site: Site) -> tuple[Step, ...]:
    """What the project's own requirement files name, where the recipe says so."""
    component = site.component
    names = site.recipe.environment.venv.requirements
    if not names:
        return ()
    files = [word for name in names for word in ("-r", f"{component.tree}/{name}")]
    pip = (component.python, "-m", "pip", "install", "--no-input", *files)
    step = site.step(
        "requirements",
        "install what its requirement files name",
        (Command(argv=pip, folder=component.tree),),
        network=True,
    )
    return (step,)


def option_variables(site: Site) -> tuple[tuple[str, str], ...]:
    """The recipe's options as the project reads them.

    scikit-build-core builds in a temporary folder unless it is told another: objects would be lost
    with every interruption.
    """
    options, table = site.recipe.options, site.recipe.python
    kept = (("SKBUILD_BUILD_DIR", f"{site.component.tree}/{table.build_folder}"),)
    if table.options_as == "cmake-args":
        words = [f"-D{key}={as_cmake(value)}" for key, value in options.items()]
        return (("CMAKE_ARGS", " ".join(words)), *kept) if words else kept
    return (*((key, as_variable(value)) for key, value in options.items()), *kept)


def _editable(site: Site, needs: tuple[str, ...], variables: tuple[tuple[str, str], ...]) -> Step:
    python = site.component.python
    if site.front_end == "setup.py":
        argv: tuple[str, ...] = (python, "setup.py", "develop", "--no-deps")
    else:
        options = ("--no-build-isolation", "--no-deps", "--verbose", "--editable", ".")
        argv = (python, "-m", "pip", "install", *options)
    return site.step(
        "build",
        "compile and install in place",
        (Command(argv=argv, folder=site.component.tree),),
        needs=needs,
        variables=variables,
        compiles=True,
    )
