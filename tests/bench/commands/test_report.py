"""`report`: selection of the run, format and output."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.bench.sample_run import estimate
from tests.cli.command_line import call
from torchyard.bench.commands.report import FORMATS
from torchyard.core.comparison import Comparison, Verdict
from torchyard.core.study import Study, Target, Variant, Workload
from torchyard.results.run_writer import RunWriter

Capture = pytest.CaptureFixture[str]
GPT = Workload(suite="models", name="gpt")
HERE = Target(name="here", python="/usr/bin/python3")


def write_run(folder: Path) -> Path:
    """A finished run of one comparison."""
    study = Study(
        name="small",
        baseline=Variant(name="eager", target=HERE),
        candidates=(Variant(name="inductor", target=HERE, backend="inductor"),),
        workloads=(GPT,),
    )
    writer = RunWriter.create(folder, study=study, command=["torchyard"], machine={})
    writer.add_comparison(
        Comparison(
            workload=GPT,
            baseline="eager",
            candidate="inductor",
            verdict=Verdict.FASTER,
            estimate=estimate(Verdict.FASTER, 1.25, 0.04, launches=5, pairs=50),
        )
    )
    writer.finish("finished")
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runs' home of two runs; the later one is `latest`."""
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "yard"))
    monkeypatch.chdir(tmp_path)
    for name in ("20250101T000000.000Z-aaaa", "20250102T000000.000Z-bbbb"):
        write_run(tmp_path / "yard" / "runs" / name)
    return tmp_path / "yard" / "runs"


@pytest.mark.parametrize(
    "run", [[], ["latest"], ["20250102T000000.000Z-bbbb"], ["yard/runs/20250102T000000.000Z-bbbb"]]
)
def test_a_run_by_latest_by_id_and_by_folder(capsys: Capture, home: Path, run: list[str]) -> None:
    completed = call(capsys, "report", *run, "--json")
    assert completed.code == 0
    assert json.loads(completed.out)["run"]["id"] == "20250102T000000.000Z-bbbb"
    assert completed.err == ""


def test_the_terminal_is_the_default(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "report")
    assert "models/gpt inference" in completed.out
    assert "1.250x" in completed.out
    assert "faster" in completed.out
    assert "\x1b" not in completed.out


def test_every_format_goes_to_stdout(capsys: Capture, home: Path) -> None:
    formats = [name for name in FORMATS if name != "roofline-svg"]
    shown = {name: call(capsys, "report", "--format", name) for name in formats}
    assert {ended.code for ended in shown.values()} == {0}
    assert json.loads(shown["json"].out)["comparisons"][0]["verdict"] == "faster"
    rows = list(csv.DictReader(io.StringIO(shown["csv"].out)))
    assert len(rows) == 1
    assert shown["html"].out.lower().startswith("<!doctype html>")
    assert "|" in shown["markdown"].out


def test_a_picture_without_data_is_nothing_to_do(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "report", "--output", "roofline.svg")
    assert completed.code == 3
    assert "no roofline chart" in completed.err
    assert "--format roofline" in completed.err


def test_the_formats_are_those_of_the_reports() -> None:
    from torchyard.bench.report.formats import FORMATS as WRITERS

    assert set(FORMATS) == set(WRITERS)


@pytest.mark.parametrize(
    ("name", "start"), [("r.html", "<!doctype"), ("r.json", "{"), ("deep/er/r.csv", "")]
)
def test_the_ending_of_the_output_tells_the_format(
    capsys: Capture, home: Path, tmp_path: Path, name: str, start: str
) -> None:
    completed = call(capsys, "report", "--output", name)
    assert (completed.code, completed.out) == (0, "")
    assert completed.err.strip().endswith(name)
    assert (tmp_path / name).read_text().lower().startswith(start)


def test_an_output_that_cannot_be_written(capsys: Capture, home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    completed = call(capsys, "report", "--output", "file/r.html")
    assert completed.code == 2
    assert "--output: 'file/r.html' cannot be written" in completed.err


@pytest.mark.parametrize("run", ["20250102T000000.000Z-bbx", "nowhere", "../runs", ""])
def test_a_run_that_is_not_there(capsys: Capture, home: Path, run: str) -> None:
    completed = call(capsys, "report", run)
    assert completed.code == 2
    assert f"there is no run {run!r}" in completed.err


def test_the_nearest_id_is_offered(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "report", "20250102T000000.000Z-bbx")
    assert "did you mean '20250102T000000.000Z-bbbb'?" in completed.err


def test_the_beginning_of_an_id_is_enough(capsys: Capture, home: Path) -> None:
    whole = call(capsys, "report", "20250102T000000.000Z-bbbb")
    assert call(capsys, "report", "20250102T") == whole
    assert whole.code == 0
    completed = call(capsys, "report", "2025")
    assert completed.code == 2
    assert "'2025' is ambiguous: it matches 2 runs" in completed.err
    assert "use more letters of the id" in completed.err


def test_a_folder_that_is_no_run_is_damaged_results(capsys: Capture, home: Path) -> None:
    (home.parent / "other").mkdir()
    completed = call(capsys, "report", str(home.parent / "other"))
    assert completed.code == 8
    assert "is not a run folder" in completed.err


def test_no_run_at_all(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "empty"))
    completed = call(capsys, "report")
    assert completed.code == 3
    assert "there is no run yet" in completed.err


def test_json_and_another_format_exclude_each_other(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "report", "--json", "--format", "csv")
    assert completed.code == 2
    assert "cannot be combined" in json.loads(completed.out)["error"]["what"]


def test_a_copy_for_sharing(capsys: Capture, home: Path) -> None:
    open_run, shared = (call(capsys, "report", "--json", *more) for more in ((), ("--share",)))
    assert "/usr/bin/python3" in open_run.out
    document = shared.document
    assert document["run"]["shared"] is True
    assert document["study"]["baseline"]["target"]["python"] == "<path-1>"
    assert "/usr/bin/python3" not in shared.out


def test_the_columns_of_the_dynamo_harness(capsys: Capture, home: Path) -> None:
    completed = call(capsys, "report", "--format", "dynamo-csv")
    (row,) = csv.DictReader(io.StringIO(completed.out))
    assert (row["dev"], row["name"], row["speedup"]) == ("cpu", "models/gpt inference", "1.25")
