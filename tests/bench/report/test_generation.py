"""Times of the phases become times and rates of tokens that agree with each other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.sample_run import estimate, metrics, write_run
from torchyard.bench.report.formats import FORMATS
from torchyard.bench.report.generation import generation_lines, generations
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.study import Mode, Workload, modes_named

PARAMETERS = (("prompt", 64), ("generate", 11))


def phase(mode: Mode, before_ns: float, after_ns: float, **more: object) -> Comparison:
    workload = Workload(suite="models", name="gpt", mode=mode, batch_size=4, parameters=PARAMETERS)
    one = Comparison(
        workload=workload,
        baseline="eager",
        candidate="inductor",
        verdict=Verdict.FASTER,
        estimate=estimate(Verdict.FASTER, before_ns / after_ns, 0.01),
        baseline_metrics=replace(metrics(before_ns), batch_size=4, energy_j=0.2),
        candidate_metrics=replace(metrics(after_ns), batch_size=4),
    )
    return replace(one, **more)  # type: ignore[arg-type]


def test_rates_follow_from_the_times_of_both_phases() -> None:
    rows = generations(
        [phase("prefill", 40e6, 20e6), phase("decode", 10e6, 8e6)], price_per_hour=3.6
    )
    eager, inductor = rows
    assert (eager.variant, inductor.variant) == ("eager", "inductor")
    assert eager.first_token_ns == 40e6
    assert eager.per_token_ns == 10e6
    assert eager.tokens_per_s == pytest.approx(400)  # four texts, 100 steps per second
    assert eager.text_ns == pytest.approx(140e6)  # the prompt gives the first of eleven tokens
    assert inductor.text_ns == pytest.approx(100e6)
    assert eager.energy_per_token_j == pytest.approx(0.05)
    assert inductor.energy_per_token_j is None
    # 3.6 per hour are 0.001 per second: 0.14 s for 44 tokens.
    assert eager.cost_per_million_tokens == pytest.approx(0.14 * 0.001 / 44 * 1e6)


@pytest.mark.parametrize(
    ("doubt", "word"),
    [
        ({"untrusted": ("noisy machine",)}, "untrusted"),
        ({"verdict": Verdict.WRONG}, "wrong"),
        ({"verdict": Verdict.FAILED}, "failed"),
    ],
)
def test_a_phase_that_must_not_be_used_gives_no_number(doubt: dict[str, object], word: str) -> None:
    comparisons = [phase("prefill", 40e6, 20e6), phase("decode", 10e6, 8e6, **doubt)]
    for row in generations(comparisons, price_per_hour=1.0):
        assert row.first_token_ns is not None
        assert row.per_token_ns is None
        assert row.tokens_per_s is None
        assert row.text_ns is None
        assert row.cost_per_million_tokens is None
    text = "\n".join(generation_lines(comparisons))
    assert word in text
    assert "tokens/s" not in text


def test_without_any_number_there_is_no_row() -> None:
    assert not generations([phase("decode", 10e6, 8e6, untrusted=("noisy machine",))])


def test_other_modes_have_no_rows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert generations(run.comparisons) == []
    assert json.loads(FORMATS["json"](run))["generation"] == []
    assert "Text generation" not in FORMATS["html"](run)


def test_every_format_shows_the_rows(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    shown = replace(run, comparisons=(phase("prefill", 40e6, 20e6), phase("decode", 10e6, 8e6)))
    for name in ("terminal", "markdown", "html"):
        text = FORMATS[name](shown)
        assert "140 ms" in text, name
        assert "400" in text, name
    (eager, _) = json.loads(FORMATS["json"](shown))["generation"]
    assert eager["tokens_per_s"] == pytest.approx(400)
    assert eager["workload"] == "models/gpt"


def test_generate_means_both_phases() -> None:
    assert modes_named(["generate"]) == ("prefill", "decode")
    assert modes_named(["decode", "inference", "generate"]) == ("decode", "inference", "prefill")
