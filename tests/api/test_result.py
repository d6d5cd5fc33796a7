"""Results as text, HTML and tables, without torch."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from torchyard.api.result import THIS_PROCESS, Comparison, Measurement
from torchyard.core import comparison as core
from torchyard.core.study import Workload
from torchyard.errors import MissingTool

NAME = '<script>alert("1")</script>'


def make(name: str = NAME) -> Comparison:
    estimate = core.Estimate(
        verdict=core.Verdict.FASTER,
        speedup=2.0,
        interval=core.Interval(low=1.9, high=2.1),
        p_value=0.01,
        scope="processes",
        launches=1,
        pairs=20,
        pairs_dropped=0,
        launch_sd=None,
        pair_sd=0.01,
        minimum_detectable=None,
        time_needed_s=None,
    )
    result = core.Comparison(
        workload=Workload(suite="python", name=name),
        baseline=f"{name} (baseline)",
        candidate=f"{name} (candidate)",
        verdict=core.Verdict.FASTER,
        estimate=estimate,
        baseline_metrics=core.VariantMetrics(time_ns=2e6),
        candidate_metrics=core.VariantMetrics(time_ns=1e6),
        notes=(name,),
    )
    return Comparison(result=result, scope=THIS_PROCESS)


def test_names_and_notes_are_escaped_in_html() -> None:
    text = make()._repr_html_()
    assert "<script" not in text
    assert "&lt;script&gt;alert" in text
    assert "this process only" in text
    measured = Measurement(name=NAME, times_s=(1.0,), calls_per_time=2, notes=(NAME,))
    assert "<script" not in measured._repr_html_()


def test_the_html_contains_the_forest_plot() -> None:
    pytest.importorskip("vl_convert")
    text = make("f")._repr_html_()
    assert "<svg" in text
    assert "--faster:#" in text
    failed = replace(make("f").result, estimate=None, verdict=core.Verdict.FAILED)
    assert "<svg" not in Comparison(result=failed, scope=THIS_PROCESS)._repr_html_()


def test_the_values() -> None:
    result = make("f")
    assert result.verdict == "faster"
    assert result.speedup == 2.0
    assert result.interval == (1.9, 2.1)
    assert result.p_value == 0.01
    assert (result.baseline_s, result.candidate_s) == (2e-3, 1e-3)
    assert result.accuracy == "not checked"
    assert repr(result) == (
        "<Comparison f (candidate) against f (baseline): faster, 2.000x [1.900, 2.100], this process only>"
    )


def test_an_untrusted_result_has_no_timing_verdict() -> None:
    result = Comparison(
        result=replace(make("f").result, untrusted=("noisy machine",)), scope=THIS_PROCESS
    )
    assert result.verdict == "untrusted"
    assert not result.trusted
    assert "untrusted: noisy machine" in result.notes
    wrong = replace(make("f").result, verdict=core.Verdict.WRONG)
    for each in (result, Comparison(result=wrong, scope=THIS_PROCESS)):
        for text in (repr(each), each._repr_html_()):
            assert "(2.000x [1.900, 2.100])" in text


def test_a_measurement_has_median_and_quartiles() -> None:
    result = Measurement(name="f", times_s=(1.0, 2.0, 3.0, 4.0, 100.0), calls_per_time=10)
    assert (result.median_s, result.quartiles_s, result.iqr_s) == (3.0, (2.0, 4.0), 2.0)
    assert result.calls == 50


def test_to_pandas_names_the_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingTool, match="needs pandas"):
        make().to_pandas()


def test_to_pandas_passes_one_row_per_result(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas: Any = ModuleType("pandas")
    pandas.DataFrame = list
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    (row,) = make("f").to_pandas()
    assert (row["speedup"], row["low"], row["scope"]) == (2.0, 1.9, THIS_PROCESS)
    assert len(Measurement(name="f", times_s=(1.0, 2.0), calls_per_time=1).to_pandas()) == 2
