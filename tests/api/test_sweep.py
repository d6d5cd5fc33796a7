"""`torchyard.sweep` in real processes: rows, failures, and the same cells as the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import torchyard
from tests.cli.command_line import call
from torchyard.core.records import encode
from torchyard.errors import NothingToDo, UsageError
from torchyard.sweep.folder import SweepFolder

pytestmark = pytest.mark.torch

MODEL = """
import torch


class Good(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x @ x)


def good():
    return Good(), (torch.ones(32, 32),)


def bad():
    raise ValueError("no weights here")
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> torchyard.Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "net.py").write_text(MODEL, "utf-8")
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHYARD_HOME", str(folder / "home"))
        patch.chdir(folder)
        made = torchyard.sweep(
            workloads=["net.py:good", "net.py:bad"],
            backends="aot_eager",
            threads=1,
            time=2,
            folder=folder / "sweep",
            progress=lines.append,
        )
    assert len(lines) == 2, lines
    assert any("no weights here" in line for line in lines)
    return made


def test_every_workload_is_a_row(result: torchyard.Sweep) -> None:
    by_name = {row.workload.split()[0].rpartition(":")[2]: row for row in result.rows}
    good, bad = by_name["good"], by_name["bad"]
    assert good.end in ("passed", "not-finished")  # the latter if every pair was disturbed
    if good.interval is not None:
        assert good.interval.low <= (good.speedup or 0.0) <= good.interval.high
    assert bad.end == "unsupported"
    assert bad.speedup is None
    assert "no weights here" in bad.reason
    assert repr(result).startswith("<Sweep sweep: 2 comparisons (1 ")
    assert "1 unsupported" in repr(result)


def test_the_html_has_means_rows_and_the_folder(result: torchyard.Sweep) -> None:
    text = result._repr_html_()
    assert "mean of file inference float32 · aot_eager" in text
    assert "net.py:bad" in text
    assert "unsupported" in text
    assert str(result.folder) in text
    assert "aot_eager" in result.report()


@pytest.mark.skipif(find_spec("pandas") is None, reason="pandas is not installed")
def test_the_table_has_all_rows(result: torchyard.Sweep) -> None:
    table = result.to_pandas()
    assert list(table["end"]) == [row.end for row in result.rows]
    assert list(table["speedup"].isna()) == [row.speedup is None for row in result.rows]


def test_the_command_line_reads_the_same_sweep(
    result: torchyard.Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    completed = call(capsys, "sweep", "report", str(result.folder), "--format", "json")
    assert completed.code == 0, completed.err
    rows = json.loads(completed.out)["rows"]
    assert [row["speedup"] for row in rows] == [row.speedup for row in result.rows]
    again = call(capsys, "sweep", "--resume", str(result.folder), "--json")
    assert len(json.loads(again.out)["comparisons"]) == 2


def test_the_plan_is_that_of_the_command_line(
    result: torchyard.Sweep, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(result.folder.parent)
    options = ["--backends", "aot_eager", "--threads", "1", "--time", "2s", "--plan", "--json"]
    completed = call(
        capsys, "sweep", "--workload", "net.py:good", "--workload", "net.py:bad", *options
    )
    cells = json.loads(completed.out)["plan"]["cells"]
    assert cells == json.loads(json.dumps(encode(SweepFolder.open(result.folder).plan)))["cells"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"suites": "model"}, UsageError, "unknown suite 'model'"),
        ({"suites": "models", "modes": "train"}, UsageError, "unknown mode 'train'"),
        ({"suites": "models", "time": -1.0}, UsageError, "time"),
        ({"suites": "models", "only": "gtp"}, NothingToDo, "no workload selected"),
        ({}, NothingToDo, "no suite or workload given"),
        ({"study": "nowhere.toml"}, UsageError, "nowhere.toml"),
    ],
)
def test_errors_come_before_anything_is_written(
    options: dict[str, object],
    error: type[Exception],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    with pytest.raises(error, match=text):
        torchyard.sweep(**options)  # type: ignore[arg-type]
    assert not (tmp_path / "home" / "sweeps").exists()


def test_the_package_and_the_function_share_the_name() -> None:
    program = (
        "import torchyard, torchyard.sweep.model\n"
        "from torchyard.errors import NothingToDo\n"
        "try:\n    torchyard.sweep()\n"
        "except NothingToDo:\n    print('called')\n"
        "import sys; print('torch' in sys.modules)\n"
    )
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert completed.stdout.split() == [b"called", b"False"]
