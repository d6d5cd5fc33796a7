"""The summary of a sweep in every format."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.bench.report.test_golden import check
from tests.sweep.sample_sweeps import cell as cell_of
from tests.sweep.sample_sweeps import (
    comparison,
    failed,
    null_sweep,
    plan,
    run,
    status,
    study,
    whole_sweep,
)
from tests.sweep.sample_sweeps import workload as workload_of
from torchyard.errors import UsageError
from torchyard.sweep.model import ENDS, SweepSummary
from torchyard.sweep.report.formats import (
    SWEEP_FORMATS,
    render_sweep,
    reports_beside,
    shared_summary,
)
from torchyard.sweep.report.text import alarm_lines, end_text, seconds_text
from torchyard.sweep.summary import sweep_summary

ENDINGS = {"text": "txt", "markdown": "md", "json": "json", "html": "html"}
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m|`*&\u202e"


@pytest.fixture(scope="module")
def whole() -> SweepSummary:
    return sweep_summary(*whole_sweep())


@pytest.fixture(scope="module")
def null() -> SweepSummary:
    return sweep_summary(*null_sweep(40))


def hostile() -> SweepSummary:
    one = workload_of(HOSTILE, suite=HOSTILE)
    other = workload_of("other")
    names = (HOSTILE, "b")
    cells = [cell_of(1, study(one, candidates=names)), cell_of(2, study(other, candidates=names))]
    rows = [
        comparison(one, candidate=HOSTILE),
        failed(one, "crashed", candidate="b", tail=f"</pre><script>1</script>{HOSTILE}\n"),
        comparison(other, candidate=HOSTILE),
        comparison(other, candidate="b"),
    ]
    changed = replace(plan(cells), name=HOSTILE, revision=HOSTILE, created=HOSTILE)
    return sweep_summary(changed, [status(c) for c in cells], [run(rows, id_="a'b\"<c>")])


def test_every_form_has_a_golden_file() -> None:
    assert set(ENDINGS) == set(SWEEP_FORMATS)


@pytest.mark.parametrize("form", sorted(ENDINGS))
def test_form(form: str, whole: SweepSummary) -> None:
    check(f"sweep.{ENDINGS[form]}", render_sweep(whole, form))


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_null_form(form: str, null: SweepSummary) -> None:
    check(f"sweep-null.{ENDINGS[form]}", render_sweep(null, form))


def test_a_form_that_is_none_is_named(whole: SweepSummary) -> None:
    with pytest.raises(UsageError, match="'htlm' is not a form") as caught:
        render_sweep(whole, "htlm")
    assert "html" in caught.value.hint


def test_json_says_everything_that_the_summary_holds(whole: SweepSummary) -> None:
    document = json.loads(render_sweep(whole, "json"))
    assert document["schema"] == "torchyard.sweep-summary"
    assert document["schema_version"] == 1
    assert len(document["rows"]) == len(whole.rows)
    first = document["groups"][0]
    assert (first["suite"], first["passed"], first["workloads"]) == ("kernels", 4, 4)
    assert first["ends"] == {"passed": 4}
    best = [document["rows"][place]["speedup"] for place in document["best"]]
    assert best == sorted(best, reverse=True)
    assert document["rows"][document["worst"][0]]["workload"] == "kernels/pad inference"


def test_json_of_a_null_sweep_has_its_answer(null: SweepSummary) -> None:
    document = json.loads(render_sweep(null, "json"))
    assert document["false_alarms"]["within"] is True
    assert sum(document["false_alarms"]["bins"]) == 40


def test_every_failure_is_in_every_form(whole: SweepSummary) -> None:
    assert whole.not_passed
    for form in ("text", "markdown", "html"):
        shown = render_sweep(whole, form)
        for row in whole.not_passed:
            assert end_text(row.end) in shown
    assert "compiling graph 1\nKilled" in render_sweep(whole, "html")


def test_text_for_people_has_no_double_dashes() -> None:
    assert [end_text(end) for end in ENDS if "-" in end_text(end)] == []


class Page(HTMLParser):
    """What a browser would make of the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name == "href"]


def test_text_from_outside_stays_text() -> None:
    text = render_sweep(hostile(), "html")
    page = Page(text)
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.tags.count("script") == 2
    assert "</pre><script>" not in text
    for form in SWEEP_FORMATS:
        shown = render_sweep(hostile(), form)
        assert "\x1b" not in shown
        assert form == "json" or "\u202e" not in shown
    shown = render_sweep(hostile(), "markdown")
    assert "<img" not in shown
    assert re.search(r"onerror=alert\(1\)&gt;\\\|\\`\\\*\\&", shown)


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_user_files_have_short_names_for_people(whole: SweepSummary, form: str) -> None:
    rows = [
        replace(row, workload=f"file//home/{number % 2}/mine.py inference {number}")
        for number, row in enumerate(whole.rows)
    ]
    summary = replace(whole, rows=tuple(rows), best=tuple(rows[:1]), worst=tuple(rows[1:2]))
    shown = render_sweep(summary, form)
    assert "0/mine.py inference 0" in shown
    assert "1/mine.py inference 1" in shown
    assert "file//home" not in shown
    assert "file//home/1/mine.py inference 1" in render_sweep(summary, "json")


def test_the_page_loads_nothing_and_names_its_own_scripts(whole: SweepSummary) -> None:
    text = render_sweep(whole, "html")
    page = Page(text)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy[1]
    assert all(link.startswith("#") for link in page.links)
    assert not [name for name, _ in page.attributes if name in {"src", "style"}]
    assert len(page.ids) == len(set(page.ids))
    assert {link[1:] for link in page.links} <= set(page.ids)


def test_links_to_reports_that_lie_beside_it(whole: SweepSummary, tmp_path: Path) -> None:
    assert reports_beside(whole, tmp_path) == {}
    name = f"{whole.runs[0].id}.html"
    (tmp_path / name).write_text("a report")
    links = reports_beside(whole, tmp_path)
    assert links == {whole.runs[0].id: name}
    assert name in Page(render_sweep(whole, "html", links=links)).links


def test_no_link_leaves_the_folder() -> None:
    odd = hostile()
    strange = {odd.runs[0].id: "javascript:alert(1)"}
    links = Page(render_sweep(odd, "html", links=strange)).links
    assert "javascript:alert(1)" not in links
    outside = replace(odd, runs=(replace(odd.runs[0], id="../../etc/passwd"),))
    assert reports_beside(outside, Path("/")) == {}


def test_a_page_of_two_hundred_workloads_stays_small() -> None:
    page = render_sweep(sweep_summary(*null_sweep(200)), "html")
    assert Page(page).tags.count("tr") > 200
    assert len(page) < 400_000


def test_an_empty_sweep_can_be_shown() -> None:
    empty = sweep_summary(plan([]), [], [])
    for form in SWEEP_FORMATS:
        assert render_sweep(empty, form)
    nothing = sweep_summary(plan([], null=True), [], [])
    assert "the false alarm rate is unknown" in render_sweep(nothing, "text")


def test_the_answer_comes_first_and_is_plain(null: SweepSummary) -> None:
    assert null.false_alarms is not None
    good = sweep_summary(*null_sweep(200)).false_alarms
    assert good is not None
    answer = alarm_lines(good, 0.01)[0]
    assert answer.startswith("This machine is within the nominal error rate of 5.0%")
    few = sweep_summary(*null_sweep(9)).false_alarms
    assert few is not None
    assert "but 9 comparisons are too few to confirm it" in alarm_lines(few, 0.01)[0]
    bad = sweep_summary(*null_sweep(40, shift=0.01)).false_alarms
    assert bad is not None
    assert "NOT within the nominal error rate" in alarm_lines(bad, 0.01)[0]
    leaning = replace(null.false_alarms, excess_chance=0.001)
    assert "small p-values are too frequent" in alarm_lines(leaning, 0.01)[0]
    shared = replace(null.false_alarms, shared_baselines=True)
    assert "share one baseline" in alarm_lines(shared, 0.01)[-1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "0.5 s"), (99.0, "99 s"), (150.0, "2.5 m"), (7200.0, "2.0 h")]
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_summary_for_others_names_no_machine() -> None:
    one = workload_of("one")
    tail = "KEY=s3cret python /home/alice/models/gpt.py on node17.example.org\n"
    only = cell_of(1, study(one))
    lost = replace(status(only, "failed", outcomes=("died",), text="see /home/alice/x"))
    owned = run([failed(one, "crashed", phase="cell", tail=tail)])
    owned = replace(owned, info={**owned.info, "owner": {"host": "node17.example.org"}})
    whole = sweep_summary(plan([only]), [lost], [owned])
    for form in ("text", "markdown", "html"):
        assert "node17.example.org: Example 9000, 2 cores" in unescape(render_sweep(whole, form))
    shared = shared_summary(whole, [owned])
    for form in SWEEP_FORMATS:
        shown = render_sweep(shared, form)
        for private in ("alice", "node17", "s3cret"):
            assert private not in shown
    assert shared.rows[0].end == "crashed"
    assert [group.ends for group in shared.groups] == [group.ends for group in whole.groups]


def test_sharing_keeps_every_number(whole: SweepSummary) -> None:
    shared = shared_summary(whole, whole_sweep()[2])
    assert render_sweep(shared, "json") == render_sweep(whole, "json")


def page_of_costs(*, breaks: tuple[tuple[str, int], ...], compile_s: float | None) -> str:
    one, other = workload_of("first"), workload_of("second")
    cells = [cell_of(1, study(one)), cell_of(2, study(other))]
    rows = [comparison(one, compile_s=compile_s), comparison(other, compile_s=compile_s)]
    metrics = replace(rows[0].candidate_metrics, graphs=1 if breaks else None, graph_breaks=breaks)
    rows[0] = replace(rows[0], candidate_metrics=metrics)
    summary = sweep_summary(plan(cells), [status(cell) for cell in cells], [run(rows)])
    return render_sweep(summary, "html")


def test_the_page_shows_compile_time_memory_and_graph_breaks_of_each_workload() -> None:
    page = page_of_costs(breaks=(("print", 3),), compile_s=2.5)
    for column in ("compile time", "memory", "graph breaks"):
        assert page.count(f'class="number" data-name="{column}"') == 2
    assert page.count('class="cost-bar"') == 5  # the second workload has no graph breaks
    assert re.search(r'data-name="graph breaks">3\s*<svg', page)
    assert re.search(r'data-name="memory">0.50x\s*<svg', page)


def test_costs_that_no_workload_has_are_no_columns() -> None:
    page = page_of_costs(breaks=(), compile_s=None)
    assert 'data-name="graph breaks"' not in page
    assert 'data-name="compile time"' not in page


def test_an_untrusted_interval_does_not_widen_the_axis() -> None:
    one, other = workload_of("first"), workload_of("second")
    cells = [cell_of(1, study(one)), cell_of(2, study(other))]
    rows = [comparison(one), comparison(other, speedup=50.0, untrusted=True)]
    summary = sweep_summary(plan(cells), [status(cell) for cell in cells], [run(rows)])
    ticks = re.findall(r'class="tick"[^>]*>([\d.]+)x<', render_sweep(summary, "html"))
    assert ticks
    assert max(map(float, ticks)) < 2.0
