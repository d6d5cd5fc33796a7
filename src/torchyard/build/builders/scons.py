"""A SCons project (Arm Compute Library builds with it): the result stays in the tree."""

from __future__ import annotations

from torchyard.build.builders.site import Site, as_variable
from torchyard.core.build_plan import Command, Step

__all__ = ["steps"]


def steps(site: Site) -> tuple[Step, ...]:
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
