"""The table of an operator sweep: wasted work, its certainty and its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

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
