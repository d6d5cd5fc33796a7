"""`torchyard build RECIPE`: plan, show or run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.cli.output import common_options, print_data, print_json, talk, write_file
from torchyard.cli.sections import SectionedCommand, section

if TYPE_CHECKING:
    from torchyard.build.components import BuildRequest
    from torchyard.build.selection import Selection
    from torchyard.workflow.build_run import PlannedBuild

__all__ = ["build_request", "run"]

_HELP = """
\b
Examples:
  torchyard build pytorch --variant cpu-arm --plan         every command, nothing done
  torchyard build pytorch --variant trimmed --version 2.6.0
  torchyard build pytorch --set USE_CUDA=0 --set environment.use=conda
  torchyard build torchvision --base .venv
  torchyard build torchvision --version 0.21.0 --base build:pytorch-2.6.0-trimmed
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
        if key == "source.folder.path":  # typed here, so it starts here
            value = str(Path(str(value)).expanduser().absolute())
        found.setdefault(component, {})[key] = value
    if base:
        found.setdefault("", {})["environment.base"] = _base(base)
    if "/" in recipe or recipe.endswith(".toml"):
        # A later `rebuild` may be started in another folder.
        recipe = str(Path(recipe).expanduser().absolute())
    return BuildRequest(recipe=recipe, variant=variant, version=version, settings=found)


def _base(text: str) -> str:
    """`build:NAME` as it is: the build may be made anew before a later `rebuild`."""
    from torchyard.build import BUILD_PREFIX
    from torchyard.config.interpreters import find_python

    if text.startswith(BUILD_PREFIX):
        return text
    return find_python(text, folder=Path.cwd(), where="--base")


@click.command(cls=SectionedCommand, help=_HELP)
@click.argument("recipe")
@_what("--variant", default="", help="Variant of the recipe; `build recipes RECIPE` lists them.")
@_what("--version", default="", help="Release to build instead of the recipe's own.")
@_what(
    "--set",
    "settings",
    multiple=True,
    metavar="[COMPONENT/]KEY=VALUE",
    help="Change an option (USE_CUDA=0) or a key of the recipe (source.git.ref=main).",
)
@_what(
    "--base",
    default="",
    metavar="PYTHON|build:NAME",
    help="Build against the torch of this interpreter, virtual environment or build.",
)
@_what("--name", default="", help="Name of the build and of its target.")
@_what("--locked", default="", metavar="FILE", help="Build the very sources of a lock file.")
@_steps("--from", "start_from", default="", metavar="STEP", help="Run this step and what follows.")
@_steps("--only", multiple=True, metavar="STEP", help="Run only this step.")
@_steps("--force", is_flag=True, help="Run every step again.")
@_steps(
    "--touch",
    is_flag=True,
    help="Take what earlier steps made for done although the plan changed, as `make --touch`.",
)
@_steps("--keep-going", is_flag=True, help="After a failure go on with what does not need it.")
@_how(
    "--jobs",
    default="auto",
    metavar="N|auto",
    help="Compiles at once; auto follows cores and memory, and says why.",
)
@_how(
    "--cache",
    type=click.Choice(["auto", "ccache", "sccache", "none"]),
    default="auto",
    help="Compiler cache; one that does not work is not used.",
)
@_how("--no-doctor", is_flag=True, help="Do not look for known causes of failure first.")
@_out("--plan", "plan_only", is_flag=True, help="Print what would be done, and do nothing.")
@_out(
    "--format",
    "plan_format",
    type=click.Choice(["text", "json", "script", "dockerfile", "apptainer", "devcontainer"]),
    default="text",
    help="Form of the plan.",
)
@_out("--base-image", default="", metavar="IMAGE", help="Image that an exported image starts from.")
@_out("--output", default="", metavar="PATH", help="File or folder for the plan.")
@_out("--quiet", is_flag=True, help="No progress.")
@common_options
def run(
    recipe: str,
    variant: str,
    version: str,
    settings: tuple[str, ...],
    base: str,
    name: str,
    locked: str,
    start_from: str,
    only: tuple[str, ...],
    force: bool,
    touch: bool,
    keep_going: bool,
    jobs: str,
    cache: str,
    no_doctor: bool,
    plan_only: bool,
    plan_format: str,
    base_image: str,
    output: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Plan and run one build."""
    from torchyard.build.selection import Selection
    from torchyard.workflow.build_run import BuildChoices, plan_build, run_build

    request = build_request(recipe, variant, version, settings, base)
    choices = BuildChoices(
        name=name,
        jobs=jobs,
        cache=cache,
        lock_file=locked,
        selection=Selection(force=force, start_from=(start_from,) if start_from else (), only=only),
        keep_going=keep_going,
        doctor=not no_doctor,
        touch=touch,
    )
    planned = plan_build(request, choices)
    if plan_only:
        form = "json" if as_json else plan_format
        _print_plan(planned, choices.selection, form, output, base_image)
        return
    from torchyard.cli.build_progress import show_build_progress
    from torchyard.cli.build_text import outcome_json, outcome_text

    with show_build_progress(quiet=quiet) as listener:
        outcome = run_build(planned, choices, listener)
    for error in outcome.errors[1:]:
        talk(f"also failed: {error.what}")
    if outcome.errors:
        raise outcome.errors[0]
    if as_json:
        print_json(outcome_json(outcome))
    else:
        print_data(outcome_text(outcome))


def _print_plan(
    planned: PlannedBuild, selection: Selection, plan_format: str, output: str, base_image: str
) -> None:
    from torchyard.build.export import ExportFacts, export_plan
    from torchyard.build.layout import BuildFolder
    from torchyard.build.runner import unfinished_steps

    plan = planned.plan
    folder = BuildFolder(folder=Path(plan.folder))
    todo = {*unfinished_steps(plan, folder), *unfinished_steps(plan, folder, selection)}
    facts = ExportFacts(
        home=str(planned.home.folder),
        done=frozenset(step.name for step in plan.steps if step.name not in todo),
        base_image=base_image,
    )
    files = export_plan(plan, plan_format, facts)
    if not output:
        for file in files:
            if len(files) > 1:
                print_data(f"# ---- {file.name}")
            print_data(file.text)
        return
    place = Path(output)
    for file in files:
        path = place / file.name if len(files) > 1 or place.is_dir() else place
        write_file(path, file.text, option="--output")
        if file.executable:
            path.chmod(path.stat().st_mode | 0o111)
        talk(f"wrote {path}")
