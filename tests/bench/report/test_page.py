from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.sample_run import COMPARISONS, MATMUL, STUDY, write_run
from tests.presentation.parsed_page import Page
from torchyard.bench.report.comparison_detail import effects_of
from torchyard.bench.report.page import run_title, to_html
from torchyard.core.comparison import (
    BUSY_NOTE_PREFIX,
    Comparison,
    Interval,
    VariantMetrics,
    Verdict,
)
from torchyard.core.study import Workload
from torchyard.presentation.chart_layout import (
    SpeedupAxis,
    axis_numbers,
    numbers_of,
    speedup_axis,
)
from torchyard.presentation.html_page import fingerprint
from torchyard.presentation.vega import runtime_script
from torchyard.results.run_reader import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run")


def hostile_run(folder: Path, text: str) -> Run:
    failure = COMPARISONS[5].failure
    assert failure is not None
    comparisons = (
        replace(COMPARISONS[0], candidate=text, notes=(text,)),
        replace(
            COMPARISONS[5],
            workload=Workload(suite="file", name=text, parameters=((text, text),)),
            failure=replace(failure, message=text, log=text, log_tail=text, hint=text),
        ),
    )
    return write_run(folder, study=replace(STUDY, name=text), comparisons=comparisons)


HOSTILE = (
    "<script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    "</title></pre></details><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)" x="',
    "' autofocus onfocus='alert(1)",
    "{{ 7777 * 7 }} {% raw %}",
    "<!-- ]]> -->",
    "\x1b[31m<b>\x1b]8;;javascript:alert(1)\x1b\\x\u202e\x00\udcff",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_outside_is_escaped(tmp_path: Path, run: Run, text: str) -> None:
    page = to_html(hostile_run(tmp_path / "hostile", text))
    parsed, plain = Page(page), Page(to_html(run))
    page.encode()
    assert {tag for tag, _ in parsed.elements} <= {tag for tag, _ in plain.elements}
    assert len([script for script in parsed.all("script") if not script.get("type")]) == 2
    assert len(parsed.all("style")) == 1
    names = {name for _, attributes in parsed.elements for name in attributes}
    assert not [name for name in names if name.startswith("on")]
    assert "autofocus" not in names
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
    assert "54439" not in parsed.text


def test_the_only_scripts_are_those_the_page_allows(run: Run) -> None:
    page = to_html(run)
    policy = next(m["content"] for m in Page(page).all("meta") if "http-equiv" in m)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for kind, count in (("script", 2), ("style", 1)):
        matches = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        assert len(matches) == count
        for text in matches:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy
    assert f"'{fingerprint(runtime_script())}'" in policy


def test_other_scripts_are_data(run: Run) -> None:
    kinds = [script.get("type") for script in Page(to_html(run)).all("script")]
    assert set(kinds) == {None, "application/json", "application/gzip"}
    assert kinds.count("application/gzip") == 1


def test_nothing_is_fetched(run: Run) -> None:
    page = to_html(run)
    for tag, attributes in Page(page).elements:
        assert tag not in {"link", "img", "iframe", "object", "embed", "form"}
        assert "src" not in attributes
        assert "style" not in attributes
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in page
    assert "@import" not in page


def test_every_link_has_its_place_and_every_id_is_single(run: Run) -> None:
    page = Page(to_html(run))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        if "href" in attributes:
            assert attributes["href"][1:] in ids
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in ids


def test_tables_can_be_read_aloud(run: Run) -> None:
    page = Page(to_html(run))
    assert all(heading.get("scope") in {"col", "row"} for heading in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    for svg in page.all("svg"):
        assert svg.get("aria-hidden") == "true" or svg.get("aria-label")
    regions = [item for item in page.all("div") if item.get("role") == "region"]
    assert regions
    assert all(region["tabindex"] == "0" for region in regions)
    assert page.all("html")[0]["lang"] == "en"


def test_the_page_has_every_section(run: Run) -> None:
    text = Page(to_html(run)).text
    for fragment in (
        "1.352x",
        "[1.341, 1.363]",
        "faster",
        "geometric mean over 4 comparisons",
        "needs about 3 m for ±1.0%",
        "a single launch is valid for its own processes only",
        "21.4 s",
        "412 MiB (peak resident set of the process)",
        "1 × call to print; 2 × data-dependent branch",
        "9 pairs dropped: waited for a core",
        "7 of 64 blocks disturbed: waited for a core 7",
        "41 to 48 °C",
        "unavailable in 1 of 2 launches, because /proc/stat is gone",
        "compiling graph 2 Killed",
        "torchyard compare kernels/matmul --against 'two words'",
        "Example 9000, 2 cores",
        "unavailable, because /sys is not readable",
        "Target nightly",
        "Benjamini-Hochberg",
    ):
        assert fragment in text, fragment


def test_rows_have_a_plot_where_the_speed_counts(run: Run) -> None:
    page = Page(to_html(run))
    points = [circle for circle in page.all("circle") if circle.get("class") == "point"]
    assert len(points) == sum(bool(numbers_of(item)) for item in run.comparisons) == 5


def test_launches_are_those_of_the_blocks(run: Run) -> None:
    effects = effects_of(run.comparisons[0], run.blocks_by_workload())
    assert len(effects.speedups) == 8
    assert all(1.30 < speedup < 1.40 for speedup in effects.speedups)
    assert dict(effects.dropped)["waited for a core"] == 7
    assert (effects.guards.blocks, effects.guards.dirty) == (64, 7)


def test_an_interrupted_run_is_reported(tmp_path: Path, run: Run) -> None:
    assert "warning" not in [item.get("class") for item in Page(to_html(run)).all("p")][:2]
    text = Page(to_html(replace(run, state="interrupted", torn_lines=2))).text
    assert "This run was interrupted." in text
    assert "2 records were truncated when the run was killed, and omitted." in text
    assert "in progress" in Page(to_html(replace(run, state="running"))).text


def test_notes_of_the_run_are_at_the_top(run: Run) -> None:
    info = {**run.info, "revision": "abc<1>", "notes": ["after the <b>update</b>", "second"]}
    text = Page(to_html(replace(run, info=info))).text
    assert "revision abc<1>" in text
    commit = Page(to_html(replace(run, info={**run.info, "revision": "0123456789ab" + 28 * "c"})))
    assert "revision 0123456789ab" in commit.text
    assert "abcc" not in commit.text
    assert "after the <b>update</b> second" in text
    assert "notes-of-run" not in re.sub("<style>.*?</style>", "", to_html(run), flags=re.DOTALL)
    to_html(replace(run, info={**run.info, "notes": "not a list"}))


def test_untrusted_comparisons_are_reported_at_the_top(run: Run) -> None:
    busy = replace(run.comparisons[0], notes=(f"{BUSY_NOTE_PREFIX}: 9 of 9 pairs were disturbed",))
    text = Page(to_html(replace(run, comparisons=(busy, *run.comparisons[1:])))).text
    assert "1 of 7 comparisons is untrusted: do not use these numbers" in text
    assert "is untrusted" not in Page(to_html(run)).text


def test_an_empty_run_is_a_page_too(tmp_path: Path) -> None:
    text = Page(to_html(write_run(tmp_path / "empty", comparisons=()))).text
    assert "This run has no comparisons." in text


def test_numbers_that_are_not_finite(tmp_path: Path) -> None:
    assert COMPARISONS[0].estimate is not None
    estimate = COMPARISONS[0].estimate
    odd = (
        replace(COMPARISONS[0], estimate=replace(estimate, interval=None, p_value=None)),
        replace(COMPARISONS[1], estimate=replace(estimate, launches=0, interval=None)),
        Comparison(workload=MATMUL, baseline="eager", candidate="other", verdict=Verdict.UNDECIDED),
    )
    text = Page(to_html(write_run(tmp_path / "run", comparisons=odd))).text
    assert "no interval" in text


@pytest.mark.parametrize(
    "numbers",
    [[1.0], [1.0, 1.001], [0.93, 1.0, 1.35], [0.2, 1.0, 8.0], [1e-9, 1.0, 1e9], [1.34, 1.36], []],
)
def test_axes_hold_their_numbers_and_a_few_round_ticks(numbers: list[float]) -> None:
    axis = speedup_axis(numbers)
    for number in numbers:
        assert 0 <= axis.place(number) <= 100
    places = [place for place, _ in axis.ticks]
    assert places == sorted(places)
    assert 2 <= len(places) <= 7
    assert len({text for _, text in axis.ticks}) == len(places)
    if 1.0 in numbers:
        assert "1x" in [text for _, text in axis.ticks]


def test_places_are_symmetric_and_bounded() -> None:
    axis = SpeedupAxis(low=-1.0, high=1.0)
    assert axis.place(1.0) == 50
    assert axis.place(2.0) - 50 == pytest.approx(50 - axis.place(0.5))
    assert axis.place(float("inf")) == 100
    assert axis.place(0.0) == axis.place(-1.0) == axis.place(float("nan")) == 0


def test_the_answer_and_the_machine_come_before_everything_else(run: Run) -> None:
    first_screen = Page(to_html(run)).text.partition("Skip to the results")[2]
    first_screen = first_screen.partition("Summary")[0]
    assert "7 comparisons: 1 faster, 1 slower" in first_screen
    assert "torch 2.9.0" in first_screen
    assert "Example 9000" in first_screen
    assert "finished after 9 min" in first_screen
    assert "Run run" not in Page(to_html(replace(run, id="run"))).text


def test_an_unnamed_study_is_named_by_what_it_compared(run: Run) -> None:
    one = replace(STUDY, name="bench", candidates=STUDY.candidates[:1], workloads=(MATMUL,))
    assert (
        run_title(replace(run, study=one))
        == "kernels/matmul inference size=1000: inductor vs eager"
    )
    several = replace(STUDY, name="bench")
    assert run_title(replace(run, study=several)) == "6 workloads: inductor, tcmalloc vs eager"
    assert run_title(run) == STUDY.name


def test_one_comparison_has_no_forest_plot_and_no_mean(run: Run) -> None:
    text = to_html(replace(run, comparisons=COMPARISONS[:1]))
    assert 'id="forest"' not in text
    assert 'class="mean"' not in text
    assert any("open" in part for part in Page(text).all("details"))


def test_columns_without_a_number_are_left_out(run: Run) -> None:
    keys = {cell.get("data-key") for cell in Page(to_html(run)).all("td")}
    assert {"compile", "memory", "breaks", "candidate"} <= keys
    bare = replace(
        COMPARISONS[0], baseline_metrics=VariantMetrics(), candidate_metrics=VariantMetrics()
    )
    text = to_html(replace(run, comparisons=(bare,)))
    keys = {cell.get("data-key") for cell in Page(text).all("td")}
    assert keys & {"compile", "memory", "breaks", "candidate"} == set()
    assert "compile time" not in Page(text).text


def test_a_wrong_speedup_is_in_parentheses_wherever_it_appears(run: Run) -> None:
    text = Page(to_html(run)).text
    assert "(1.811x)" in text
    assert not re.search(r"(?<![(\d])1\.811x", text)


def test_long_notes_are_folded(run: Run) -> None:
    words = "the reason " * 40
    text = to_html(replace(run, comparisons=(replace(COMPARISONS[0], notes=(words,)),)))
    folded = [part for part in Page(text).all("details") if part.get("class") == "notes"]
    assert len(folded) == 1
    assert words.strip() in Page(text).text


def test_an_untrusted_interval_does_not_widen_the_axis() -> None:
    trusted = COMPARISONS[1]
    assert trusted.estimate is not None
    wide = replace(trusted.estimate, interval=Interval(low=0.01, high=100.0))
    untrusted = replace(trusted, estimate=wide, untrusted=("noisy machine",))
    assert axis_numbers([trusted, untrusted]) == numbers_of(trusted)
    assert axis_numbers([untrusted]) == numbers_of(untrusted)
