"""`torchyard gate`: fail if a workload is significantly slower than allowed."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from torchyard.cli.options import FILE
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_message,
    printable,
    write_file,
)
from torchyard.errors import GateFailed, TorchyardError, Untrustworthy, UsageError
from torchyard.results.commands.options import find_run, percent, session_option

if TYPE_CHECKING:
    from torchyard.results.compare.model import CrossComparison
    from torchyard.results.compare.sides import Side
    from torchyard.results.gate.decision import Gate
    from torchyard.results.gate.model import GateOutcome
    from torchyard.results.run_reader import Run


# Repeated here because `--help` must not load other modules; a test compares them.
METRICS: Final = ("speedup", "time", "compile", "memory")
ACTIONS: Final = ("pass", "warn", "fail")
SUMMARY_VARIABLE: Final = "GITHUB_STEP_SUMMARY"

_HELP = """
\b
Examples:
  torchyard gate --max-slowdown 2%
      the latest run: its candidates against its own baseline
  torchyard gate latest --baseline main --max-slowdown 2% --limit 'models/*=5%'
      against a saved baseline, with a different limit for some workloads
  torchyard gate --baseline base.json --limits study.toml --markdown gate.md

Check a run against limits. Exit code 7 if a limit is exceeded: the whole confidence interval is
beyond it. Exit code 6 if no limit is exceeded but a workload with a limit is untrusted. RUN is a
run id, a unique prefix of one, a folder, `latest`, or RUN#VARIANT. [default: latest]
"""


@click.command(help=_HELP)
@click.argument("run", default="latest", metavar="[RUN]")
@click.option(
    "--baseline",
    metavar="NAME|FILE|RUN",
    help="Baseline of the limits. [default: the run's own]",
)
@click.option("--max-slowdown", metavar="PERCENT", help="Limit for every workload, such as 2%.")
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="PATTERN=PERCENT",
    help="Limit for matching workloads: 'models/*=5%'; the last match applies.",
)
@click.option(
    "--limits",
    "limits_file",
    type=FILE,
    metavar="FILE",
    help="TOML file with a [gate] table, such as a study file.",
)
@click.option(
    "--metric",
    type=click.Choice(METRICS),
    help="`time` is never supported between two runs; `compile` and `memory` are single readings. [default: speedup]",
)
@click.option(
    "--on-undecided",
    type=click.Choice(ACTIONS),
    help="If the interval contains the limit. [default: warn]",
)
@click.option(
    "--on-unsupported",
    type=click.Choice(ACTIONS),
    help="If the data does not support a verdict. [default: fail]",
)
@click.option(
    "--on-failing",
    type=click.Choice(ACTIONS),
    help="If a workload fails or its results are wrong. [default: fail]",
)
@click.option("--require-all", is_flag=True, help="Fail if a workload of the baseline is missing.")
@session_option
@click.option(
    "--markdown", type=FILE, metavar="FILE", help="Write a Markdown summary for a pull request."
)
@click.option(
    "--step-summary", is_flag=True, help=f"Append the summary to the file in ${SUMMARY_VARIABLE}."
)
@click.option(
    "--why",
    "explain",
    is_flag=True,
    help="Explain the first workload that exceeds a limit: `torchyard why`.",
)
@common_options
def gate(run: str, as_json: bool, **options: Any) -> int:
    """Check a run against limits and return the exit code."""
    from torchyard.results.compare.sides import choose_side
    from torchyard.results.gate.decision import run_gate
    from torchyard.results.gate.report import gate_json, gate_markdown, gate_text, gate_verdict

    limits = _gate(options)
    files = _summary_files(options)
    side = choose_side(run, find=find_run)
    if side.newest.state != "finished":
        limits = _strict(limits, side.newest)
    comparison = _comparison(side, options)
    labels = [row.workload for row in comparison.rows]
    labels += [item.workload for item in comparison.unpaired]
    for pattern in limits.unmatched(labels):
        print_message(f"warning: the limit {pattern!r} matches no workload")
    outcome = run_gate(comparison, limits)
    for path, option, append in files:
        _write(path, gate_markdown(outcome), option=option, append=append)
    print_data(gate_json(outcome) if as_json else printable(gate_text(outcome)))
    if not outcome.failed and not outcome.untrusted:
        return 0
    if options["explain"]:
        _explain(outcome, side.newest, as_json=as_json)
    kind = GateFailed if outcome.failed else Untrustworthy
    error: TorchyardError = kind(
        gate_verdict(outcome),
        why=_first_reasons(outcome),
        hint=f"see `torchyard explain {kind.exit_code}`",
    )
    if not as_json:
        raise error
    # stdout already has one JSON object; a second one would make it invalid.
    print_message(f"error: {error.what}")
    return error.exit_code


def _explain(outcome: GateOutcome, run: Run, *, as_json: bool) -> None:
    """Explain the first exceeded limit: the candidate against the baseline of its own run."""
    from torchyard.cli.group import explain_run

    exceeded = [
        (row.workload, row.variants[1]) for row in outcome.rows if row.standing == "crossed"
    ]
    numbers = {
        (row.workload.label, row.candidate): number
        for number, row in enumerate(run.comparisons, start=1)
    }
    number = next((numbers[one] for one in exceeded if one in numbers), None)
    if number is None:
        print_message("why: no limit is exceeded by a comparison of this run")
        return
    explain_run(run.folder, number, quiet=False, as_json=as_json)


def _gate(options: dict[str, Any]) -> Gate:
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
            raise UsageError(f"--limit: {text!r} is not a limit", hint="use the form 'models/*=5%'")
        limits.append(GateLimit(pattern=pattern, max_slowdown=read_limit(value, where="--limit")))
    common = options["max_slowdown"] or table.max_slowdown
    if common is None and not limits:
        raise UsageError(
            "no limit given", hint="use --max-slowdown 2%, --limit 'models/*=5%' or --limits FILE"
        )
    values = {**options, "on_missing": "fail" if options["require_all"] else None}
    actions = {item.name: values[item.name] or getattr(table, item.name) for item in fields(Policy)}
    return Gate(
        max_slowdown=None if common is None else read_limit(common, where="--max-slowdown"),
        limits=tuple(limits),
        metric=options["metric"] or table.metric or "speedup",
        policy=Policy(**{name: action for name, action in actions.items() if action}),
    )


def _strict(limits: Gate, run: Run) -> Gate:
    """Make missing workloads fail the gate, for a run that did not finish."""
    if run.state == "running":
        raise UsageError(f"the run {run.id} is still running", hint="wait until it has finished")
    print_message(
        f"warning: the run is {run.state}; workloads that it did not measure fail the gate"
    )
    return replace(limits, policy=replace(limits.policy, on_missing="fail"))


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
    """Prefer the name of a saved baseline over the id of a run."""
    from torchyard.results.baselines import baseline_exists
    from torchyard.results.compare.sides import BASELINE_PREFIX

    name = text.partition("#")[0]
    return f"{BASELINE_PREFIX}{text}" if baseline_exists(name) else text


def _summary_files(options: dict[str, Any]) -> list[tuple[Path, str, bool]]:
    """Return the output files of the summary, checked before the comparison."""
    files: list[tuple[Path, str, bool]] = []
    if options["markdown"] is not None:
        check_writable(options["markdown"], option="--markdown")
        files.append((options["markdown"], "--markdown", False))
    if options["step_summary"]:
        place = os.environ.get(SUMMARY_VARIABLE)
        if not place:
            raise UsageError(
                f"--step-summary: ${SUMMARY_VARIABLE} is not set",
                why="only GitHub Actions sets it",
                hint="use --markdown FILE instead",
            )
        files.append((Path(place), "--step-summary", True))
    return files


def _write(path: Path, text: str, *, option: str, append: bool) -> None:
    if append:
        with suppress(OSError):  # the first step of a job creates it
            text = path.read_text(encoding="utf-8") + text
    write_file(path, text, option=option)
    if not append:
        print_message(f"markdown: {path}")


def _first_reasons(outcome: GateOutcome) -> str:
    from torchyard.results.gate.report import with_short_names

    outcome = with_short_names(outcome)
    rows = [row for row in outcome.rows if row.action == "fail"]
    rows = rows or [row for row in outcome.rows if row.action == "untrusted"]
    names = ", ".join(f"{row.workload} ({row.standing})" for row in rows[:3])
    return f"{names} and {len(rows) - 3} more" if len(rows) > 3 else names  # noqa: PLR2004
