"""`torchyard values sweep`: sweep the operators of a PyTorch build for wasted work."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from torchyard.cli.options import FILE, FOLDER
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    print_message,
    printable,
    write_file,
)
from torchyard.core.units import format_bytes, format_count, format_percent
from torchyard.presentation.safe_text import aligned, one_line
from torchyard.presentation.tables import markdown_table
from torchyard.values.model import Certainty
from torchyard.values.operator_sweep.model import CaseState, OperatorCase, OperatorFinding, Sweep

COLUMNS: Final = (
    *("case", "direction", "pattern", "operators"),
    *("bytes", "certainty", "share", "gain"),
)
_RIGHT: Final = (4, 6, 7)
_ORDER: Final = {certainty: place for place, certainty in enumerate(Certainty)}
_MOST_NAMED: Final = 6

CaseFinding = tuple[OperatorCase, OperatorFinding]


def values_sweep_text(sweep: Sweep) -> str:
    """Return the report for a terminal."""
    rows = [_cells(case, finding) for case, finding in _shown(sweep)]
    table = aligned([COLUMNS, *rows], right=_RIGHT) if rows else _nothing(sweep)
    return "\n".join([table, "", *_summary(sweep)]) + "\n"


def values_sweep_markdown(sweep: Sweep) -> str:
    """Return the report as Markdown."""
    lines = [f"torch {sweep.torch}, {sweep.device}, {_threads(sweep)}.", ""]
    rows = [_cells(case, finding) for case, finding in _shown(sweep)]
    if rows:
        lines += markdown_table(COLUMNS, map(_as_code, rows), right=_RIGHT)
    else:
        lines.append(_nothing(sweep).capitalize() + ".")
    return "\n".join([*lines, "", *(f"- {_escaped(line)}" for line in _summary(sweep))]) + "\n"


def _shown(sweep: Sweep) -> list[CaseFinding]:
    """Return findings by certainty, then cost, without those that occur only under the profiler."""
    findings = [(case, one) for case in sweep.cases for one in case.findings if one.native]
    return sorted(
        findings,
        key=lambda item: (
            _ORDER[item[1].proof.certainty],
            item[1].pattern,
            -(item[1].worth.share or 0.0),
            item[0].case,
        ),
    )


def _cells(case: OperatorCase, finding: OperatorFinding) -> tuple[str, ...]:
    worth = finding.worth
    return (
        one_line(case.case),
        finding.direction,
        finding.pattern,
        one_line(" > ".join(_short(name) for name in (*finding.path, finding.operator))),
        format_bytes(finding.bytes_wasted),
        finding.proof.certainty.value,
        "" if worth.share is None else format_percent(worth.share),
        "" if worth.gain is None else f"{worth.gain:.2f}x",
    )


def _summary(sweep: Sweep) -> Iterator[str]:
    shown = _shown(sweep)
    counts = Counter(finding.proof.certainty for _, finding in shown)
    with_backward = sum("backward" in case.directions for case in sweep.cases)
    certainties = ", ".join(f"{counts[one]} {one.value}" for one in Certainty)
    cases = len({case.case for case, _ in shown})
    yield (
        f"{len(sweep.cases)} of {len(sweep.names)} cases ({with_backward} with a backward) of torch "
        f"{sweep.torch} on {sweep.device}, {_threads(sweep)}"
    )
    yield f"{len(shown)} findings in {cases} cases: {certainties}"
    profiler_only = sum(not one.native for case in sweep.cases for one in case.findings)
    if profiler_only:
        yield f"{profiler_only} not shown: torch does this work only while it is profiled"
    unexamined = sum(case.not_seen_bytes for case in sweep.cases)
    if unexamined:
        written = sum(case.written_bytes for case in sweep.cases)
        yield (
            f"{format_bytes(unexamined)} of {format_bytes(written)} written could not be examined: "
            "waste in them is not reported"
        )
    not_tried = sum(case.not_tried for case in sweep.cases)
    if not_tried:
        yield f"{not_tried} trials could not run: the findings they concern are at most likely"
    for state in CaseState:
        ended = [case for case in sweep.cases if case.state is state]
        if ended and state is not CaseState.DONE:
            yield f"{len(ended)} {state.value}: {_named(ended)}"


def _nothing(sweep: Sweep) -> str:
    examined = any(case.written_bytes > case.not_seen_bytes for case in sweep.cases)
    return "no wasted work was found" if examined or not sweep.cases else "nothing was examined"


def _named(cases: Sequence[OperatorCase]) -> str:
    named = [f"{one_line(case.case)} ({one_line(case.why)[:100]})" for case in cases[:_MOST_NAMED]]
    more = len(cases) - len(named)
    return "; ".join(named) + (f"; and {more} more" if more else "")


def _threads(sweep: Sweep) -> str:
    return format_count(sweep.settings.threads, "thread")


def _short(name: str) -> str:
    return name.removeprefix("aten::")


def _as_code(cells: Sequence[str]) -> list[str]:
    """Format names as code: many end in an underscore, which Markdown would interpret."""
    codes = {"case", "operators"}
    return [
        "`" + cell.replace("`", "'").replace("|", "\\|") + "`" if column in codes else cell
        for column, cell in zip(COLUMNS, cells, strict=True)
    ]


def _escaped(text: str) -> str:
    for mark in ("\\", "|", "<", "`", "*", "_"):
        text = text.replace(mark, "\\" + mark)
    return text


_HELP = """
\b
Examples:
  torchyard values sweep --only '*_loss*'
  torchyard values sweep --target build:pytorch-2.6.0-trimmed --markdown waste.md
  torchyard values sweep --device cuda
  torchyard values sweep --resume FOLDER

Run hundreds of operators, forward and backward, inspect what they write internally, and test each
finding: with poison values, without the write, on other inputs, and without the profiler. Each result
is stored as soon as it is available. A case whose process crashes is reported as crashed.
"""


@click.command(help=_HELP)
@click.option(
    "--target",
    metavar="PYTHON",
    help="Python interpreter or build:NAME. [default: this interpreter]",
)
@click.option("--device", metavar="DEVICE", help="cpu, cuda or cuda:1. [default: cpu]")
@click.option("--only", metavar="PATTERN", help="Only cases whose name matches, such as 'conv*'.")
@click.option(
    "--cases",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Python file with a list CASES of additional cases.",
)
@click.option(
    "--resume",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Resume a sweep with its settings.",
)
@click.option(
    "--run-dir",
    type=FOLDER,
    metavar="FOLDER",
    help="Directory for the sweep; must be new or empty.",
)
@click.option("--markdown", type=FILE, metavar="FILE", help="Also write the table to a file.")
@click.option("-q", "--quiet", is_flag=True, help="Do not print progress to stderr.")
@common_options
def sweep(as_json: bool, markdown: Path | None, resume: Path | None, **options: Any) -> None:
    """Search operators for wasted work."""
    from torchyard.core.records import encode
    from torchyard.errors import UsageError
    from torchyard.values.operator_sweep.command import values_sweep_markdown, values_sweep_text
    from torchyard.values.operator_sweep.model import resume_sweep, start_sweep

    if markdown is not None:
        check_writable(markdown, option="--markdown")
    say = (lambda _: None) if options["quiet"] else print_message
    if resume is not None:
        given = [name for name in ("target", "device", "only", "cases", "run_dir") if options[name]]
        if given:
            raise UsageError(
                f"--resume uses the settings of {resume}",
                why="--" + ", --".join(given).replace("_", "-") + " would change them",
                hint="start a new sweep to change settings",
            )
        result, folder = resume_sweep(resume, say=say)
    else:
        result, folder = start_sweep(_settings(options), folder=options["run_dir"], say=say)
    if markdown is not None:
        write_file(markdown, values_sweep_markdown(result), option="--markdown")
    if as_json:
        print_json({"sweep": encode(result), "folder": str(folder)})
    else:
        print_data(printable(values_sweep_text(result)))


def _settings(options: dict[str, Any]) -> Any:
    from torchyard.cli.build_target import with_build_folder
    from torchyard.core.study import Target
    from torchyard.core.variant_parts import parse_target
    from torchyard.values.operator_sweep.model import SweepSettings

    target = Target(name="here", python=sys.executable)
    if options["target"]:
        text = with_build_folder(options["target"])
        target = parse_target(text, folder=Path.cwd(), where="--target", default_name="target")
    cases = options["cases"]
    return SweepSettings(
        python=target.python,
        target=target.name,
        device=_device(options["device"]),
        only=options["only"] or "*",
        cases_file=None if cases is None else str(cases.absolute()),
        variables=tuple(target.variables),
    )


def _device(text: str | None) -> str:
    from torchyard.core.variant_parts import check_device

    return "cpu" if text is None else check_device(text, where="--device")
