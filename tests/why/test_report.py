from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.why.synthetic import rounds, source
from torchyard.core.study import Workload
from torchyard.why.analysis import slow_code
from torchyard.why.attribution import attribute
from torchyard.why.model import Ablation, Attribution, CompilePhase
from torchyard.why.page import attribution_page, waterfall
from torchyard.why.report import attribution_text, headline, shown_parts
from torchyard.why.storage import load, save

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
    assert page.count("<rect") == len(shown_parts(result)) + 2 + 1


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
