"""The account of samples and tests, the words of the report, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchyard.cli.main import run as run_torchyard
from torchyard.core.comparison import Interval
from torchyard.values.operator_sweep.model import SweepFolder, SweepSettings
from torchyard.values.torch_patches.checks import (
    Samples,
    read_outcomes,
    sample_check,
    suite_check,
    words_of_tests,
)
from torchyard.values.torch_patches.model import (
    CaseComparison,
    FoundIn,
    SampleCheck,
    SuiteCheck,
    TorchFixReport,
    TorchPatch,
)
from torchyard.values.torch_patches.report import series_text, torch_fix_text, upstream_text
from torchyard.values.torch_patches.session import why_slower

PATCH = TorchPatch(
    found_in=(FoundIn(case="mse_loss", direction="backward", bytes_wasted=2 << 20),),
    operator="mse_loss_backward",
    call="zeros_like",
    function="mse_loss_backward",
    file="aten/src/ATen/native/Loss.cpp",
    line=499,
    text="zeros_like -> empty_like",
    diff="--- a/Loss.cpp\n+++ b/Loss.cpp\n@@ -1 +1 @@\n-zeros_like\n+empty_like\n",
)
VERIFIED = replace(
    PATCH,
    samples=SampleCheck(operators=("nn.functional.mse_loss",), compared=40),
    tests=SuiteCheck(selected="nn_functional_mse_loss", passed=90, skipped=4, failed_before=1),
    swept=True,
)
JUNIT = """<testsuites><testsuite>
<testcase classname="TestOps" name="test_mse_loss_a"/>
<testcase classname="TestOps" name="test_mse_loss_b"><failure message="x">y</failure></testcase>
<testcase classname="TestOps" name="test_mse_loss_c"><skipped message="x"/></testcase>
<testcase classname="TestOps" name="test_mse_loss_d"><error message="x"/></testcase>
<testcase classname="TestOps" name="test_other"/>
</testsuite></testsuites>"""


def samples(**digests: str) -> Samples:
    name = "nn.functional.mse_loss"
    rows: list[dict[str, Any]] = [
        {"kind": "operator", "cases": ["mse_loss"], "operator": name, "why": ""},
        {"kind": "operator", "cases": ["huber_loss"], "operator": "other", "why": "none"},
    ]
    rows += [
        {
            "kind": "sample",
            "operator": name,
            "sample": sample,
            "digest": digest,
            "error": "" if digest else "RuntimeError: no",
        }
        for sample, digest in digests.items()
    ]
    return Samples(rows)


@pytest.mark.parametrize(
    ("after", "compared", "different"),
    [
        ({"a": "1", "b": "2", "c": ""}, 2, ()),
        ({"a": "1", "b": "3", "c": ""}, 1, ("b",)),
        ({"a": "1", "c": ""}, 1, ("b",)),
        ({"a": "1", "b": "2", "c": "4"}, 2, ("c",)),
        ({"a": "1", "b": "2", "c": "", "d": "5"}, 2, ("d",)),
    ],
)
def test_samples_must_be_equal(
    after: dict[str, str], compared: int, different: tuple[str, ...]
) -> None:
    check = sample_check(PATCH, samples(a="1", b="2", c=""), samples(**after))
    assert (check.compared, check.different) == (compared, different)
    assert check.operators == ("nn.functional.mse_loss",)


def test_account_of_tests(tmp_path: Path) -> None:
    report = tmp_path / "tests.xml"
    report.write_text(JUNIT)
    before = read_outcomes(report)
    after = dict(before) | {"TestOps.test_mse_loss_b": "passed", "TestOps.test_other": "failed"}
    check = suite_check(("mse_loss",), before, after)
    assert (check.passed, check.skipped, check.failed_before, check.broken) == (1, 1, 2, ())
    del after["TestOps.test_mse_loss_a"]
    assert suite_check(("mse_loss",), before, after).broken == ("TestOps.test_mse_loss_a",)
    assert suite_check(("none",), before, after).why == "no test of these operators was found"


def test_tests_of_operators_with_a_similar_name_do_not_count() -> None:
    patch = replace(PATCH, samples=SampleCheck(operators=("nn.functional.nll_loss", "poisson")))
    names = [
        "TestCommonCPU.test_out_nn_functional_nll_loss_cpu_float32",
        "TestCommonCPU.test_out_nn_functional_poisson_nll_loss_cpu_float32",
        "TestCommonCPU.test_out_nn_functional_multi_margin_loss_cpu_float32",
    ]
    check = suite_check(
        words_of_tests(patch), dict.fromkeys(names, "passed"), dict.fromkeys(names, "passed")
    )
    assert check.passed == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": SampleCheck(compared=40, different=("a",))},
        {"samples": SampleCheck(compared=0)},
        {"tests": SuiteCheck(broken=("a",))},
        {"remaining": ("mse_loss",)},
        {"swept": False},
        {"why_not": "something"},
        {"diff": ""},
    ],
)
def test_one_failed_check_is_enough(changes: dict[str, Any]) -> None:
    assert VERIFIED.verified
    assert not replace(VERIFIED, **changes).verified
    report = TorchFixReport(patches=(replace(VERIFIED, **changes),), built=True)
    assert report.proposed == ()


def test_patches_that_were_not_built_are_reported_as_unchecked() -> None:
    text = torch_fix_text(TorchFixReport(torch="2.6.0", patches=(PATCH,)), folder="F")
    assert text.startswith("1 patch of torch 2.6.0, not built.")
    assert "not checked" in text
    assert "equal bit for bit" not in text


def test_a_report_on_a_patch_that_was_not_built_claims_no_evidence() -> None:
    report = TorchFixReport(torch="2.6.0", patches=(PATCH,))
    assert "neither built nor checked" in upstream_text(report, PATCH)
    assert "bit for bit" not in upstream_text(report, PATCH)
    assert "neither built nor checked" in series_text(report)


def test_the_table_of_a_series_has_a_row_for_each_case() -> None:
    second = FoundIn(case="mse_loss.sum", direction="backward", bytes_wasted=1 << 20)
    fast = CaseComparison(
        case="mse_loss", verdict="faster", speedup=1.17, interval=Interval(low=1.1, high=1.2)
    )
    patch = replace(VERIFIED, found_in=(*PATCH.found_in, second), comparisons=(fast,))
    rows = series_text(TorchFixReport(patches=(patch,), built=True)).splitlines()[-2:]
    assert rows[0].endswith("| 40 | 90 pass, 1 failed before | faster, 1.170x [1.100, 1.200] |")
    assert "mse_loss.sum backward | 1.00 MiB" in rows[1]
    assert rows[1].endswith("|  |")


def test_evidence_is_shown_and_missing_evidence_is_named() -> None:
    comparisons = (
        CaseComparison(
            case="mse_loss", verdict="faster", speedup=1.17, interval=Interval(low=1.1, high=1.2)
        ),
        CaseComparison(case="mse_loss.sum", verdict="untrusted", speedup=1.0, why="busy machine"),
    )
    patch = replace(VERIFIED, comparisons=comparisons)
    report = TorchFixReport(torch="2.6.0", patches=(patch,), built=True, python="P")
    text = " ".join(torch_fix_text(report, folder="F").split())
    assert "40 samples of nn.functional.mse_loss equal bit for bit" in text
    assert "90 pass before and after, 4 skipped, 1 failed before, 0 fail now" in text
    assert "2.00 MiB less written" in text
    assert "mse_loss: faster, 1.170x [1.100, 1.200]" in text
    assert "mse_loss.sum: untrusted, 1.000x (busy machine)" in text
    untested = replace(patch, tests=SuiteCheck(why="pytest is missing"))
    assert "torch's tests: not run (pytest is missing)" in upstream_text(report, untested)


@pytest.mark.parametrize(
    ("verdicts", "is_slower"),
    [
        (["slower", "same"], True),
        (["slower", "undecided"], True),
        (["slower", "faster"], True),
        (["faster", "same"], False),
        (["untrusted", "undecided"], False),
        ([], False),
    ],
)
def test_a_correct_patch_that_is_slower_is_not_proposed(
    verdicts: list[str], is_slower: bool
) -> None:
    comparisons = tuple(
        CaseComparison(case=f"c{number}", verdict=verdict, speedup=0.9)
        for number, verdict in enumerate(verdicts)
    )
    patch = replace(VERIFIED, comparisons=comparisons)
    assert why_slower(patch) == ("passes all checks, but c0 is slower, 0.900x" if is_slower else "")
    patch = replace(patch, why_not=why_slower(patch))
    report = TorchFixReport(torch="2.6.0", patches=(patch,), built=True)
    assert report.proposed == (() if is_slower else (patch,))
    assert ("not proposed" in series_text(report)) == is_slower


def test_patches_without_tests_of_torch_are_not_just_verified() -> None:
    untested = replace(VERIFIED, function="f", tests=SuiteCheck(why="pytest is missing"))
    states = [
        torch_fix_text(TorchFixReport(patches=patches, built=True), folder="F").splitlines()[0]
        for patches in ((VERIFIED,), (VERIFIED, untested), (untested,))
    ]
    assert [state.partition(", ")[2] for state in states] == [
        "verified.",
        "verified, 1 of them without torch's tests.",
        "verified without torch's tests.",
    ]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    folder.mkdir()
    SweepFolder(folder).begin(SweepSettings(python="/usr/bin/none", target="none"))
    (folder / "rows.jsonl").write_text(
        json.dumps({"kind": "header", "torch": "2.6.0", "device": "cpu", "cases": []}) + "\n"
    )
    return folder


@pytest.mark.parametrize("option", [["--apply"], ["--target", "x"], ["--class", "narrower-type"]])
def test_options_of_programs_are_refused_for_a_sweep(
    option: list[str], sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_torchyard(["values", "fix", str(sweep), *option]) == 2
    assert f"{option[0]} does not apply here" in capsys.readouterr().err


def test_a_sweep_of_an_interpreter_that_is_no_build(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    assert run_torchyard(["values", "fix", str(sweep)]) == 2
    error = capsys.readouterr().err
    assert "is no build of Torchyard" in error
    assert "--target build:NAME" in error
    assert "--source FOLDER" in error


def test_options_of_torch_are_refused_for_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "p.py"
    program.write_text("")
    for options in (["--rebuild"], ["--source", str(tmp_path)]):
        assert run_torchyard(["values", "fix", *options, str(program)]) == 2
        assert f"{options[0]} does not apply here" in capsys.readouterr().err
