"""`torchyard build RECIPE`: show, export or run the plan, and print the outcome."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.builds.commands.progress_display import time_text
from torchyard.cli.options import SectionedCommand, section
from torchyard.cli.output import common_options, print_data, print_json, printable, talk, write_file

if TYPE_CHECKING:
    from torchyard.builds.recipe_file import BuildRequest
    from torchyard.builds.running.build import PlannedBuild
    from torchyard.builds.running.runner import Selection


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
    from torchyard.builds.recipe_file import BuildRequest, parse_setting

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
    from torchyard.builds import BUILD_PREFIX
    from torchyard.core.variant_parts import find_python

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
    from torchyard.builds.running.build import BuildChoices, plan_build, run_build
    from torchyard.builds.running.runner import Selection

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
    from torchyard.builds.commands.progress_display import show_build_progress

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
    from torchyard.builds.build_folders import BuildFolder
    from torchyard.builds.export import ExportFacts, export_plan
    from torchyard.builds.running.runner import unfinished_steps

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


if TYPE_CHECKING:
    from torchyard.builds.running.build import BuildOutcome


_GIB_MIB = 1024


def outcome_text(outcome: BuildOutcome) -> str:
    """A few lines: what was done, what it cost, how to use it."""
    result, plan = outcome.result, outcome.plan
    if not result.ran:
        lines = [f"{plan.name}: nothing to do, all {len(result.skipped)} steps are done"]
    else:
        rest = "the others left alone" if outcome.partial else f"{len(result.skipped)} done before"
        counts = f"{len(result.ran)} steps run, {rest}"
        lines = [f"{plan.name}: built in {time_text(result.wall_s)} ({counts})"]
    compiles = sum(times.compiles for times in outcome.times.values())
    if compiles:
        cpu_s = sum(times.cpu_s or 0.0 for times in outcome.times.values())
        peak = max(times.peak_memory_mib or 0.0 for times in outcome.times.values())
        lines.append(
            f"  compiles     {compiles}, {cpu_s:.0f} s of CPU time, the largest took {_size(peak)}"
        )
        lines.append(f"  cache hits   {_hits(outcome)}")
        lines.append(f"  jobs         {plan.jobs_why}")
    if outcome.python:
        lines.append(f"  interpreter  {outcome.python}")
        target = shlex.quote(f"{plan.name}={outcome.folder.folder}")
        if outcome.has_torch:
            lines.append(f"  measure it   torchyard bench --target {target}")
    lines.append(f"  activate     . {shlex.quote(str(outcome.folder.folder / 'activate'))}")
    if outcome.folder.record_file.exists():
        lines.append(f"  record       {outcome.folder.record_file}")
    return printable("\n".join(lines))


def outcome_json(outcome: BuildOutcome) -> dict[str, Any]:
    """The same as data."""
    from torchyard.core.records import encode

    return {
        "build": outcome.plan.name,
        "folder": str(outcome.folder.folder),
        "ran": list(outcome.result.ran),
        "skipped": list(outcome.result.skipped),
        "wall_s": outcome.result.wall_s,
        "times": {name: encode(times) for name, times in outcome.times.items()},
        "jobs": outcome.plan.jobs,
        "jobs_why": outcome.plan.jobs_why,
        "python": outcome.python,
        "record": str(outcome.folder.record_file),
    }


def _size(mib: float) -> str:
    return f"{mib / _GIB_MIB:.1f} GiB" if mib >= _GIB_MIB else f"{mib:.0f} MiB"


def _hits(outcome: BuildOutcome) -> str:
    rates = [
        times.cache_hit_rate
        for times in outcome.times.values()
        if times.cache_hit_rate is not None and times.compiles
    ]
    if not rates:
        return "no compiler cache"
    return ", ".join(f"{rate:.0%}" for rate in rates)
