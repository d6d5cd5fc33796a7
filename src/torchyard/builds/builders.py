"""Make the build steps of a component: CMake, Make, SCons, Python, TorchBench. Runs nothing.

Each build system is a function `*_steps(site: Site) -> tuple[Step, ...]`, listed in `BUILDERS`.
`Site` holds what a builder knows of the component: its folders, options and variables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.builds.plan import Action, Command, Component, Step
from torchyard.builds.recipe import BuilderKind, Recipe, Scalar
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Site:
    """One component at its place in the plan."""

    component: Component
    needs: tuple[str, ...]
    """Steps that come before the component's first build step."""
    variables: tuple[tuple[str, str], ...]
    root: str
    dist: Path
    """An own folder for the component's wheel."""
    front_end: str = ""
    inputs: tuple[tuple[str, str], ...] = ()

    @property
    def recipe(self) -> Recipe:
        """The component's recipe, with all placeholders filled in."""
        return self.component.recipe

    def step(
        self,
        what: str,
        title: str,
        actions: tuple[Action, ...],
        *,
        needs: tuple[str, ...] | None = None,
        variables: tuple[tuple[str, str], ...] = (),
        compiles: bool = False,
        network: bool = False,
        creates: tuple[str, ...] = (),
    ) -> Step:
        """A step of this component, in its root and with its variables."""
        if compiles:
            variables = (*variables, *options_variable(self.recipe.compile_options))
        return Step(
            name=f"{self.component.name}/{what}",
            component=self.component.name,
            title=title,
            actions=actions,
            needs=self.needs if needs is None else needs,
            variables=(*self.variables, *variables),
            network=network,
            root=self.root,
            compiles=compiles,
            creates=creates,
            inputs=self.inputs,
        )


def options_variable(options: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """The variable by which the meter knows further options of single files; none without them."""
    for pattern, words in options.items():
        if not pattern or set(pattern + words) & set("\t\n\r\0"):
            raise UsageError(
                f"compile-options: {pattern!r} = {words!r} holds a tab or a new line, or no name",
                hint='write "NAME*.cpp" = "-O1"',
            )
    lines = "".join(f"{pattern}\t{words}\n" for pattern, words in options.items())
    return (("TORCHYARD_METER_OPTIONS", lines),) if lines else ()


def as_cmake(value: Scalar) -> str:
    """An option's value as CMake reads it."""
    if isinstance(value, bool):
        return "ON" if value else "OFF"
    return str(value)


def as_variable(value: Scalar) -> str:
    """An option's value as a variable: 1 and 0 are understood by setup.py and CMake alike."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def cmake_steps(site: Site) -> tuple[Step, ...]:
    """Configure and build; without `install` the result stays in the build folder."""
    table = site.recipe.cmake
    source = Path(site.component.tree, table.folder)
    folder = Path(site.component.tree, "build")
    configure = site.step(
        "configure",
        "configure with CMake",
        (
            # Options of an earlier configure must not linger; objects stay where they are. The
            # option --fresh does the same from CMake 3.24 on.
            Command(argv=("rm", "-f", str(folder / "CMakeCache.txt"))),
            Command(
                argv=(
                    "cmake",
                    *("-S", str(source), "-B", str(folder), "-G", table.generator),
                    f"-DCMAKE_BUILD_TYPE={table.build_type}",
                    f"-DCMAKE_INSTALL_PREFIX={site.component.prefix}",
                    # Some systems would say lib64, where nothing else of a build looks.
                    "-DCMAKE_INSTALL_LIBDIR=lib",
                    *(f"-D{key}={as_cmake(value)}" for key, value in site.recipe.options.items()),
                    *table.arguments,
                )
            ),
        ),
        # CMake takes the launcher of compilers from its environment now, for good.
        compiles=True,
        creates=(str(folder / "CMakeCache.txt"),),
    )
    targets = [word for target in table.targets for word in ("--target", target)]
    build = site.step(
        "build",
        "compile",
        (Command(argv=("cmake", "--build", str(folder), *targets)),),
        needs=(configure.name,),
        compiles=True,
    )
    if not table.install:
        return (configure, build)
    install = site.step(
        "install",
        "install into the prefix",
        (Command(argv=("cmake", "--install", str(folder))),),
        needs=(build.name,),
        creates=(site.component.prefix,),
    )
    return (configure, build, install)


def make_steps(site: Site) -> tuple[Step, ...]:
    """Build and install; options become variables of make's command line."""
    table, tree = site.recipe.make, site.component.tree
    options = tuple(f"{key}={as_variable(value)}" for key, value in site.recipe.options.items())
    # The shell hands over the job count at run time: another count is not another step.
    parallel = ("sh", "-c", 'exec make -j "${CMAKE_BUILD_PARALLEL_LEVEL:-1}" "$@"', "make")
    build = site.step(
        "build",
        "compile",
        (Command(argv=(*parallel, *table.targets, *options, *table.arguments), folder=tree),),
        compiles=True,
    )
    if not table.install_targets:
        return (build,)
    prefix = (f"PREFIX={site.component.prefix}", f"prefix={site.component.prefix}")
    install = site.step(
        "install",
        "install into the prefix",
        (
            Command(
                argv=("make", *table.install_targets, *options, *table.arguments, *prefix),
                folder=tree,
            ),
        ),
        needs=(build.name,),
        creates=(site.component.prefix,),
    )
    return (build, install)


def scons_steps(site: Site) -> tuple[Step, ...]:
    """One step: SCons decides by itself what is out of date."""
    options = tuple(f"{key}={as_variable(value)}" for key, value in site.recipe.options.items())
    # SCons reads the job count only from its command line; the shell hands ours over at run time,
    # so that another count does not count as another step.
    argv = (
        *("sh", "-c", 'exec scons -j "${CMAKE_BUILD_PARALLEL_LEVEL:-1}" "$@"', "scons"),
        *options,
        *site.recipe.scons.arguments,
    )
    build = site.step(
        "build", "compile", (Command(argv=argv, folder=site.component.tree),), compiles=True
    )
    return (build,)


FRONT_ENDS = {
    "setup.py": ("setup.py", "bdist_wheel", "--dist-dir"),
    "pep517": (
        *("-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check"),
        "--outdir",
    ),
}
"""Arguments after `python` that make a wheel; the folder for it follows."""


def python_steps(site: Site) -> tuple[Step, ...]:
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


_MODEL: Final = "model"
_ONLINE: Final = "install-online"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*")

# Which folder holds the model is known only when the source is there.
_ENTER: Final = """
for holder in models canary_models; do
    folder="$1/torchbenchmark/$holder/$2"
    if [ -f "$folder/__init__.py" ]; then break; fi
done
cd "$folder" 2>/dev/null || { echo "the checkout has no model $2" >&2; exit 1; }
"""
_REQUIREMENTS: Final = (
    _ENTER
    + """
if [ ! -f requirements.txt ]; then echo "$2 has no requirements.txt"; exit 0; fi
exec "$3" -m pip install --no-input --disable-pip-version-check -r requirements.txt
"""
)
_ASK_TORCH: Final = (
    "import importlib.metadata as m; "
    'print(*{d.version for d in m.distributions(name="torch")} or ["none"])'
)
_INSTALL: Final = (
    _ENTER
    + """
if [ ! -f install.py ]; then echo "$2 has no install.py"; exit 0; fi
before=$("$3" -c "$4") || exit
"$3" install.py || exit
after=$("$3" -c "$4") || exit
if [ "$before" != "$after" ]; then
    echo "install.py of $2 replaced torch $before by $after" >&2
    exit 1
fi
"""
)


def torchbench_steps(site: Site) -> tuple[Step, ...]:
    """The requirements of the checkout, and of the model where one is named."""
    made = requirement_steps(site)
    model, online = _options(site)
    if not model:
        return made
    component = site.component
    place = ("sh", component.tree, model, component.python)
    requirements = site.step(
        "model-requirements",
        f"install what the requirements of {model} name",
        (Command(argv=("sh", "-c", _REQUIREMENTS, *place), folder=component.tree),),
        needs=(made[-1].name,) if made else site.needs,
        network=True,
    )
    install = site.step(
        "model-install",
        f"run the install.py of {model}",
        (Command(argv=("sh", "-c", _INSTALL, *place, _ASK_TORCH), folder=component.tree),),
        needs=(requirements.name,),
        # What the requirements name is there already: pip has nothing left to look up.
        variables=() if online else (("PIP_NO_INDEX", "1"),),
        network=online,
    )
    return (*made, requirements, install)


def model_of(options: dict[str, str | int | float | bool]) -> str:
    """The model that the options name, checked; empty where none is."""
    name = str(options.get(_MODEL, ""))
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise UsageError(
            f"torchbench: the model {name!r} is no name of a folder",
            hint="`torchyard workloads --torchbench FOLDER` lists the models of a checkout",
        )
    return name


def _options(site: Site) -> tuple[str, bool]:
    options = site.recipe.options
    for key in options:
        if key not in (_MODEL, _ONLINE):
            raise UsageError(
                f"{site.recipe.name}: there is no option {key!r}",
                hint=nearest_hint(key, (_MODEL, _ONLINE), what="option"),
            )
    online = options.get(_ONLINE, False)
    if not isinstance(online, bool):
        raise UsageError(
            f"{site.recipe.name}: {_ONLINE} is {online!r}", hint=f"write {_ONLINE}=true or false"
        )
    return model_of(options), online


BUILDERS: Final[Mapping[BuilderKind, Callable[[Site], tuple[Step, ...]]]] = {
    "cmake": cmake_steps,
    "python": python_steps,
    "scons": scons_steps,
    "make": make_steps,
    "torchbench": torchbench_steps,
    "none": requirement_steps,
}
