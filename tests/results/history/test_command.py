"""`history`: series, formats, output, and messages for empty results."""

from __future__ import annotations

import csv
import io
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from tests.cli.command_line import call
from torchyard.core.comparison import Comparison, Estimate, Interval, VariantMetrics, Verdict
from torchyard.core.study import Study, Target, Variant, Workload
from torchyard.results.history.command import FORMATS, METRICS
from torchyard.results.index.entries import Entries, FullMark
from torchyard.results.index.store import Store
from torchyard.results.model import METRICS as KNOWN_METRICS
from torchyard.results.model import ComparisonEntry, RunEntry
from torchyard.results.run_writer import RunWriter

Capture = pytest.CaptureFixture[str]
HERE = Target(name="here", python="/usr/bin/python3")
START = datetime(2025, 1, 1, tzinfo=UTC)
MATMUL, CONV = (Workload(suite="kernels", name=name) for name in ("matmul", "conv2d"))


def write_runs(home: Path, count: int = 24, *, step_at: int = 14) -> None:
    """Run folders of one comparison of two workloads; the first gets slower."""
    random = Random(3)
    for number in range(count):
        study = Study(
            name="nightly",
            baseline=Variant(name="eager", target=HERE),
            candidates=(Variant(name="inductor", target=HERE, backend="inductor"),),
            workloads=(MATMUL, CONV),
        )
        folder = home / "runs" / f"run-{number:03d}"
        writer = RunWriter.create(
            folder, study=study, command=["torchyard"], machine={}, revision=f"{number:07x}"
        )
        for workload in (MATMUL, CONV):
            speedup = 1.5 * random.lognormvariate(0.0, 0.004)
            if workload is MATMUL and number >= step_at:
                speedup *= 0.9
            writer.add_comparison(
                Comparison(
                    workload=workload,
                    baseline="eager",
                    candidate="inductor",
                    verdict=Verdict.FASTER,
                    estimate=Estimate(
                        verdict=Verdict.FASTER,
                        speedup=speedup,
                        interval=Interval(low=speedup * 0.99, high=speedup * 1.01),
                        p_value=0.001,
                        launches=5,
                        pairs=50,
                        pairs_dropped=0,
                        launch_sd=0.01,
                        pair_sd=0.01,
                        minimum_detectable=0.02,
                        time_needed_s=10.0,
                    ),
                    candidate_metrics=VariantMetrics(time_ns=1e6 / speedup),
                )
            )
        writer.finish("finished")
        info = json.loads((folder / "run.json").read_text())
        info["started"] = (START + timedelta(days=number)).isoformat().replace("+00:00", "Z")
        (folder / "run.json").write_text(json.dumps(info))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    write_runs(tmp_path)
    return tmp_path


def test_choices_are_those_of_the_program() -> None:
    assert METRICS == KNOWN_METRICS
    assert len(set(FORMATS)) == 5


def test_which_workloads_changed(home: Path, capsys: Capture) -> None:
    completed = call(capsys, "history")
    assert completed.code == 0, completed.err
    assert "1 of 2 histories changed in speedup" in completed.out
    assert "000000d..000000e" in completed.out
    assert "conv2d" not in completed.out


def test_one_workload_with_its_picture(home: Path, capsys: Capture) -> None:
    completed = call(capsys, "history", "kernels/matmul")
    assert completed.code == 0, completed.err
    assert re.search(r"step change of -(9|10)\.\d%", completed.out)
    assert "000000d..000000e" in completed.out
    assert len([line for line in completed.out.splitlines() if "│" in line or "|" in line]) >= 10


def test_json_of_one_holds_points(home: Path, capsys: Capture) -> None:
    (series,) = json.loads(call(capsys, "history", "kernels/matmul", "--json").out)["series"]
    assert len(series["points"]) == 24
    (change,) = series["changes"]
    assert change["after"]["run"] == "run-014"
    assert 0.88 < change["ratio"] < 0.92


def test_metric_of_times_goes_the_other_way(home: Path, capsys: Capture) -> None:
    completed = call(capsys, "history", "--metric", "time", "--json", "--changes-only")
    (series,) = json.loads(completed.out)["series"]
    assert series["metric"] == "time"
    assert series["changes"][0]["ratio"] > 1.08
    assert series["changes"][0]["towards"] == "worse"


def test_times_choose_changes(home: Path, capsys: Capture) -> None:
    assert "1 of 2" in call(capsys, "history", "--since", "2025-01-10").out
    assert "0 of 2" in call(capsys, "history", "--since", "2025-01-20").out
    assert "0 of 2" in call(capsys, "history", "--until", "2025-01-10").out
    completed = call(capsys, "history", "--since", "someday")
    assert completed.code == 2
    assert "--since" in completed.err


def test_smallest_change_is_a_choice(home: Path, capsys: Capture) -> None:
    assert "0 of 2" in call(capsys, "history", "--least", "20%").out
    assert "1 of 2" in call(capsys, "history", "--least", "5%").out
    assert call(capsys, "history", "--least", "much").code == 2


def test_chance_of_false_alarms_is_a_choice(home: Path, capsys: Capture) -> None:
    assert "1 of 2" in call(capsys, "history", "--alpha", "0.1%").out
    assert "0 of 2" in call(capsys, "history", "--alpha", "0.0000001%").out
    assert call(capsys, "history", "--alpha", "often").code == 2


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_format_goes_to_a_file(
    home: Path, capsys: Capture, tmp_path: Path, format_name: str
) -> None:
    path = tmp_path / "out" / "history.txt"
    completed = call(capsys, "history", "--format", format_name, "--output", str(path))
    assert completed.code == 0, completed.err
    assert completed.out == ""
    text = path.read_text()
    assert "kernels/matmul" in text
    if format_name == "csv":
        assert [row["kind"] for row in csv.DictReader(io.StringIO(text))] == ["step"]
    if format_name == "html":
        assert text.lstrip().startswith("<!DOCTYPE html>")


def test_ending_of_the_file_names_the_format(home: Path, capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "history.md"
    assert call(capsys, "history", "kernels/*", "--output", str(path)).code == 0
    assert path.read_text().startswith("## kernels/")


def test_json_and_another_format_exclude_each_other(home: Path, capsys: Capture) -> None:
    assert call(capsys, "history", "--json", "--format", "csv").code == 2


def test_nothing_that_fits(home: Path, capsys: Capture) -> None:
    completed = call(capsys, "history", "kernels/none")
    assert completed.code != 0
    assert "no history of 'kernels/none'" in completed.err
    assert "hint" in completed.err


def test_no_runs_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "empty"))
    assert "no history" in call(capsys, "history").err


def test_what_was_found_is_kept_beside_the_index(home: Path, capsys: Capture) -> None:
    first = call(capsys, "history").out
    with Store.open(home / "runs") as store:
        assert store.place is not None
        kept = store.place.with_suffix(".changes.json")
    assert kept.exists()
    assert call(capsys, "history").out == first
    kept.write_text("{")
    assert call(capsys, "history").out == first


def test_many_series_of_a_real_store_raise_no_alarms(tmp_path: Path) -> None:
    """Rows put into the index by themselves, without folders."""
    from torchyard.results.history.changes import ChangeCache, histories
    from torchyard.results.model import RunFilter

    random = Random(5)
    (tmp_path / "runs").mkdir()
    memory = ChangeCache()
    with Store.open(tmp_path / "runs") as store:
        found = []
        for number in range(12):
            started = (START + timedelta(days=number)).isoformat().replace("+00:00", "Z")
            run = RunEntry(id=f"run-{number:03d}", folder="", started=started, machine="epyc")
            entries = [
                ComparisonEntry(
                    run=run.id,
                    started=started,
                    machine="epyc",
                    revision="",
                    workload=f"kernels/w{place} inference",
                    suite="kernels",
                    mode="inference",
                    device="cpu",
                    baseline="eager",
                    candidate="inductor",
                    verdict=Verdict.FASTER,
                    speedup=random.lognormvariate(0.0, 0.01),
                )
                for place in range(100)
            ]
            found.append((FullMark(str(number)), Entries(run=run, comparisons=tuple(entries))))
        store.insert(found)
        assert len(histories(store, RunFilter(), cache=memory)) == 100
        again = histories(store, RunFilter(), cache=memory)
    assert sum(bool(one.changes) for one in again) <= 1
