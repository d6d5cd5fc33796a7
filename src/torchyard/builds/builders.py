"""Make the build steps of a component: CMake, Make, SCons, Python, TorchBench. Runs nothing.

Each build system is a function `*_steps(context: BuilderContext) -> tuple[Step, ...]`, listed in
`BUILDERS`. `BuilderContext` holds the folders, options and variables of the component.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.builds.cmake_cache import cmake_value
from torchyard.builds.plan import Action, Command, Component, Step, WriteFile
from torchyard.builds.recipe import BuilderKind, Recipe, Scalar
from torchyard.core.records import nearest_hint
from torchyard.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class BuilderContext:
    """The inputs of a builder: a component and its position in the plan."""

    component: Component
    needs: tuple[str, ...]
    """Steps that the component's first build step depends on."""
    variables: tuple[tuple[str, str], ...]
    root: str
    dist: Path
    """Output folder of the component's wheel."""
    front_end: str = ""

    @property
    def recipe(self) -> Recipe:
        """The component's recipe, with all placeholders replaced."""
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
        """Return a step of this component, with its root and variables."""
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
        )


def options_variable(options: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the variable that tells the meter about additional options of single files."""
    for pattern, words in options.items():
        if not pattern or set(pattern + words) & set("\t\n\r\0"):
            raise UsageError(
                f"compile-options: {pattern!r} = {words!r} is not valid",
                why="the pattern is empty, or there is a tab or a line break",
                hint='write "NAME*.cpp" = "-O1"',
            )
    lines = "".join(f"{pattern}\t{words}\n" for pattern, words in options.items())
    return (("TORCHYARD_METER_OPTIONS", lines),) if lines else ()


def variable_value(value: Scalar) -> str:
    """Format an option value as a variable: setup.py and CMake both accept 1 and 0."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def cmake_steps(context: BuilderContext) -> tuple[Step, ...]:
    """Return the steps of a CMake project: configure, build and, if requested, install."""
    table = context.recipe.cmake
    source = Path(context.component.tree, table.folder)
    folder = Path(context.component.tree, "build")
    configure = context.step(
        "configure",
        "configure with CMake",
        (
            # Drop the options of an earlier configure run and keep the objects, like --fresh of
            # CMake 3.24.
            Command(argv=("rm", "-f", str(folder / "CMakeCache.txt"))),
            Command(
                argv=(
                    "cmake",
                    *("-S", str(source), "-B", str(folder), "-G", table.generator),
                    f"-DCMAKE_BUILD_TYPE={table.build_type}",
                    f"-DCMAKE_INSTALL_PREFIX={context.component.prefix}",
                    # Not lib64, the default of some systems, which is not searched elsewhere.
                    "-DCMAKE_INSTALL_LIBDIR=lib",
                    *(
                        f"-D{key}={cmake_value(value)}"
                        for key, value in context.recipe.options.items()
                    ),
                    *table.arguments,
                )
            ),
        ),
        # CMake reads the compiler launcher from the environment at configure time only.
        compiles=True,
        creates=(str(folder / "CMakeCache.txt"),),
    )
    targets = [word for target in table.targets for word in ("--target", target)]
    build = context.step(
        "build",
        "compile",
        (Command(argv=("cmake", "--build", str(folder), *targets)),),
        needs=(configure.name,),
        compiles=True,
    )
    if not table.install:
        return (configure, build)
    install = context.step(
        "install",
        "install into the prefix",
        (Command(argv=("cmake", "--install", str(folder))),),
        needs=(build.name,),
        creates=(context.component.prefix,),
    )
    return (configure, build, install)


def make_steps(context: BuilderContext) -> tuple[Step, ...]:
    """Return the steps of a Makefile project; options become variables on make's command line."""
    table, tree = context.recipe.make, context.component.tree
    options = tuple(
        f"{key}={variable_value(value)}" for key, value in context.recipe.options.items()
    )
    # The job count is expanded at run time, so that it is not part of the step's fingerprint.
    parallel = ("sh", "-c", 'exec make -j "${CMAKE_BUILD_PARALLEL_LEVEL:-1}" "$@"', "make")
    build = context.step(
        "build",
        "compile",
        (Command(argv=(*parallel, *table.targets, *options, *table.arguments), folder=tree),),
        compiles=True,
    )
    if not table.install_targets:
        return (build,)
    prefix = (f"PREFIX={context.component.prefix}", f"prefix={context.component.prefix}")
    install = context.step(
        "install",
        "install into the prefix",
        (
            Command(
                argv=("make", *table.install_targets, *options, *table.arguments, *prefix),
                folder=tree,
            ),
        ),
        needs=(build.name,),
        creates=(context.component.prefix,),
    )
    return (build, install)


def scons_steps(context: BuilderContext) -> tuple[Step, ...]:
    """Return the single step of a SCons project."""
    options = tuple(
        f"{key}={variable_value(value)}" for key, value in context.recipe.options.items()
    )
    # SCons takes the job count from its command line only; it is expanded at run time, so that it
    # is not part of the step's fingerprint.
    argv = (
        *("sh", "-c", 'exec scons -j "${CMAKE_BUILD_PARALLEL_LEVEL:-1}" "$@"', "scons"),
        *options,
        *context.recipe.scons.arguments,
    )
    build = context.step(
        "build", "compile", (Command(argv=argv, folder=context.component.tree),), compiles=True
    )
    return (build,)


FRONT_ENDS = {
    "setup.py": ("setup.py", "bdist_wheel", "--dist-dir"),
    "pep517": (
        *("-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check"),
        "--outdir",
    ),
}
"""Arguments of `python` that build a wheel; the output folder follows."""


def python_steps(context: BuilderContext) -> tuple[Step, ...]:
    """Return the steps of a Python project: requirements, configure, wheel, install."""
    component, table = context.component, context.recipe.python
    variables = option_variables(context)
    steps = list(requirement_steps(context))
    needs = (steps[-1].name,) if steps else context.needs
    # PyTorch skips configuring if a cache exists, and CMake keeps options that are no longer set.
    remove_cache = Command(
        argv=("rm", "-f", f"{component.tree}/{table.build_folder}/CMakeCache.txt")
    )
    if table.configure:
        steps.append(
            context.step(
                "configure",
                "configure",
                (
                    remove_cache,
                    Command(argv=(component.python, *table.configure), folder=component.tree),
                ),
                needs=needs,
                variables=variables,
                compiles=True,
            )
        )
        needs = (steps[-1].name,)
    elif table.compiles_with == "cmake":
        steps.append(
            context.step(
                "options",
                "discard the CMake cache of other options",
                (remove_cache,),
                needs=needs,
                variables=variables,
            )
        )
        needs = (steps[-1].name,)
    if table.install == "editable":
        steps.append(_editable(context, needs, variables))
        return tuple(steps)
    dist = str(context.dist)
    front_end = FRONT_ENDS[context.front_end or "pep517"]
    steps.append(
        context.step(
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
            network=table.online,
            creates=(dist,),
        )
    )
    # The name of the wheel is known only after its build. Wheels of earlier versions are removed,
    # so that the folder never has two.
    script = (
        '"$1" -m pip install --no-index --no-deps --force-reinstall "$2"/*.whl || exit\n'
        'for wheel in "$2"/*.whl; do name=${wheel##*/}; rm -f "$3/${name%%-*}"-*.whl; done\n'
        'cp "$2"/*.whl "$3"/'
    )
    install = Command(argv=("sh", "-c", script, "sh", component.python, dist, component.wheels))
    steps.append(
        context.step(
            "install",
            "install the wheel and keep a copy",
            (Command(argv=("mkdir", "-p", component.wheels)), install),
            needs=(steps[-1].name,),
            creates=(component.wheels,),
        )
    )
    return tuple(steps)


def requirement_steps(context: BuilderContext) -> tuple[Step, ...]:
    """Return the step that installs the project's requirement files; empty if there are none."""
    component = context.component
    names = context.recipe.environment.venv.requirements
    if not names:
        return ()
    files = [word for name in names for word in ("-r", f"{component.tree}/{name}")]
    pip = (component.python, "-m", "pip", "install", "--no-input", *files)
    step = context.step(
        "requirements",
        "install the requirement files",
        (Command(argv=pip, folder=component.tree),),
        network=True,
    )
    return (step,)


def option_variables(context: BuilderContext) -> tuple[tuple[str, str], ...]:
    """Return the recipe's options in the form the project reads.

    scikit-build-core gets a fixed build folder: in its default, a temporary one, object files would
    be lost with every interruption.
    """
    options, table = context.recipe.options, context.recipe.python
    build_dir = (("SKBUILD_BUILD_DIR", f"{context.component.tree}/{table.build_folder}"),)
    if table.options_as == "cmake-args":
        words = [f"-D{key}={cmake_value(value)}" for key, value in options.items()]
        return (("CMAKE_ARGS", " ".join(words)), *build_dir) if words else build_dir
    return (*((key, variable_value(value)) for key, value in options.items()), *build_dir)


def _editable(
    context: BuilderContext, needs: tuple[str, ...], variables: tuple[tuple[str, str], ...]
) -> Step:
    component = context.component
    # An editable install of setuptools compiles in a temporary folder, and an interruption would
    # lose all object files: `build_temp` of build_ext takes precedence.
    config = f"{context.dist}.cfg"
    temporary = f"{component.tree}/{context.recipe.python.build_folder}/temp"
    options: tuple[str, ...] = ("--no-build-isolation", "--no-deps", "--no-index", "--verbose")
    if context.front_end == "setup.py":
        # The layout of `setup.py develop`, which setuptools 80 removed; for projects without a
        # build-system table, too.
        options += ("--use-pep517", "--config-settings", "editable_mode=compat")
    install = Command(
        argv=(component.python, "-m", "pip", "install", *options, "--editable", "."),
        folder=component.tree,
        variables=(("DIST_EXTRA_CONFIG", config),),
    )
    return context.step(
        "build",
        "compile and install in place",
        (WriteFile(path=config, text=f"[build_ext]\nbuild_temp = {temporary}\n"), install),
        needs=needs,
        variables=variables,
        compiles=True,
    )


_MODEL: Final = "model"
_ONLINE: Final = "install-online"
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]*")

# The folder of the model is known only after the source has been fetched.
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


def torchbench_steps(context: BuilderContext) -> tuple[Step, ...]:
    """Return the steps that install the requirements of the checkout and of the chosen model."""
    steps = requirement_steps(context)
    model, online = _options(context)
    if not model:
        return steps
    component = context.component
    script_arguments = ("sh", component.tree, model, component.python)
    requirements = context.step(
        "model-requirements",
        f"install the requirements of {model}",
        (Command(argv=("sh", "-c", _REQUIREMENTS, *script_arguments), folder=component.tree),),
        needs=(steps[-1].name,) if steps else context.needs,
        network=True,
    )
    install = context.step(
        "model-install",
        f"run the install.py of {model}",
        (
            Command(
                argv=("sh", "-c", _INSTALL, *script_arguments, _ASK_TORCH), folder=component.tree
            ),
        ),
        needs=(requirements.name,),
        # All requirements are installed: pip needs no index.
        variables=() if online else (("PIP_NO_INDEX", "1"),),
        network=online,
    )
    return (*steps, requirements, install)


def model_of(options: dict[str, str | int | float | bool]) -> str:
    """Return the checked model name of the options; empty if there is none."""
    name = str(options.get(_MODEL, ""))
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise UsageError(
            f"torchbench: {name!r} is not a valid model name",
            hint="`torchyard workloads --torchbench FOLDER` lists the models of a checkout",
        )
    return name


def _options(context: BuilderContext) -> tuple[str, bool]:
    options = context.recipe.options
    for key in options:
        if key not in (_MODEL, _ONLINE):
            raise UsageError(
                f"{context.recipe.name}: there is no option {key!r}",
                hint=nearest_hint(key, (_MODEL, _ONLINE), what="option"),
            )
    online = options.get(_ONLINE, False)
    if not isinstance(online, bool):
        raise UsageError(
            f"{context.recipe.name}: {_ONLINE} is {online!r}", hint=f"write {_ONLINE}=true or false"
        )
    return model_of(options), online


BUILDERS: Final[Mapping[BuilderKind, Callable[[BuilderContext], tuple[Step, ...]]]] = {
    "cmake": cmake_steps,
    "python": python_steps,
    "scons": scons_steps,
    "make": make_steps,
    "torchbench": torchbench_steps,
    "none": requirement_steps,
}
