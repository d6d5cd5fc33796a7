"""`torchyard doctor`: report known causes of build failures before anything compiles."""

from __future__ import annotations

import click

from torchyard.builds.commands.run import build_request
from torchyard.cli.output import common_options, print_data, print_json, printable

_HELP = """
\b
Examples:
  torchyard doctor                                   general checks of this machine
  torchyard doctor pytorch --variant cuda
  torchyard doctor pytorch --version 2.6.0 --set environment.use=conda --json

Check the prerequisites of a build: versions against the compatibility table, memory and disk space,
compilers, drivers, order of header and library paths. Each finding suggests a fix. Exits with code
4 if the build cannot succeed.
"""


@click.command(help=_HELP)
@click.argument("recipe", required=False)
@click.option("--variant", default="", help="Variant of the recipe.")
@click.option("--version", default="", help="Release to build. [default: the recipe's version]")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="[COMPONENT/]KEY=VALUE",
    help="Set a build option or a recipe key, as for `torchyard build`.",
)
@click.option(
    "--base", default="", metavar="PYTHON|build:NAME", help="Base, as for `torchyard build`."
)
@common_options
def doctor(
    recipe: str | None,
    variant: str,
    version: str,
    settings: tuple[str, ...],
    base: str,
    as_json: bool,
) -> int:
    """Check the prerequisites of a build."""
    from torchyard.builds.build_folders import BuildsDirectory
    from torchyard.builds.doctor.examination import can_build, examine
    from torchyard.builds.doctor.finding import findings_text
    from torchyard.core.records import encode
    from torchyard.errors import MissingTool

    home = BuildsDirectory.default()
    plan, environment = None, None
    if recipe is not None:
        from torchyard.builds.running.build import BuildChoices, plan_build

        request = build_request(recipe, variant, version, settings, base)
        planned = plan_build(request, BuildChoices())
        plan, environment = planned.plan, planned.resolved.environment
    findings = examine(plan, environment=environment, tool_cache=home.tools)
    if as_json:
        good = can_build(findings)
        print_json({"can_build": good, "findings": [encode(finding) for finding in findings]})
    else:
        print_data(printable(findings_text(findings)))
    return 0 if can_build(findings) else MissingTool.exit_code
