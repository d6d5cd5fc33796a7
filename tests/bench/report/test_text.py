from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.bench.sample_run import COMPARISONS, STUDY, write_run
from torchyard.bench.report.formats import FORMATS, to_csv, to_dynamo_csv
from torchyard.bench.report.page import to_html
from torchyard.bench.report.suite_summary import (
    blocks_text,
    disturbed_lines,
    guard_rows,
    summary_lines,
    temperature_text,
    unavailable_sensors,
)
from torchyard.bench.report.text import comparison_table, to_markdown, to_text
from torchyard.core.comparison import Comparison, GuardSummary, Verdict
from torchyard.core.study import Workload
from torchyard.presentation.wording import title_of, workload_text
from torchyard.results.run_reader import Run, read_run


def printed(
    comparisons: tuple[Comparison, ...] = COMPARISONS, *, width: int = 120, **environ: str
) -> str:
    page = StringIO()
    console = Console(file=page, width=width, _environ=environ)
    console.print(comparison_table(comparisons, precision_goal=0.01))
    return page.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_console(width: int) -> None:
    assert all(cell_len(line) <= width for line in printed(width=width).splitlines())


@pytest.mark.parametrize("width", [80, 120])
def test_numbers_and_marks_are_never_truncated(width: int) -> None:
    text = printed(width=width)
    for fragment in ("1.352x", "[1.341, 1.363]", "12.3 ms", "9.13 ms", "<0.001", "8/160", "1/20"):
        assert fragment in text
    for verdict in ("▲ faster", "▼ slower", "= same", "? undecided", "✗ wrong", "✗ failed"):
        assert verdict in text


def test_a_row_on_one_line() -> None:
    row = next(line for line in printed().splitlines() if "▲" in line)
    cells = re.split(r"\s{2,}", row.strip())
    assert cells == [
        "kernels/matmul inference",
        "12.3 ms",
        "inductor",
        "9.13 ms",
        "1.352x [1.341, 1.363]",
        "<0.001",
        "▲ faster",
        "8/160",
        "1",
    ]


def test_undecided_rows_say_why_and_what_would_decide() -> None:
    text = " ".join(printed().split())
    assert "differences beyond 1%; needs about 3 m for ±1.0%" in text
    assert "smallest detectable difference: 4.5%" in text


def test_an_interval_of_one_launch_states_its_scope() -> None:
    text = " ".join(printed().split())
    assert text.count("a single launch is valid for its own processes only") == 1


def test_the_sentence_is_the_one_stats_uses() -> None:
    from torchyard.presentation import wording
    from torchyard.stats.estimate import ONE_LAUNCH

    assert wording._ONE_LAUNCH == ONE_LAUNCH


def test_color_only_where_enabled() -> None:
    def styled(**environ: str) -> str:
        page = StringIO()
        console = Console(
            file=page, width=120, force_terminal=True, color_system="standard", _environ=environ
        )
        console.print(comparison_table(COMPARISONS))
        return page.getvalue()

    assert "\x1b[32m▲ faster" in styled()
    assert "\x1b[3" not in styled(NO_COLOR="1")
    assert "▲ faster" in styled(NO_COLOR="1")
    assert "\x1b" not in printed()


def test_a_terminal_without_unicode() -> None:
    page = TextIOWrapper(BytesIO(), encoding="ascii", errors="strict")
    console = Console(file=page, width=120, _environ={})
    console.print(comparison_table(COMPARISONS))
    page.flush()
    assert isinstance(page.buffer, BytesIO)
    text = page.buffer.getvalue().decode("ascii")
    assert "^ faster" in text
    assert "v slower" in text
    assert "842 us" in text


def test_text_from_outside_is_only_text() -> None:
    hostile = replace(
        COMPARISONS[0],
        workload=Workload(suite="file", name="[red]a\x1b]0;title\x07b\x1b[31mc\u202ed\n\x07"),
        baseline="[bold]b[/bold]",
        candidate="[link=file:///etc]x[/link]",
    )
    text = printed((hostile,), width=200)
    assert "[red]abcd" in text
    assert "[link=file:///etc]x[/link]" in text
    assert "[bold]b[/bold] time" in text
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)


def test_baselines_that_differ_are_named_in_their_rows() -> None:
    other = replace(COMPARISONS[1], baseline="glibc")
    assert "glibc 842 µs" in printed((COMPARISONS[0], other), width=160)


def test_no_comparisons() -> None:
    assert "workload" in printed(())
    assert summary_lines(()) == ["no comparisons"]


def test_a_comparison_without_a_clean_pair_shows_no_speedup() -> None:
    assert COMPARISONS[0].estimate is not None
    empty = replace(
        COMPARISONS[0],
        verdict=Verdict.UNDECIDED,
        estimate=replace(
            COMPARISONS[0].estimate,
            verdict=Verdict.UNDECIDED,
            speedup=1.0,
            interval=None,
            launches=0,
            pairs=0,
            reasons=("no launch has a clean pair",),
        ),
    )
    text = printed((empty,))
    assert "1.000x" not in text
    assert "no launch has a clean pair" in text


def test_plain_text_ignores_the_terminal_it_is_made_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run")
    expected = to_text(run)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert to_text(run) == expected


def test_a_study_name_cannot_style_the_text(tmp_path: Path) -> None:
    study = replace(STUDY, name="[bold]x[/bold] :smile:")
    run = write_run(tmp_path / "run", study=study)
    assert "[bold]x[/bold] :smile:" in to_text(run)


def test_formats_load_neither_rich_nor_jinja_nor_numpy() -> None:
    script = (
        "import sys, torchyard.bench.report.formats\n"
        "print([m for m in ('rich', 'jinja2', 'numpy', 'torch') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert answer.stdout == "[]\n"


def with_launches(run: Run, *guards: object) -> Run:
    lines = [json.dumps({"launch": number, "guards": each}) for number, each in enumerate(guards)]
    (run.folder / "launches.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return read_run(run.folder)


@pytest.mark.parametrize(
    ("guards", "text"),
    [
        (GuardSummary(blocks=20), "0 of 20 blocks disturbed"),
        (GuardSummary(blocks=1, dirty=1, reasons=(("a", 1),)), "1 of 1 block disturbed: a 1"),
        (
            GuardSummary(blocks=9, dirty=3, reasons=(("a", 3), ("b\x1b[1m", 1))),
            "3 of 9 blocks disturbed: a 3, b 1",
        ),
    ],
)
def test_dirty_blocks_with_their_reasons(guards: GuardSummary, text: str) -> None:
    assert blocks_text(guards) == text


def test_temperatures_as_a_range_or_as_one() -> None:
    assert temperature_text(GuardSummary()) == ""
    assert temperature_text(GuardSummary(temperature_c=(41.0, 48.5))) == "41 to 48 °C"
    assert temperature_text(GuardSummary(temperature_c=(41.2, 41.4))) == "41 °C"


def test_comparisons_without_dirty_blocks_have_no_line() -> None:
    clean = replace(COMPARISONS[1], guards=GuardSummary(blocks=5))
    assert disturbed_lines([clean, COMPARISONS[2]]) == []
    (line,) = disturbed_lines(COMPARISONS)
    assert line.endswith(
        "inductor: 10 of 64 blocks disturbed: waited for a core 8, core slowed down 4"
    )


def test_guards_of_a_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", comparisons=())
    hostile = {"<b>swap</b>": "<script>alert(1)</script>\x1b]0;x\x07"}
    shown = with_launches(run, {"swap": "", "steal": ""}, {"swap": "", "steal": "gone"})
    assert guard_rows(shown) == [
        ("swap", "available"),
        ("steal", "unavailable in 1 of 2 launches, because gone"),
    ]
    assert [name for name, _ in unavailable_sensors(shown)] == ["steal"]
    # Of an older run, of one that ended before its first launch, and of a damaged one.
    for nothing in ((), (None,), ("text",)):
        assert guard_rows(with_launches(run, *nothing)) == []
    page = FORMATS["html"](with_launches(run, hostile))
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in FORMATS["terminal"](with_launches(run, hostile))
    assert "<script" not in FORMATS["markdown"](with_launches(run, hostile))


FIRST = COMPARISONS[1]


def ran_with(batch_size: int | None, asked: int | None = None) -> Comparison:
    return replace(
        FIRST,
        workload=replace(FIRST.workload, batch_size=asked),
        baseline_metrics=replace(FIRST.baseline_metrics, batch_size=batch_size),
        candidate_metrics=replace(FIRST.candidate_metrics, batch_size=batch_size),
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", comparisons=(ran_with(48),))


def test_the_row_says_the_batch_size_that_was_run() -> None:
    assert workload_text(ran_with(48)) == "kernels/attention inference b48"
    assert title_of(ran_with(48)) == "kernels/attention inference b48 · inductor"
    assert workload_text(ran_with(48, asked=48)) == "kernels/attention inference b48"
    assert workload_text(ran_with(None)) == "kernels/attention inference"


def test_one_failed_variant_does_not_hide_it() -> None:
    half = ran_with(48)
    half = replace(half, candidate_metrics=replace(half.candidate_metrics, batch_size=None))
    assert workload_text(half) == "kernels/attention inference b48"


def test_every_format_shows_it(run: Run) -> None:
    assert " b48 " in to_text(run) or "\nb48" in to_text(run)
    assert "kernels/attention inference b48" in to_markdown(run)
    for text in (to_csv(run), to_dynamo_csv(run)):
        (row,) = csv.DictReader(StringIO(text))
        assert row["batch_size"] == "48"
    assert "batch size" in to_html(run)
