"""Untrusted results are marked as untrusted in every view, for every reason."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.sample_run import COMPARISONS, STUDY, write_run
from tests.dashboard.sample_dashboard import MATMUL as HOME_MATMUL
from tests.dashboard.sample_dashboard import comparison as home_comparison
from tests.dashboard.sample_dashboard import open_client
from tests.dashboard.sample_dashboard import write_run as write_home_run
from tests.sweep.sample_sweeps import cell, comparison, plan, run, status, study, workload
from tests.tune.sample_race import sample_race
from torchyard.bench.bench_run import adjusted_for_suite
from torchyard.bench.commands.execution import exit_code_of
from torchyard.bench.report.formats import FORMATS
from torchyard.bench.report.suite_summary import suite_means
from torchyard.bench.report.text import comparison_table
from torchyard.core.comparison import UNTRUSTED, Comparison, Verdict
from torchyard.core.records import decode, encode
from torchyard.results.index.store import Store
from torchyard.results.model import RunFilter
from torchyard.results.report import comparison_table as results_table
from torchyard.results.run_reader import Run
from torchyard.sweep.commands.cell_progress import verdicts_text
from torchyard.sweep.report.formats import SWEEP_FORMATS, render_sweep
from torchyard.sweep.summary import sweep_summary
from torchyard.tune.report import race_page, race_text

REASON = "the candidate replaced the clock"
"""Not a noisy machine: no view may know reasons."""
FIRST = COMPARISONS[0]
BAD = replace(FIRST, untrusted=(REASON,))


@pytest.fixture(scope="module")
def untrusted_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    found = write_run(tmp_path_factory.mktemp("run") / "run")
    return replace(found, comparisons=(BAD,), study=replace(STUDY, workloads=(BAD.workload,)))


def test_the_sample_would_be_called_faster() -> None:
    assert FIRST.verdict is Verdict.FASTER
    assert FIRST.trusted


def test_the_state_replaces_timing_verdicts_only() -> None:
    for verdict in (Verdict.FASTER, Verdict.SLOWER, Verdict.SAME, Verdict.UNDECIDED):
        assert replace(BAD, verdict=verdict).state is Verdict.UNTRUSTED
    assert replace(BAD, verdict=Verdict.WRONG).state is Verdict.WRONG
    assert replace(BAD, verdict=Verdict.FAILED).state is Verdict.FAILED
    assert BAD.break_even_iterations is None


def test_notes_of_earlier_releases_are_read_as_reasons() -> None:
    note = "busy machine: 9 of 9 pairs were disturbed"
    record = encode(FIRST) | {"notes": [note, "another note"]}
    del record["untrusted"]
    old = decode(Comparison, record, where="", strict=False)
    assert (old.untrusted, old.notes, old.state) == ((note,), ("another note",), UNTRUSTED)
    assert replace(old, elapsed_s=1.0).untrusted == (note,)


@pytest.mark.parametrize("name", ["terminal", "markdown", "csv", "json", "html"])
def test_every_format_shows_state_and_reason_and_no_verdict(name: str, untrusted_run: Run) -> None:
    text = FORMATS[name](untrusted_run)
    body = text.partition("<body")[2] or text  # the style sheet knows every verdict
    assert "untrusted" in body
    assert REASON in body
    words = ("▲", '"verdict faster"', '"plot faster"') if name == "html" else ("▲", "faster")
    for word in words:
        assert word not in body, word


def test_numbers_are_in_parentheses_and_without_p(untrusted_run: Run) -> None:
    text = FORMATS["terminal"](untrusted_run)
    (row,) = [line for line in text.splitlines() if "! untrusted" in line and "x [" in line]
    assert "(1." in row
    assert "<0.001" not in row
    assert "(1." in FORMATS["markdown"](untrusted_run)


def test_a_narrow_terminal_closes_its_parentheses() -> None:
    from rich.console import Console

    page = io.StringIO()
    console = Console(file=page, width=80, color_system=None, force_terminal=False)
    console.print(comparison_table([BAD]))
    text = page.getvalue()
    assert re.search(r"\(1\.\d+x\) +! untrusted", text)
    assert "([" in text
    assert "])" in text


def test_json_says_it_in_every_key(untrusted_run: Run) -> None:
    document = json.loads(FORMATS["json"](untrusted_run))
    (row,) = document["comparisons"]
    assert (row["state"], row["verdict"], row["trusted"]) == ("untrusted", "untrusted", False)
    assert row["untrusted"] == [REASON]
    assert row["break_even"] is None
    assert document["summary"]["verdicts"] == {"untrusted": 1}
    assert document["summary"]["geometric_means"] == []
    assert document["summary"]["not_in_mean"][0]["reason"] == REASON


def test_csv_has_columns_for_it(untrusted_run: Run) -> None:
    (row,) = csv.DictReader(io.StringIO(FORMATS["csv"](untrusted_run)))
    assert (row["verdict"], row["trusted"], row["untrusted"]) == ("untrusted", "false", REASON)
    (row,) = csv.DictReader(io.StringIO(FORMATS["dynamo-csv"](untrusted_run)))
    assert (float(row["speedup"]), float(row["abs_latency"])) == (0.0, 0.0)


def test_untrusted_rows_have_their_own_style(untrusted_run: Run) -> None:
    page = FORMATS["html"](untrusted_run)
    assert ".verdict.untrusted { font-weight: 400;" in page
    assert '<span class="verdict untrusted">' in page
    assert 'class="count untrusted"' in page
    assert '<svg class="plot untrusted"' in page
    assert "1 of 1 comparisons is untrusted" in page


def test_means_leave_it_out_and_say_how_many(untrusted_run: Run) -> None:
    rows = [replace(FIRST, workload=replace(FIRST.workload, name=name)) for name in "ab"]
    huge = replace(
        BAD, estimate=replace(BAD.estimate, speedup=1000.0) if BAD.estimate is not None else None
    )
    (alone,), (mean,) = suite_means(rows), suite_means([*rows, huge])
    assert mean.speedup == alone.speedup
    assert (mean.comparisons, mean.untrusted) == (2, 1)
    text = FORMATS["terminal"](replace(untrusted_run, comparisons=(*rows, huge)))
    assert "over 2 comparisons (1 untrusted excluded)" in text


def test_the_correction_for_several_comparisons_leaves_it_out() -> None:
    rows = [replace(FIRST, workload=replace(FIRST.workload, name=str(n))) for n in range(3)]
    alone = adjusted_for_suite(rows, 0.05)
    beside = adjusted_for_suite([*rows, *[BAD] * 50], 0.05)
    assert beside[:3] == alone
    assert beside[3:] == [BAD] * 50


@pytest.mark.parametrize("form", sorted(SWEEP_FORMATS))
def test_a_sweep_shows_it_and_counts_it_in_no_mean(form: str) -> None:
    one, other = workload("one"), workload("other")
    cells = [cell(1, study(one)), cell(2, study(other))]
    bad = replace(comparison(one, speedup=9.0), untrusted=(REASON,))
    summary = sweep_summary(
        plan(cells), [status(c) for c in cells], [run([bad, comparison(other, speedup=1.2)])]
    )
    rows = {row.workload: row for row in summary.rows}
    assert rows[one.label].verdict is Verdict.UNTRUSTED
    assert rows[one.label].p_adjusted is None
    (group,) = summary.groups
    assert (group.untrusted, group.common and group.common.workloads) == (1, 1)
    assert group.common is not None
    assert group.common.speedup == pytest.approx(1.2)
    assert [row.workload for row in summary.best] == [other.label]
    text = render_sweep(summary, form)
    assert "untrusted" in text.partition("<body")[2] or "untrusted" in text
    if form == "json":
        document = json.loads(text)
        assert [row["trusted"] for row in document["rows"]] == [False, True]
        assert document["rows"][0]["state"] == "untrusted"
    else:
        assert "1 untrusted excluded" in text
    if form == "html":
        assert REASON in text


def test_progress_and_exit_code() -> None:
    assert verdicts_text([BAD]).startswith("inductor untrusted (")
    assert REASON in verdicts_text([BAD])
    assert exit_code_of([FIRST, BAD]) == 6
    assert exit_code_of([FIRST]) == 0


def test_a_race_recommends_nothing_on_it() -> None:
    race = sample_race()
    assert race.confirmed is not None
    bad = replace(race, winner=None, confirmed=replace(race.confirmed, untrusted=REASON))
    for text in (race_text(bad), race_page(bad)):
        assert "no recommendation: the confirmation of" in text
        assert REASON in text
        assert "the default is best" not in text


def test_lists_of_results_and_of_the_dashboard(tmp_path: Path) -> None:
    home = tmp_path / "runs"
    row = replace(home_comparison(HOME_MATMUL, Verdict.FASTER, 1.3), untrusted=(REASON,))
    write_home_run(home / "20250101T120000.000Z-0001", rows=[row])
    with Store.open(home) as store:
        store.refresh()
        (entry,) = store.comparisons(RunFilter())
        assert (entry.verdict, entry.trusted, entry.untrusted) == (UNTRUSTED, False, REASON)
        assert store.comparisons(RunFilter(verdicts=(Verdict.FASTER,))) == []
        assert len(store.runs(RunFilter(verdicts=(Verdict.UNTRUSTED,)))) == 1
        assert store.runs(RunFilter())[0].verdicts == ((Verdict.UNTRUSTED, 1),)
        (series,) = store.series(RunFilter(), "speedup")
        assert [point.untrusted for point in store.points(series)] == [True]
    table = results_table([entry])
    assert "(1.300)" in table
    assert REASON in table
    with open_client(home) as dashboard:
        for address in ("/", "/workloads"):
            body = dashboard.page(address).partition("<tbody")[2]
            assert "untrusted" in body, address
            assert "▲" not in body, address
            assert "faster" not in body, address
        workloads = dashboard.page("/workloads")
        assert REASON in workloads
        assert "(1.300x)" in workloads
