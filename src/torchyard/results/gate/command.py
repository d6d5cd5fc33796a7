"""`torchyard gate`: fail when something is slower than allowed beyond doubt."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    printable,
    talk,
    write_file,
)
from torchyard.results.commands.options import find_run, percent, session_option

if TYPE_CHECKING:
    from torchyard.errors import TorchyardError
    from torchyard.results.compare.model import CrossComparison
    from torchyard.results.compare.sides import Side
    from torchyard.results.gate.decision import Gate
    from torchyard.results.gate.model import GateOutcome
    from torchyard.results.run_reader import Run

__all__ = ["gate"]

# Written out because nothing may be loaded for `--help`; a test holds them together.
METRICS: Final = ("speedup", "time", "compile", "memory")
ACTIONS: Final = ("pass", "warn", "fail")
SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"

_HELP = """
\b
Examples:
  torchyard gate --max-slowdown 2%
      the latest run, which compares two builds: its own verdicts, no history needed
  torchyard gate latest --baseline main --max-slowdown 2% --limit 'models/*=5%'
      against a saved baseline, with another limit for some workloads
  torchyard gate --baseline base.json --limits study.toml --markdown gate.md

Hold a run against limits. Exit code 7 when a limit is crossed for sure: the whole interval lies
beyond it. Exit code 6 when no limit is crossed and numbers of a workload with a limit are untrusted:
the gate has neither passed nor failed. What is undecided, not supported, missing or failing is decided by the options below, and
said. RUN is a run's id or the beginning of it, its folder, `latest` (when left out), or RUN#VARIANT.
"""


@click.command(help=_HELP)
@click.argument("run", default="latest", metavar="[RUN]")
@click.option(
    "--baseline",
    metavar="NAME|FILE|RUN",
    help="What limits are relative to. Without it: the baseline inside the run.",
)
@click.option("--max-slowdown", metavar="PERCENT", help="For every workload, such as 2%.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="PATTERN=PERCENT",
    help="For workloads that fit, such as 'models/*=5%'; the last one that fits counts.",
)
@click.option(
    "--limits",
    "limits_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A TOML file with a table [gate], such as a study; options override it.",
)
@click.option(
    "--metric",
    type=click.Choice(METRICS),
    help="What is limited; speedup when left out. time between two runs is never supported; "
    "compile and memory are single readings.",
)
@click.option(
    "--on-undecided",
    type=click.Choice(ACTIONS),
    help="When the interval holds the limit; warn when left out.",
)
@click.option(
    "--on-unsupported",
    type=click.Choice(ACTIONS),
    help="When the data cannot support a verdict; fail when left out.",
)
@click.option(
    "--on-failing",
    type=click.Choice(ACTIONS),
    help="When a workload fails now or its results are wrong; fail when left out.",
)
@click.option(
    "--require-all", is_flag=True, help="Fail when a workload of the baseline is not in the run."
)
@session_option
@click.option(
    "--markdown",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a summary for a pull request.",
)
@click.option(
    "--step-summary",
    is_flag=True,
    help=f"Append the summary to the file that ${SUMMARY_VARIABLE} names.",
)
@common_options
def gate(run: str, as_json: bool, **options: Any) -> int:
    """Compare, judge, report, and return the exit code."""
    from torchyard.errors import GateFailed, Untrustworthy
    from torchyard.results.compare.sides import choose_side
    from torchyard.results.gate.decision import run_gate
    from torchyard.results.gate.report import gate_json, gate_markdown, gate_text, gate_verdict

    wanted = _gate(options)
    files = _summary_files(options)
    side = choose_side(run, find=find_run)
    if side.newest.state != "finished":
        wanted = _strict(wanted, side.newest)
    outcome = run_gate(_comparison(side, options), wanted)
    for path, option, append in files:
        _write(path, gate_markdown(outcome), option=option, append=append)
    print_data(gate_json(outcome) if as_json else printable(gate_text(outcome)))
    if not outcome.failed and not outcome.untrusted:
        return 0
    kind = GateFailed if outcome.failed else Untrustworthy
    error: TorchyardError = kind(
        gate_verdict(outcome),
        why=_first_reasons(outcome),
        hint=f"`torchyard explain {kind.exit_code}` says more",
    )
    if not as_json:
        raise error
    # The object on stdout says it all; a second one would make it unreadable.
    talk(f"error: {error.what}")
    return error.exit_code


def _gate(options: dict[str, Any]) -> Gate:
    from torchyard.errors import UsageError
    from torchyard.results.gate.decision import Gate
    from torchyard.results.gate.model import (
        GateLimit,
        GateTable,
        Policy,
        read_gate_file,
        read_limit,
    )

    path = options["limits_file"]
    table = read_gate_file(path) if path is not None else GateTable()
    limits = [
        GateLimit(pattern=pattern, max_slowdown=read_limit(value, where=f"{path}: {pattern}"))
        for pattern, value in table.limits.items()
    ]
    for text in options["limits"]:
        pattern, mark, value = text.rpartition("=")
        if not mark or not pattern:
            raise UsageError(f"--limit: {text!r} is no limit", hint="write it like 'models/*=5%'")
        limits.append(GateLimit(pattern=pattern, max_slowdown=read_limit(value, where="--limit")))
    common = options["max_slowdown"] or table.max_slowdown
    if common is None and not limits:
        raise UsageError(
            "there is no limit",
            hint="give --max-slowdown 2%, --limit 'models/*=5%' or --limits FILE",
        )
    default = Policy()
    missing = "fail" if options["require_all"] else table.on_missing or default.on_missing
    return Gate(
        max_slowdown=None if common is None else read_limit(common, where="--max-slowdown"),
        limits=tuple(limits),
        metric=options["metric"] or table.metric or "speedup",
        policy=Policy(
            on_undecided=options["on_undecided"] or table.on_undecided or default.on_undecided,
            on_unsupported=(
                options["on_unsupported"] or table.on_unsupported or default.on_unsupported
            ),
            on_missing=missing,
            on_failing=options["on_failing"] or table.on_failing or default.on_failing,
        ),
    )


def _strict(wanted: Gate, run: Run) -> Gate:
    """A run that did not end well has not seen everything: what it lacks shuts the gate."""
    from torchyard.errors import UsageError

    if run.state == "running":
        raise UsageError(f"the run {run.id} is still going", hint="wait for it, then gate it")
    talk(f"warning: the run was {run.state}; workloads that it did not reach fail the gate")
    return replace(wanted, policy=replace(wanted.policy, on_missing="fail"))


def _comparison(side: Side, options: dict[str, Any]) -> CrossComparison:
    from torchyard.results.compare.compare_sides import compare_sides
    from torchyard.results.compare.sides import Rules, choose_side
    from torchyard.results.gate.decision import compare_inside
    from torchyard.stats.between_runs import SESSION_SD

    rules = Rules(
        confidence=1.0 - side.newest.study.budget.alpha,
        session_sd=percent(options["session_spread"], "--session-spread", SESSION_SD),
    )
    if options["baseline"] is None:
        return compare_inside(side, rules)
    base = choose_side(_baseline_text(options["baseline"]), find=find_run)
    return compare_sides(base, side, rules)


def _baseline_text(text: str) -> str:
    """A saved baseline's name goes before a run's; a file and `baseline:NAME` are clear already."""
    from torchyard.results.baselines import baseline_exists
    from torchyard.results.compare.sides import BASELINE_PREFIX

    name = text.partition("#")[0]
    return f"{BASELINE_PREFIX}{text}" if baseline_exists(name) else text


def _summary_files(options: dict[str, Any]) -> list[tuple[Path, str, bool]]:
    """Where the summary goes, checked before anything is compared."""
    from torchyard.errors import UsageError

    files: list[tuple[Path, str, bool]] = []
    if options["markdown"] is not None:
        check_writable(options["markdown"], option="--markdown")
        files.append((options["markdown"], "--markdown", False))
    if options["step_summary"]:
        place = os.environ.get(SUMMARY_VARIABLE)
        if not place:
            raise UsageError(
                f"--step-summary: ${SUMMARY_VARIABLE} is not set",
                why="only a job of GitHub Actions has it",
                hint="give --markdown FILE instead",
            )
        files.append((Path(place), "--step-summary", True))
    return files


def _write(path: Path, text: str, *, option: str, append: bool) -> None:
    if append:
        with suppress(OSError):  # the first step of a job makes it
            text = path.read_text(encoding="utf-8") + text
    write_file(path, text, option=option)
    if not append:
        talk(f"markdown: {path}")


def _first_reasons(outcome: GateOutcome) -> str:
    shut = [row for row in outcome.rows if row.action == "fail"]
    shut = shut or [row for row in outcome.rows if row.action == "untrusted"]
    names = ", ".join(f"{row.workload} ({row.standing})" for row in shut[:3])
    return f"{names} and {len(shut) - 3} more" if len(shut) > 3 else names  # noqa: PLR2004
