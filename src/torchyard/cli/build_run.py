"""`torchyard build RECIPE`: plan, show or run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.output import common_options, print_data, print_json, talk
from torchyard.cli.sections import SectionedCommand, section

if TYPE_CHECKING:
    from torchyard.build.components import BuildRequest

__all__ = ["build_request", "run"]

_HELP = """
\b
Examples:
  torchyard build pytorch --variant cpu-arm --plan         every command, nothing done
  torchyard build pytorch --variant trimmed --version 2.6.0
  torchyard build pytorch --set USE_CUDA=0 --set environment.use=conda
  torchyard build torchvision --base .venv
  torchyard build arm-stack --set pytorch/version=2.5.0 --keep-going
  torchyard build arm-stack --plan --format dockerfile > Dockerfile

Build from a recipe: a shipped one by name, your own by path. What is done already is not done
again; a run that was killed goes on where it stopped.
"""

_what = section("What to build")
_steps = section("Which steps")
_how = section("How")
_out = section("Output")


def build_request(
    recipe: str, variant: str, version: str, settings: tuple[str, ...], base: str
) -> BuildRequest:
    """What the options ask for."""
    from torchyard.build.components import BuildRequest
    from torchyard.build.recipe_merge import parse_setting

    found: dict[str, dict[str, Any]] = {}
    for text in settings:
        component, key, value = parse_setting(text)
        found.setdefault(component, {})[key] = value
    if base:
        from torchyard.config.interpreters import find_python

        python = find_python(base, folder=Path.cwd(), where="--base")
        found.setdefault("", {})["environment.base"] = python
    return BuildRequest(recipe=recipe, variant=variant, version=version, settings=found)


@click.command(cls=SectionedCommand, help=_HELP)
@click.argument("recipe")
@_what("--variant", default="", help="Variant of the recipe; `build recipes RECIPE` lists them.")
@_what("--version", default="", help="Release to build instead of the recipe's own.")
@_what("--set", "settings", multiple=True, metavar="[COMPONENT/]KEY=VALUE", help="Change an option (USE_CUDA=0) or a key of the recipe (source.git.ref=main).")
@_what("--base", default="", metavar="PYTHON", help="Build against the torch of this interpreter or virtual environment.")
@_what("--name", default="", help="Name of the build and of its target.")
@_steps("--from", "start_from", default="", metavar="STEP", help="Run this step and all that depend on it again.")
@_steps("--only", multiple=True, metavar="STEP", help="Run only this step.")
@_steps("--force", is_flag=True, help="Run every step again.")
@_steps("--keep-going", is_flag=True, help="After a failure go on with what does not depend on it.")
@_how("--jobs", default="auto", metavar="N|auto", help="Compiles at once; auto follows cores and memory.")
@_out("--plan", "plan_only", is_flag=True, help="Print every command, file and variable, and do nothing.")
@common_options
def run(
    recipe: str,
    variant: str,
    version: str,
    settings: tuple[str, ...],
    base: str,
    name: str,
    start_from: str,
    only: tuple[str, ...],
    force: bool,
    keep_going: bool,
    jobs: str,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Plan and run one build."""
    from dataclasses import replace

    from torchyard.build.layout import YardHome
    from torchyard.build.planner import make_plan
    from torchyard.build.selection import Selection
    from torchyard.build.session import BuildSession
    from torchyard.core.build_events import BuildEvent
    from torchyard.core.records import encode

    home = YardHome.default()
    plan = make_plan(build_request(recipe, variant, version, settings, base), home=home, name=name)
    plan = replace(plan, jobs=int(jobs) if jobs != "auto" else 2)
    if plan_only:
        print_json({"plan": encode(plan)})
        return

    def listen(event: BuildEvent) -> None:
        talk(f"{event.kind} {event.step} {event.text} {event.done}/{event.total} {event.elapsed_s:.0f}s")

    session = BuildSession(
        plan=plan,
        home=home,
        listener=listen,
        selection=Selection(force=force, start_from=start_from, only=only),
        keep_going=keep_going,
    )
    result = session.run()
    for error in result.failed.values():
        raise error
    if as_json:
        print_json({"ran": list(result.ran)})
    else:
        print_data(f"ran {len(result.ran)}, skipped {len(result.skipped)}")
