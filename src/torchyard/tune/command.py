"""`torchyard tune`: find and confirm the fastest settings for a workload on this machine."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchyard.bench.commands.options import DEVICE_OPTIONS, MEMORY_LIMIT, PLACE_OPTIONS, step_limit
from torchyard.cli.options import (
    FILE,
    FOLDER,
    SectionedCommand,
    all_options,
    given_options,
    section,
)
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_message,
    print_result,
    write_file,
)
from torchyard.core.study import PHASES
from torchyard.errors import Untrustworthy, UsageError

if TYPE_CHECKING:
    from torchyard.bench.request import WorkloadChoice
    from torchyard.core.study import Study
    from torchyard.tune.model import Race, RaceFolder
    from torchyard.tune.round_times import RoundTimes


DEFAULT_BUDGET = "10m"
_VALID_WITH_RESUME = frozenset({"resume", "budget", "html", "env_file", "quiet"})

_HELP = """
\b
Examples:
  torchyard tune models/gpt --mode training --optimizer-step
      allocators, threads, OpenMP, oneDNN and compilers, in ten minutes
  torchyard tune kernels/mlp --batch-size 16 --budget 5m --html race.html
  torchyard tune mine.py:model --space my-space.toml --with-changed-results
  torchyard tune models/gpt:prompt=512 --mode decode
      time per token of text generation
  torchyard tune models/resnet --goal throughput
      also tries several processes, each on its share of the cores
  torchyard tune infer.py --program
      a whole program, run repeatedly with different settings
  torchyard tune --resume FOLDER
  torchyard tune --resume FOLDER --budget 20m
      give an undecided race more time

Race settings against the default, first individually, then combined. A setting is recommended only
if it is significantly faster on launches that had no part in selecting it. Settings that this
machine lacks are listed with the package that provides them.
"""

_what, _search = section("What to run"), section("What to search")
_how, _out = section("How to measure"), section("Where results go")

_OPTIONS = (
    _what(
        "--mode",
        type=click.Choice(("inference", "training", *PHASES)),
        help="Mode of the workload. [default: inference]",
    ),
    _what("--program", is_flag=True, help="The file is a program; an iteration is one run."),
    _what(
        "--default",
        "baseline",
        metavar="SPEC",
        help="The variant to make faster, such as inductor+bfloat16. [default: eager]",
    ),
    *DEVICE_OPTIONS,
    *PLACE_OPTIONS,
    _search(
        "--space", metavar="default|FILE.toml", help="Search space of settings. [default: default]"
    ),
    _search(
        "--goal",
        type=click.Choice(("latency", "throughput")),
        help="Time of an iteration, or iterations per second, also of several parallel processes. [default: latency]",
    ),
    _search(
        "--budget",
        metavar="DURATION",
        help=f"Wall time; with --resume the new total. [default: {DEFAULT_BUDGET}]",
    ),
    _search(
        "--with-changed-results",
        is_flag=True,
        help="Also try settings that change results by design: fast-math, TF32.",
    ),
    _search("--dry-run", is_flag=True, help="Show the settings to try without running them."),
    _how("--threads", metavar="N", help="Threads of the default. [default: one per core]"),
    _how(
        "--seed",
        metavar="N",
        help="Seed of inputs, weights and the order of pairs. [default: 1337]",
    ),
    MEMORY_LIMIT,
    step_limit("a quarter of the budget"),
    _out(
        "--run-dir",
        type=FOLDER,
        metavar="FOLDER",
        help="Store the race here instead of in the results directory.",
    ),
    _out(
        "--resume",
        type=FOLDER,
        metavar="FOLDER",
        help="Resume an interrupted race.",
    ),
    _out(
        "--env-file",
        type=FILE,
        metavar="FILE",
        help="Write the variables of the winner as NAME=value lines.",
    ),
    _out("--html", type=FILE, metavar="FILE", help="Write the race with charts as one HTML file."),
    _out("-q", "--quiet", is_flag=True, help="No progress on stderr."),
)


@click.command(cls=SectionedCommand, help=_HELP)
@click.argument("workload", required=False, metavar="[WORKLOAD|FILE.py]")
@all_options(_OPTIONS)
@common_options
def tune(workload: str | None, as_json: bool, **options: Any) -> int:
    """Race settings for a workload."""
    from torchyard.bench.target_checks import check_devices
    from torchyard.cli.invoke import INTERRUPTED
    from torchyard.core.study import Study
    from torchyard.results.directory import new_run_folder
    from torchyard.tune.model import RaceFolder, races_home
    from torchyard.tune.report import race_text, space_text
    from torchyard.tune.round_times import RoundTimes

    began_s = time.monotonic()
    for name in ("html", "env_file"):
        if options[name] is not None:
            check_writable(options[name], option="--" + name.replace("_", "-"))
    folder, race = _begin(workload, options)
    if folder is None:
        race = _with_likely_winners_first(race)
    if options["dry_run"]:
        record = {"space": race.space, "workload": race.workload}
        print_result(record, space_text(race), as_json=as_json)
        return 0
    if folder is None:
        here = Study(name="tune", baseline=race.default, candidates=(), workloads=(race.workload,))
        check_devices([here])
        folder = RaceFolder.create(options["run_dir"] or new_run_folder(races_home()))
        folder.write(race)
    times = RoundTimes(import_s=race.import_s)
    _warn_about_short_budget(race, times, time.monotonic() - began_s)
    race, interrupted = _run(folder, race, times, began_s=began_s, quiet=options["quiet"])
    program = workload if options["program"] and workload else "PROGRAM.py"
    text = race_text(race, program=("python", program))
    print_result({"race": race, "folder": str(folder.folder)}, text, as_json=as_json)
    _write(race, folder, html=options["html"], env_file=options["env_file"])
    if not options["quiet"]:
        print_message(f"race folder: {folder.folder}")
    if interrupted:
        print_message(f"resume with: torchyard tune --resume {shlex.quote(str(folder.folder))}")
        return INTERRUPTED
    if race.confirmed is not None and race.confirmed.untrusted:
        return Untrustworthy.exit_code
    return 0


def _begin(workload: str | None, options: dict[str, Any]) -> tuple[RaceFolder | None, Race]:
    """Return a new race, or a stored one to resume with its folder."""
    from torchyard.tune.model import RaceFolder, read_race
    from torchyard.tune.space import plan_race, with_budget

    if options["resume"] is not None:
        if workload is not None:
            raise UsageError(
                "both a workload and --resume are given",
                hint="omit the workload: a resumed race keeps its own",
            )
        other_options = given_options(click.get_current_context(), options, but=_VALID_WITH_RESUME)
        if other_options:
            raise UsageError(
                "--resume continues the stored race",
                why=f"{', '.join(other_options)} would change it",
                hint="start a new race, or omit these options; --budget gives this race more time",
            )
        race = read_race(options["resume"])
        if options["budget"] is not None:
            race = with_budget(race, _seconds(options["budget"]))
        return RaceFolder.open(options["resume"]), race
    if workload is None:
        raise UsageError(
            "no workload given", hint="`torchyard workloads` lists them; FILE.py is your own"
        )
    study = _study(workload, options)
    race = plan_race(
        study,
        space=options["space"] or "default",
        budget_s=_seconds(options["budget"] or DEFAULT_BUDGET),
        with_changes=options["with_changed_results"],
        goal=options["goal"] or "latency",
        step_limit_given=options["step_limit"] is not None,
    )
    return None, race


def _study(workload: str, options: dict[str, Any]) -> Study:
    from torchyard.bench.commands.options import request_of_study_options, spec_of_option
    from torchyard.bench.study_assembly import assemble
    from torchyard.bench.workload_text import choose_workload

    chosen = _chosen_program(workload) if options["program"] else None
    spec = spec_of_option(workload, "WORKLOAD", Path.cwd())
    request = replace(
        request_of_study_options(options),
        workloads=(chosen or choose_workload(spec),),
        modes=(options["mode"],) if options["mode"] else (),
        candidates=(spec_of_option("aot_eager", "the race", Path.cwd()),),
    )
    return assemble(request, here=sys.executable)


def _chosen_program(text: str) -> WorkloadChoice:
    from torchyard.bench.request import WorkloadChoice

    path = Path(text).expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"no such file: {text!r}", hint="--program needs the path of a program")
    return WorkloadChoice(where="WORKLOAD", suite="script", name=str(path))


def _seconds(text: str) -> float:
    from torchyard.core.number_checks import CHECKS

    return float(CHECKS["time"].read(text, where="--budget"))


def _with_likely_winners_first(race: Race) -> Race:
    """Order the choices by what earlier races and runs show."""
    from torchyard.results.commands.options import fresh_store
    from torchyard.tune.model import known_speedups, ordered_choices, races_home

    with fresh_store() as store:
        speedups = known_speedups(race, races=races_home(), store=store)
    choices = tuple(ordered_choices(race.space.choices, speedups))
    return replace(race, space=replace(race.space, choices=choices))


def _warn_about_short_budget(race: Race, times: RoundTimes, elapsed_s: float) -> None:
    """Say before the first round how much time one choice needs, if that is more than the budget."""
    from torchyard.tune.model import Contender

    default = Contender()
    contenders = [default.with_choice(choice) for choice in race.space.choices]
    minimum_s = min(times.minimum_s(default, one) for one in contenders) + elapsed_s
    if minimum_s > race.budget_s and not race.heats:
        print_message(
            f"warning: --budget {race.budget_s:g}s is short: to try and confirm one setting takes "
            f"about {minimum_s:.0f} s here"
        )


def _run(
    folder: RaceFolder, race: Race, times: RoundTimes, *, began_s: float, quiet: bool
) -> tuple[Race, bool]:
    from torchyard.cli.progress import ComparisonCollector, show_progress
    from torchyard.core.events import Event
    from torchyard.tune.race import RaceRun
    from torchyard.tune.race_rounds import RaceRounds

    with show_progress(ComparisonCollector(), quiet=quiet) as listener:

        def within_race(event: Event) -> None:
            if event.kind in ("phase", "look", "launch", "warning"):
                listener(replace(event, fraction=min(0.99, rounds.elapsed_s / race.budget_s)))

        def on_round(_race: Race, text: str) -> None:
            fraction = min(0.99, rounds.elapsed_s / race.budget_s)
            listener(Event(kind="workload", text=text, fraction=fraction))

        rounds = RaceRounds(
            folder, race, command=list(sys.argv), listener=within_race, began_s=began_s
        )
        run = RaceRun(folder, race, rounds, listener=on_round, times=times)
        try:
            return run.run(), False
        except KeyboardInterrupt:
            return run.race, True


def _write(race: Race, folder: RaceFolder, *, html: Path | None, env_file: Path | None) -> None:
    from torchyard.tune.report import environment_file, race_page, study_text

    if html is not None:
        write_file(html, race_page(race), option="--html")
        print_message(f"html: {html}")
    if race.winner is None:
        if env_file is not None:
            print_message(f"{env_file} not written: no setting is recommended")
        return
    text = environment_file(race.winner, race.default)
    write_file(folder.folder / "winner.env", text, option="--run-dir")
    study = study_text(race.winner, race.default)
    write_file(folder.folder / "winner.toml", study, option="--run-dir")
    if env_file is not None:
        write_file(env_file, text, option="--env-file")
        print_message(f"environment: {env_file}")
