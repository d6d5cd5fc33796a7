"""Guard readings as text: counts, ranges, and guards that were unavailable in some launches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.sample_run import COMPARISONS, write_run
from torchyard.bench.report.formats import FORMATS
from torchyard.bench.report.suite_summary import (
    blocks_text,
    disturbed_lines,
    guard_rows,
    temperature_text,
    unavailable_sensors,
)
from torchyard.core.comparison import GuardSummary
from torchyard.results.run_reader import Run, read_run


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
