from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sample_records import made_peak
from tests.why.synthetic import rounds, source
from torchyard.core.roofline import MachinePeak, StreamRate
from torchyard.core.study import Workload
from torchyard.why.analysis import slow_code, with_shares
from torchyard.why.attribution import attribute
from torchyard.why.model import (
    Ablation,
    Attribution,
    CompilePhase,
    MemorySite,
    SoftwareDifference,
    Work,
    load,
    save,
)
from torchyard.why.page import attribution_page, excerpts, flame_graph, waterfall
from torchyard.why.report import attribution_text, headline, shown_parts

TIMES = {source(name, "op", line=line): 500.0 for line, name in enumerate(("norm", "up", "act"))}
SLOW = source("act", "op", line=2)
ABLATION = Ablation(
    change="eager kernel for op",
    option="eager-kernel=op",
    verdict="faster",
    effect=1.4,
    low=1.3,
    high=1.5,
    speedup=1.0,
    unchanged_speedup=0.714,
    confirmed=True,
)

PHASE = CompilePhase(name="Inductor: code generation", candidate_s=1.25)


@pytest.fixture
def result() -> Attribution:
    measured = rounds(TIMES, {**TIMES, SLOW: 900.0})
    workload = Workload(suite="models", name="<b>net</b>")
    made = attribute(workload, "eager", "inductor", measured, facts=["inductor: 1 graph"])
    return replace(made, ablations=(ABLATION,), compile_phases=(PHASE,))


def test_text_names_the_part_its_line_and_its_kernels(result: Attribution) -> None:
    text = attribution_text(result, width=160)
    assert "Largest contribution: Linear act: op" in text
    assert "model.py:2: line 2" in text
    assert "eager: op 1x" in text
    assert "inductor: 1 graph" in text
    assert "Compile time by phase (single reading, empty caches):" in text
    assert "Inductor: code generation: inductor 1.25 s" in text
    assert "eager kernel for op (eager-kernel=op): faster 1.40x [1.30, 1.50]" in text
    assert "1.00x instead of 0.71x over the baseline (second comparison, which confirms" in text


def test_an_untrusted_result_looks_untrusted_everywhere(result: Attribution) -> None:
    noisy = replace(result, untrusted="noisy machine: 9 of 10 rounds were disturbed")
    for text in (attribution_text(noisy, width=160), attribution_page(noisy)):
        assert "Untrusted, do not use these numbers: noisy machine: 9 of 10" in text
        assert "Largest contribution" not in text


def test_shown_amounts_sum_to_the_difference(result: Attribution) -> None:
    amounts = re.findall(
        r"^ *([+-][\d.]+) ms  ?(?=\[|\d+ smaller|sum)", attribution_text(result), re.MULTILINE
    )
    *parts, total = (float(amount) for amount in amounts)
    assert sum(parts) == pytest.approx(total, abs=0.001 * len(parts))


@pytest.mark.parametrize("width", [80, 120])
def test_text_fits_the_width(result: Attribution, width: int) -> None:
    long_lines = [
        line for line in attribution_text(result, width=width).splitlines() if len(line) > width
    ]
    assert long_lines == []


def test_user_files_have_short_names() -> None:
    workload = Workload(suite="file", name="/home/user/net.py:Net")
    made = attribute(workload, "a", "b", rounds(TIMES, TIMES))
    for text in (headline(made), attribution_page(made)):
        assert "/home/user" not in text
        assert "net.py:Net inference" in text


def test_headline_without_a_significant_part() -> None:
    made = attribute(Workload(suite="models", name="net"), "a", "b", rounds(TIMES, TIMES))
    assert "No part has a significant contribution." in headline(made)


def test_page_escapes_text_and_draws_the_waterfall(result: Attribution) -> None:
    page = attribution_page(result)
    assert "<b>net</b>" not in page
    assert "&lt;b&gt;net&lt;/b&gt;" in page
    assert "eager-kernel=op" in page
    frames = len(flame_graph(result).frames)
    assert page.count("<rect") == len(shown_parts(result)) + 2 + 1 + frames


def test_waterfall_ends_at_the_candidate(result: Attribution) -> None:
    parts = shown_parts(result)
    chart = waterfall(result, parts, [part for part in result.parts if part not in parts])
    last = chart.bars[-1]
    before = chart.bars[-2]
    assert min(abs(last.width - x) for x in (before.left, before.left + before.width)) < 1.5


def test_saved_attributions_are_read_back(result: Attribution, tmp_path: Path) -> None:
    assert load(save(result, tmp_path, 3)) == result


def test_generated_code_of_slower_parts_is_shown_escaped(result: Attribution) -> None:
    code = {"op": "x < y && z; </pre><script>", "other": "unused"}
    shown = slow_code(result, code)
    assert shown == (("op", code["op"]),)
    page = attribution_page(replace(result, code=shown))
    assert "x &lt; y &amp;&amp; z; &lt;/pre&gt;&lt;script&gt;" in page
    assert "<script" not in page
    faster = attribute(result.workload, "a", "b", rounds({**TIMES, SLOW: 900.0}, TIMES))
    assert slow_code(faster, code) == ()


def test_the_page_shows_compile_phases(result: Attribution) -> None:
    page = attribution_page(result)
    assert "single reading, empty caches" in page
    assert "1.25 s</td>" in page
    assert "Compile phase" not in attribution_page(replace(result, compile_phases=()))


def test_a_gpu_is_named_in_text_and_page(result: Attribution) -> None:
    measured = rounds(TIMES, TIMES, host_us=(100.0, 900.0))
    workload = replace(result.workload, device="cuda")
    on_gpu = attribute(workload, "eager", "inductor", measured)
    for text in (attribution_text(on_gpu, width=160), attribution_page(on_gpu)):
        assert "Times of operators are GPU time." in text
        assert "idle gaps: the GPU waits for the host" in text
        assert "host time outside of operators" not in text


SITE = MemorySite(name="Linear act: op", sources=(SLOW,), baseline_bytes=0, candidate_bytes=4 << 20)
DIFFERENT = SoftwareDifference(group="library", name="libgomp", baseline="<1>", candidate="2")


def test_memory_and_software_are_shown_and_escaped(result: Attribution) -> None:
    both = replace(result, memory=(SITE,), software=(DIFFERENT,), links=("act: <may>",))
    text = attribution_text(both, width=160)
    assert "at its peak (single reading): eager 0 B -> inductor 4.00 MiB" in text
    assert "+4.00 MiB (0 B -> 4.00 MiB) Linear act: op, model.py:2: line 2" in text
    assert "library libgomp: <1> -> 2" in text
    page = attribution_page(both)
    assert "<may>" not in page
    assert "act: &lt;may&gt;" in page
    assert "&lt;1&gt;" in page
    for absent in ("Memory that an iteration holds", "Software that differs"):
        assert absent not in attribution_text(result)


def peak(flops_per_second: float, bytes_per_second: float) -> MachinePeak:
    stream = StreamRate(kind="copy", working_set_bytes=1 << 20, bytes_per_second=bytes_per_second)
    return made_peak(flops_per_second, bytes_per_second, streams=(stream,))


def test_shares_are_those_of_each_sides_own_time_and_bytes() -> None:
    eager, fused = Work(flops=0.0, moved_bytes=4e6), Work(flops=0.0, moved_bytes=2e6)
    made = attribute(
        Workload(suite="models", name="net"),
        "eager",
        "inductor",
        rounds(TIMES, {**TIMES, SLOW: 900.0}),
        work=({SLOW: eager}, {SLOW: fused}),
    )
    part = with_shares(
        next(one for one in made.parts if SLOW in one.sources), peak(1e9, 16e9), peak(1e9, 8e9)
    )
    assert part.baseline_work is not None
    assert part.candidate_work is not None
    assert part.baseline_work.share == pytest.approx(4e6 / part.baseline_ns * 1e9 / 16e9)
    assert part.candidate_work.share == pytest.approx(2e6 / part.candidate_ns * 1e9 / 8e9)
    assert part.candidate_work.bound == "memory"
    unknown = with_shares(part, None, None)
    assert unknown.baseline_work == part.baseline_work
    others = [one for one in made.parts if SLOW not in one.sources]
    assert {one.baseline_work for one in others} == {None}


def test_bytes_of_a_generated_kernel_replace_those_of_its_operators() -> None:
    measured = [
        replace(
            one,
            candidate=replace(
                one.candidate,
                rows=tuple(
                    replace(row, moved_bytes=1e6) if SLOW in row.sources else row
                    for row in one.candidate.rows
                ),
            ),
        )
        for one in rounds(TIMES, {**TIMES, SLOW: 900.0})
    ]
    eager = {source: Work(flops=10.0, moved_bytes=4e6) for source in TIMES}
    workload = Workload(suite="models", name="net")
    made = attribute(workload, "eager", "inductor", measured, work=(eager, eager))
    part = next(one for one in made.parts if SLOW in one.sources)
    assert part.baseline_work == Work(flops=10.0, moved_bytes=4e6)
    assert part.candidate_work is not None
    assert part.candidate_work.flops == 10.0
    assert part.candidate_work.moved_bytes == pytest.approx(1e6)


def test_a_missing_peak_is_stated(result: Attribution) -> None:
    missing = replace(result, peak_command="torchyard machine peak --threads 1")
    for text in (attribution_text(missing, width=160), attribution_page(missing)):
        assert "unavailable: no stored peak; measure it with: torchyard machine peak" in text
    assert "no stored peak" not in attribution_text(result)


def test_excerpts_are_those_of_unchanged_files(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text("".join(f"line {number}\n" for number in range(1, 21)))
    here = source("act", "op", line=10, file=str(path))
    ((name, text),) = excerpts([here, here])
    assert name == "model.py:10"
    assert text.splitlines()[0] == "     7 line 7"
    assert ">   10 line 10" in text.splitlines()
    assert len(text.splitlines()) == 7
    path.write_text("edited\n" * 30)
    assert excerpts([here]) == []
    assert excerpts([replace(here, file=str(tmp_path / "missing.py"))]) == []
