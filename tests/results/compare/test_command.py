"""`compare`, `baseline` and `gate` on the command line: selection, output, files and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.cli.command_line import call
from tests.results.simulated_runs import MACHINE, Plan, write_session
from torchyard.results import model as stored
from torchyard.results.compare.command import FORMATS
from torchyard.results.compare.report import COMPARE_FORMATS
from torchyard.results.gate import model
from torchyard.results.gate.command import ACTIONS, METRICS

Capture = pytest.CaptureFixture[str]
FIRST: Final = "20250101T030405.678Z-1a2b"
SECOND: Final = "20250102T030405.678Z-3c4d"
AWAY: Final = "20250103T030405.678Z-5e6f"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    runs = home / "runs"
    write_session(runs / FIRST, Plan(started="2025-01-01T03:04:05.678Z"))
    write_session(
        runs / SECOND,
        Plan(
            seed=2,
            drift=0.2,
            effects={"fast": 0.1, "slow": 0.05},
            started="2025-01-02T03:04:05.678Z",
        ),
    )
    write_session(
        runs / AWAY,
        Plan(seed=3, machine={**MACHINE, "cpu": "Other 1"}, started="2025-01-03T03:04:05.678Z"),
    )
    return home


@pytest.fixture(autouse=True)
def home(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runs are shared, baselines are not."""
    (tmp_path / "runs").symlink_to(prepared / "runs")
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def test_choices_are_those_of_the_library() -> None:
    assert set(FORMATS) == set(COMPARE_FORMATS)
    assert METRICS == stored.METRICS
    assert ACTIONS == model.ACTIONS


def test_two_runs_by_the_beginning_of_their_ids(capsys: Capture) -> None:
    completed = call(capsys, "compare", "20250101", "20250102")
    assert completed.code == 0, completed.err
    assert "4 rows: 4 with a common baseline" in completed.out
    assert completed.out.count("▼ slower") == 2
    assert "mean change of the baseline's time from A to B: +2" in completed.out
    assert "A  20250101" in completed.out


def test_the_default_second_run_is_the_latest(capsys: Capture) -> None:
    document = json.loads(call(capsys, "compare", FIRST, "--json").out)
    assert document["other"]["runs"] == [AWAY]
    assert {row["support"] for row in document["rows"]} == {"not supported"}
    assert {row["verdict"] for row in document["rows"]} == {None}
    assert document["mean"] is None


def test_two_variants_of_a_run(capsys: Capture) -> None:
    document = json.loads(call(capsys, "compare", f"{FIRST}#slow", "#fast", "--json").out)
    assert {row["support"] for row in document["rows"]} == {"interleaved"}
    assert {row["verdict"] for row in document["rows"]} == {"faster"}


@pytest.mark.parametrize(
    ("ending", "start"),
    [
        ("html", "<!DOCTYPE html>"),
        ("md", "## B"),
        ("csv", "workload,"),
        ("json", "{"),
        ("x", "A  "),
    ],
)
def test_the_ending_of_the_file_says_the_format(
    capsys: Capture, tmp_path: Path, ending: str, start: str
) -> None:
    path = tmp_path / "new" / f"out.{ending}"
    completed = call(capsys, "compare", FIRST, SECOND, "--output", str(path))
    assert (completed.code, completed.out) == (0, "")
    assert path.read_text().lstrip().startswith(start)


def test_options_of_the_rules(capsys: Capture) -> None:
    wide = json.loads(
        call(capsys, "compare", FIRST, SECOND, "--session-spread", "10%", "--json").out
    )
    assert {row["verdict"] for row in wide["rows"]} == {"undecided"}
    generous = json.loads(call(capsys, "compare", FIRST, SECOND, "--margin", "50%", "--json").out)
    assert {row["verdict"] for row in generous["rows"]} == {"same"}
    assert call(capsys, "compare", FIRST, SECOND, "--margin", "much").code == 2


def test_one_workload_over_time(capsys: Capture) -> None:
    out = call(capsys, "compare", "--over-time", "kernels/matmul").out
    assert "kernels/matmul inference: fast against eager" in out
    assert out.index(FIRST) < out.index(SECOND)
    document = json.loads(call(capsys, "compare", "--over-time", "models/*", "--json").out)
    assert {series["workload"] for series in document["series"]} == {"models/gpt training"}
    assert call(capsys, "compare", "--over-time", "nothing").code == 3
    assert call(capsys, "compare", "--over-time", "x", "--format", "html").code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (FIRST, FIRST),
        (FIRST, "no-such-run"),
        (f"{FIRST}#nobody", SECOND),
        ("#fast", FIRST),
        ("baseline:none", FIRST),
        (FIRST, SECOND, "--format", "html", "--json"),
        (FIRST, "--over-time", "x"),
    ],
)
def test_wrong_requests_end_with_2_and_a_hint(capsys: Capture, arguments: tuple[str, ...]) -> None:
    completed = call(capsys, "compare", *arguments)
    assert completed.code == 2
    assert "hint:" in completed.err


def test_a_baseline_from_saving_to_deleting(capsys: Capture, home: Path) -> None:
    assert "there are no baselines" in call(capsys, "baseline", "list").err
    assert call(capsys, "baseline", "save", "main", FIRST, "--note", "night").code == 0
    assert call(capsys, "baseline", "save", "main", SECOND).code == 2
    assert call(capsys, "baseline", "save", "main", FIRST, SECOND, "--replace").code == 0
    listed = json.loads(call(capsys, "baseline", "list", "--json").out)
    assert [(one["name"], one["runs"]) for one in listed["baselines"]] == [
        ("main", [FIRST, SECOND])
    ]
    assert "main" in call(capsys, "baseline", "list").out
    shown = call(capsys, "baseline", "show", "main").out
    assert FIRST in shown
    assert "4 comparisons" in shown
    assert call(capsys, "compare", "baseline:main#fast", SECOND).code == 0
    assert json.loads(call(capsys, "baseline", "delete", "main", "--json").out)["deleted"] == "main"
    assert call(capsys, "baseline", "show", "main").code == 2
    assert call(capsys, "baseline", "save", "../x").code == 2


def test_damaged_baselines_are_listed_with_the_others(capsys: Capture, home: Path) -> None:
    call(capsys, "baseline", "save", "good", FIRST)
    (home / "baselines" / "bad.json").write_text("{")
    completed = call(capsys, "baseline", "list")
    assert (completed.code, "good" in completed.out) == (0, True)
    assert "bad.json, line 1: not JSON" in completed.err
    assert call(capsys, "compare", "baseline:bad", FIRST).code == 8


def test_a_baseline_file_is_enough_without_the_run(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Path
) -> None:
    path = tmp_path / "ci" / "base.json"
    assert call(capsys, "baseline", "save", "main", FIRST, "--file", str(path)).code == 0
    assert call(capsys, "baseline", "save", "main", FIRST, "--file", str(path)).code == 2
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "empty"))
    now = str(prepared / "runs" / SECOND)
    completed = call(capsys, "gate", now, "--baseline", str(path), "--max-slowdown", "2%")
    assert completed.code == 7, completed.err
    assert "crossed" in completed.out


def test_a_crossed_limit_ends_with_7(capsys: Capture) -> None:
    call(capsys, "baseline", "save", "main", FIRST)
    completed = call(capsys, "gate", SECOND, "--baseline", "main", "--max-slowdown", "2%")
    assert completed.code == 7
    assert "gate failed: 2 workloads exceed their limit" in completed.out
    assert "error: gate failed" in completed.err
    kept = call(capsys, "gate", SECOND, "--baseline", "main", "--max-slowdown", "30%")
    assert (kept.code, "gate passed" in kept.out) == (0, True)


def test_a_limit_that_cannot_be_explained_ends_with_7_anyway(capsys: Capture) -> None:
    base = ("gate", SECOND, "--baseline", FIRST, "--why")
    completed = call(capsys, *base, "--max-slowdown", "2%")
    assert completed.code == 7
    assert "why: " in completed.err
    document = json.loads(call(capsys, *base, "--max-slowdown", "2%", "--json").out)
    assert document["passed"] is False
    passed = call(capsys, *base, "--max-slowdown", "30%")
    assert (passed.code, "why: " in passed.err) == (0, False)


def test_limits_by_pattern_and_from_a_file(capsys: Capture, tmp_path: Path) -> None:
    base = ("gate", SECOND, "--baseline", FIRST)
    assert call(capsys, *base, "--limit", "kernels/*=30%", "--limit", "models/*=30%").code == 0
    assert call(capsys, *base, "--max-slowdown", "2%", "--limit", "kernels/*=30%").code == 7
    study = tmp_path / "study.toml"
    study.write_text(
        'baseline = "eager"\n[gate]\nmax-slowdown = "2%"\non-undecided = "fail"\n'
        '[gate.limits]\n"*" = 0.3\n'
    )
    assert call(capsys, *base, "--limits", str(study)).code == 0
    assert call(capsys, *base, "--limits", str(study), "--limit", "models/gpt=1%").code == 7
    assert call(capsys, "bench", str(study), "--only", "kernels/matmul", "--dry-run").code == 0
    document = json.loads(call(capsys, *base, "--limits", str(study), "--json").out)
    assert document["policy"]["on_undecided"] == "fail"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "is not valid TOML"),
        ("[other]\n", "no [gate] table"),
        ('[gate]\nmax-slowdwn = "2%"\n', "did you mean 'max-slowdown'?"),
        ('[gate]\nmax-slowdown = "two"\n', "is not a percentage"),
        ("[gate]\nmax-slowdown = -1\n", "is not a limit"),
        ('[gate.limits]\n"models/*" = "5 pints"\n', "models/*"),
        ('[gate]\non-undecided = "perhaps"\n', "not a valid value"),
    ],
)
def test_a_wrong_limits_file_is_named(
    capsys: Capture, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    completed = call(capsys, "gate", SECOND, "--baseline", FIRST, "--limits", str(path))
    assert completed.code == 2
    assert "limits.toml" in completed.err
    assert said in completed.err


def test_a_run_of_two_builds_needs_no_history(capsys: Capture) -> None:
    assert call(capsys, "gate", FIRST, "--max-slowdown", "2%").code == 0
    completed = call(capsys, "gate", f"{FIRST}#fast", "--max-slowdown", "2%", "--json")
    document = json.loads(completed.out)
    assert (completed.code, document["passed"], document["counts"]) == (0, True, {"kept": 2})
    assert {row["support"] for row in document["rows"]} == {"interleaved"}


def test_json_of_a_failed_gate_is_one_object(capsys: Capture) -> None:
    completed = call(capsys, "gate", SECOND, "--baseline", FIRST, "--max-slowdown", "2%", "--json")
    document = json.loads(completed.out)
    assert (completed.code, document["passed"]) == (7, False)
    assert "gate failed" in completed.err


def test_another_machine_fails_by_default(capsys: Capture) -> None:
    base = ("gate", AWAY, "--baseline", FIRST, "--max-slowdown", "90%")
    completed = call(capsys, *base)
    assert completed.code == 7
    assert "not comparable: machine differs" in completed.out
    assert call(capsys, *base, "--on-unsupported", "warn").code == 0


def test_untrusted_numbers_neither_pass_nor_fail_a_gate(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "noisy"
    write_session(folder, Plan(busy=True, started="2025-01-04T03:04:05.678Z"))
    lenient = ("--on-unsupported", "pass", "--on-undecided", "pass", "--on-failing", "pass")
    for baseline in ((), ("--baseline", FIRST)):
        base = ("gate", str(folder), *baseline, "--max-slowdown", "90%", *lenient)
        completed = call(capsys, *base, "--markdown", str(tmp_path / "gate.md"))
        assert completed.code == 6, completed.err
        assert "gate untrusted: " in completed.err
        assert "noisy machine" in completed.out
        assert (tmp_path / "gate.md").read_text().startswith("### 🚫 Gate untrusted")
        document = json.loads(call(capsys, *base, "--json").out)
        assert (document["passed"], document["state"]) == (False, "untrusted")


def test_the_summary_goes_to_a_file_and_to_the_job(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("gate", SECOND, "--baseline", FIRST, "--max-slowdown", "2%")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert call(capsys, *base, "--step-summary").code == 2
    summary = tmp_path / "summary.md"
    summary.write_text("# Earlier step\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    path = tmp_path / "gate.md"
    assert call(capsys, *base, "--step-summary", "--markdown", str(path)).code == 7
    assert path.read_text().startswith("### ❌ Gate failed")
    assert summary.read_text() == "# Earlier step\n" + path.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--max-slowdown", "two"),
        ("--limit", "5%", "--max-slowdown", "2%"),
        ("--limits", "no-such-file.toml"),
        ("--max-slowdown", "2%", "--baseline", "nobody"),
    ],
)
def test_wrong_gates_end_with_2(capsys: Capture, arguments: tuple[str, ...]) -> None:
    completed = call(capsys, "gate", FIRST, *arguments)
    assert (completed.code, "hint:" in completed.err) == (2, True)


def test_an_interrupted_run_fails_for_missing_workloads(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    write_session(folder, Plan())
    facts = json.loads((folder / "run.json").read_text())
    lines = (folder / "comparisons.jsonl").read_text().splitlines(keepends=True)
    (folder / "comparisons.jsonl").write_text("".join(lines[:2]))
    (folder / "run.json").write_text(json.dumps(facts | {"state": "interrupted"}))
    completed = call(capsys, "gate", str(folder), "--max-slowdown", "2%")
    assert completed.code == 7
    assert "not measured by the run" in completed.out
    assert "the run is interrupted" in completed.err
    (folder / "run.json").write_text(json.dumps(facts | {"state": "running"}))
    assert call(capsys, "gate", str(folder), "--max-slowdown", "2%").code == 2


def test_a_baseline_file_has_no_samples_to_pair_again(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "base.json"
    call(capsys, "baseline", "save", "main", FIRST, "--file", str(path))
    completed = call(capsys, "compare", f"{path}#slow", "#fast")
    assert (completed.code, "has no samples" in completed.err) == (2, True)
    assert call(capsys, "compare", f"{path}#eager", "#fast").code == 0
