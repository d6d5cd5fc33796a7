"""A plain Makefile: build, then install into the plan's prefix."""

from __future__ import annotations

from torchyard.build.builders.site import Site, as_variable
from torchyard.core.build_plan import Command, Step

__all__ = ["steps"]


def steps(site: Site) -> tuple[Step, ...]:
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
