"""A CMake project: configure, build, install into the plan's prefix."""

from __future__ import annotations

from pathlib import Path

from torchyard.build.builders.site import Site, as_cmake
from torchyard.core.build_plan import Command, Step

__all__ = ["steps"]


def steps(site: Site) -> tuple[Step, ...]:
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
