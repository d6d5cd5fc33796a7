"""`torchyard build RECIPE` and `torchyard doctor`: show, export or run the plan, or check it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.builds.commands.progress_display import show_build_progress, time_text
from torchyard.cli.options import SectionedCommand, section
from torchyard.cli.output import (
    common_options,
    print_data,
    print_json,
    print_message,
    printable,
    write_file,
)

if TYPE_CHECKING:
    from torchyard.builds.recipe_file import BuildRequest
    from torchyard.builds.running.build import BuildOutcome, PlannedBuild
    from torchyard.builds.running.runner import Selection


_HELP = """
\b
Examples:
  torchyard build pytorch --variant cpu-arm --plan         print every command, run none
  torchyard build pytorch --variant trimmed --version 2.6.0
  torchyard build pytorch --set USE_CUDA=0 --set environment.use=conda
  torchyard build torchvision --base .venv
  torchyard build torchvision --version 0.21.0 --base build:pytorch-2.6.0-trimmed
  torchyard build arm-stack --set pytorch/version=2.5.0 --keep-going
  torchyard build pytorch --variant cuda --set environment.cuda=12.8.0 --set environment.gcc=13
  torchyard build arm-stack --build-cache /shared/finished
  torchyard build arm-stack --plan --format dockerfile > Dockerfile
  torchyard build openblas --plan --format easybuild --output packages/

Build from a recipe: a shipped recipe by name, your own by path. Finished steps are not repeated; an
interrupted build resumes where it stopped.
"""

_what = section("What to build")
_steps = section("Which steps")
_how = section("How")
_out = section("Output")


def build_request(
    recipe: str, variant: str, version: str, settings: tuple[str, ...], base: str
) -> BuildRequest:
    """Return the build request that the options describe."""
    from torchyard.builds.recipe_file import BuildRequest, parse_setting
    from torchyard.builds.setting_checks import add_setting

    settings_by_component: dict[str, dict[str, Any]] = {}
    for text in settings:
        component, key, value = parse_setting(text)
        if key == "source.folder.path":  # relative to the current folder
            value = str(Path(str(value)).expanduser().absolute())
        add_setting(settings_by_component.setdefault(component, {}), key, value)
    if base:
        settings_by_component.setdefault("", {})["environment.base"] = _base_python(base)
    if "/" in recipe or recipe.endswith(".toml"):
        # Absolute, because a later `rebuild` may be started in another folder.
        recipe = str(Path(recipe).expanduser().absolute())
    return BuildRequest(
        recipe=recipe, variant=variant, version=version, settings=settings_by_component
    )


def _base_python(text: str) -> str:
    """Return the interpreter; `build:NAME` is kept, as that build may change before a `rebuild`."""
    from torchyard.builds import BUILD_PREFIX
    from torchyard.core.variant_parts import find_python

    if text.startswith(BUILD_PREFIX):
        return text
    return find_python(text, folder=Path.cwd(), where="--base")


@click.command(cls=SectionedCommand, help=_HELP)
@click.argument("recipe")
@_what("--variant", default="", help="Variant; `torchyard build recipes RECIPE` lists them.")
@_what("--version", default="", help="Release to build. [default: the recipe's version]")
@_what(
    "--set",
    "settings",
    multiple=True,
    metavar="[COMPONENT/]KEY=VALUE",
    help="Set a build option (USE_CUDA=0) or a recipe key (source.git.ref=main). KEY+=VALUE adds to a"
    " list, KEY-=VALUE removes from it.",
)
@_what(
    "--base",
    default="",
    metavar="PYTHON|build:NAME",
    help="Build against the torch of this interpreter, virtual environment or build.",
)
@_what("--name", default="", help="Name of the build and of its target.")
@_what("--locked", default="", metavar="FILE", help="Build the exact sources of a lock file.")
@_steps(
    "--from",
    "start_from",
    default="",
    metavar="STEP",
    help="Run this step and all that depend on it.",
)
@_steps("--only", multiple=True, metavar="STEP", help="Run only this step (repeatable).")
@_steps("--force", is_flag=True, help="Run all steps, finished ones included.")
@_steps(
    "--touch",
    is_flag=True,
    help="Treat finished steps as up to date even if the plan changed.",
)
@_steps(
    "--keep-going",
    is_flag=True,
    help="After a failure, continue with independent steps.",
)
@_how(
    "--jobs",
    default="auto",
    metavar="N|auto",
    show_default=True,
    help="Parallel compile jobs; `auto` chooses by cores and memory.",
)
@_how(
    "--cache",
    type=click.Choice(["auto", "ccache", "sccache", "none"]),
    default="auto",
    show_default=True,
    help="Compiler cache, used only if a test compile works.",
)
@_how(
    "--build-cache",
    default="",
    metavar="FOLDER|URL",
    help="Reuse finished components of this folder and store new ones; a URL is only read.",
)
@_how("--no-doctor", is_flag=True, help="Skip the check of prerequisites.")
@_out("--plan", "plan_only", is_flag=True, help="Print the plan and exit.")
@_out(
    "--format",
    "plan_format",
    type=click.Choice(
        [
            *("text", "json", "script", "dockerfile", "apptainer", "devcontainer"),
            *("easybuild", "spack"),
        ]
    ),
    default="text",
    show_default=True,
    help="Format of the plan.",
)
@_out("--base-image", default="", metavar="IMAGE", help="Base image of an exported image.")
@_out("--output", default="", metavar="PATH", help="File or folder for the plan. [default: stdout]")
@_out("--quiet", is_flag=True, help="Show no progress.")
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
    build_cache: str,
    no_doctor: bool,
    plan_only: bool,
    plan_format: str,
    base_image: str,
    output: str,
    quiet: bool,
    as_json: bool,
) -> None:
    """Plan and run a build."""
    from torchyard.builds.running.build import BuildChoices, plan_build, run_build
    from torchyard.builds.running.runner import Selection
    from torchyard.errors import UsageError

    if "://" in build_cache and not build_cache.startswith(("http://", "https://")):
        raise UsageError(
            f"--build-cache: {build_cache.partition('://')[0]!r} is not a supported kind of URL",
            hint="give a folder, or a URL that starts with https:// or http://",
        )
    request = build_request(recipe, variant, version, settings, base)
    choices = BuildChoices(
        name=name,
        jobs=jobs,
        cache=cache,
        build_cache=build_cache,
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
    with show_build_progress(quiet=quiet) as listener:
        outcome = run_build(planned, choices, listener)
    print_outcome(outcome, as_json)


def print_outcome(outcome: BuildOutcome, as_json: bool) -> None:
    """Print the summary of a build; raise the error of the first failed step."""
    for error in outcome.errors[1:]:
        print_message(f"also failed: {error.what}")
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
    from torchyard.builds.export import export_plan
    from torchyard.builds.export.shell import ExportFacts
    from torchyard.builds.running.runner import unfinished_steps

    plan = planned.plan
    folder = BuildFolder(folder=Path(plan.folder))
    unfinished = {*unfinished_steps(plan, folder), *unfinished_steps(plan, folder, selection)}
    facts = ExportFacts(
        home=str(planned.home.folder),
        done=frozenset(step.name for step in plan.steps if step.name not in unfinished),
        base_image=base_image,
    )
    files = export_plan(plan, plan_format, facts)
    if not output:
        for file in files:
            if len(files) > 1:
                print_data(f"# ---- {file.name}")
            print_data(file.text)
        return
    destination = Path(output)
    for file in files:
        in_folder = len(files) > 1 or output.endswith("/") or destination.is_dir()
        path = destination / file.name if in_folder else destination
        write_file(path, file.text, option="--output")
        if file.executable:
            path.chmod(path.stat().st_mode | 0o111)
        print_message(f"wrote {path}")


_MIB_PER_GIB = 1024


def outcome_text(outcome: BuildOutcome) -> str:
    """Summarize a build: steps run, compile costs, and how to use the result."""
    result, plan = outcome.result, outcome.plan
    if not result.ran:
        lines = [f"{plan.name}: nothing to do, all {len(result.skipped)} steps are up to date"]
    elif outcome.partial and not any(name.endswith("/verify") for name in result.ran):
        steps = ", ".join(result.ran)
        lines = [f"{plan.name}: ran {steps} in {time_text(result.wall_s)}, others were skipped"]
    else:
        rest = "others skipped" if outcome.partial else f"{len(result.skipped)} up to date"
        counts = f"{len(result.ran)} steps run, {rest}"
        lines = [f"{plan.name}: built in {time_text(result.wall_s)} ({counts})"]
    compiles = sum(times.compiles for times in outcome.times.values())
    if compiles:
        cpu_s = sum(times.cpu_s or 0.0 for times in outcome.times.values())
        peak = max(times.peak_memory_mib or 0.0 for times in outcome.times.values())
        lines.append(
            f"  compiles     {compiles}, {cpu_s:.0f} s CPU time, peak memory {_size(peak)}"
        )
        lines.append(f"  cache hits   {_cache_hits(outcome)}")
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
    """Return the summary of a build as JSON data."""
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
    return f"{mib / _MIB_PER_GIB:.1f} GiB" if mib >= _MIB_PER_GIB else f"{mib:.0f} MiB"


def _cache_hits(outcome: BuildOutcome) -> str:
    rates = [
        times.cache_hit_rate
        for times in outcome.times.values()
        if times.cache_hit_rate is not None and times.compiles
    ]
    if not rates:
        return "no compiler cache"
    return ", ".join(f"{rate:.0%}" for rate in rates)


_DOCTOR_HELP = """
\b
Examples:
  torchyard doctor                                   general checks of this machine
  torchyard doctor pytorch --variant cuda
  torchyard doctor pytorch --version 2.6.0 --set environment.use=conda --json

Check the prerequisites of a build: versions, memory, disk space, compilers, drivers, order of header
and library paths. Each finding suggests a fix. Exits with code 4 if the build cannot succeed.
"""


@click.command(help=_DOCTOR_HELP)
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
