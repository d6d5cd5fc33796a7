"""Import of runs into a results directory, without overwriting."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.results.run_directories import change_facts, compared, day, write_run
from tests.results.run_samples import FAILED, GPT
from torchyard.core.study import Workload
from torchyard.errors import MissingTool, NothingToDo, TorchyardError
from torchyard.results.archive import plain_files, write_archive
from torchyard.results.commands.transfer import FORMS as SHOWN_FORMS
from torchyard.results.index.store import Store
from torchyard.results.model import ComparisonEntry, RunFilter
from torchyard.results.report import COLUMNS, FORMS, rows_of
from torchyard.results.run_changes import Imported, import_runs
from torchyard.results.run_reader import read_run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    write_run(source, day(1), [compared()])
    write_run(source, day(2), [compared(GPT)])
    return source


@pytest.fixture
def archive(source: Path, tmp_path: Path) -> Path:
    write_archive(tmp_path / "a.tar.gz", sorted(source.iterdir()))
    return tmp_path / "a.tar.gz"


def content(folder: Path) -> dict[str, bytes]:
    return {str(name): (folder / name).read_bytes() for name in plain_files(folder)}


@pytest.mark.parametrize("kind", ["archive", "folder of runs"])
def test_runs_come_in_as_they_were(kind: str, source: Path, archive: Path, tmp_path: Path) -> None:
    seen = []
    imported = import_runs(
        archive if kind == "archive" else source,
        tmp_path / "home",
        progress=lambda *numbers: seen.append(numbers),
    )
    assert imported == Imported(runs=(day(1), day(2)))
    assert seen == [(1, 2), (2, 2)]
    assert {path.name for path in (tmp_path / "home").iterdir()} == {day(1), day(2)}
    assert content(tmp_path / "home" / day(1)) == content(source / day(1))
    assert import_runs(archive, tmp_path / "home") == Imported(same=(day(1), day(2)))


def test_one_run_folder(source: Path, tmp_path: Path) -> None:
    assert import_runs(source / day(2), tmp_path / "home").runs == (day(2),)


def test_a_run_in_a_folder_of_the_users_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "first run", [compared()], started="2025-03-04T05:06:07.890Z")
    (name,) = import_runs(folder, tmp_path / "home").runs
    assert name.startswith("20250304T050607.890Z-")
    assert import_runs(folder, tmp_path / "home").same == (name,)
    shutil.copytree(folder, tmp_path / "second")
    assert import_runs(tmp_path / "second", tmp_path / "home").same == (name,)


def test_another_run_of_the_same_id_is_refused(source: Path, archive: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    mine = write_run(home, day(1), [compared(speedup=3.0)])
    before = content(mine)
    imported = import_runs(archive, home)
    assert imported.runs == (day(2),)
    assert imported.refused == ((day(1), "a different run with this id already exists"),)
    assert content(mine) == before


def test_an_id_that_leads_elsewhere(source: Path, tmp_path: Path) -> None:
    change_facts(source / day(1), id="../../evil", started="../../../../../../evil")
    change_facts(source / day(2), id=["list"], started="2025-01-02T12:00:00Z")
    imported = import_runs(source, tmp_path / "home")
    assert imported.refused == ((day(1), "its run.json has no start time"),)
    assert imported.runs[0].startswith("20250102T120000Z-")
    assert not list(tmp_path.glob("**/evil"))


def test_folders_that_are_no_runs(source: Path, tmp_path: Path) -> None:
    (source / day(1) / "run.json").write_text('{"name": "of an npm package"}')
    (source / day(2) / "run.json").write_text("{")
    imported = import_runs(source, tmp_path / "home")
    assert [name for name, _ in imported.refused] == [day(1), day(2)]
    assert list((tmp_path / "home").iterdir()) == []
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingToDo):
        import_runs(tmp_path / "empty", tmp_path / "home")


def test_links_are_not_followed(source: Path, tmp_path: Path) -> None:
    (source / day(1) / "logs" / "secret").symlink_to("/etc/passwd")
    (source / day(3)).symlink_to(source / day(1))
    assert import_runs(source, tmp_path / "home").runs == (day(1), day(2))
    assert not (tmp_path / "home" / day(1) / "logs" / "secret").exists()


def test_a_newer_run_comes_in(source: Path, tmp_path: Path) -> None:
    change_facts(source / day(1), format=99)
    assert import_runs(source, tmp_path / "home").runs == (day(1), day(2))


def test_a_run_that_is_going_on(source: Path, tmp_path: Path) -> None:
    write_run(source, day(3), finish=False)
    imported = import_runs(source, tmp_path / "home")
    assert imported.refused == ((day(3), "it is still running"),)


def test_a_run_that_was_killed_says_so(source: Path, tmp_path: Path) -> None:
    facts = json.loads((source / day(1) / "run.json").read_bytes())
    owner = {**facts["owner"], "host": "another"}
    change_facts(source / day(1), state="running", owner=owner)
    write_archive(tmp_path / "killed.tar.gz", [source / day(1)])
    home = tmp_path / "home"
    assert import_runs(tmp_path / "killed.tar.gz", home).runs == (day(1),)
    assert read_run(home / day(1)).state == "interrupted"
    assert import_runs(tmp_path / "killed.tar.gz", home).same == (day(1),)


def test_a_refused_archive_leaves_nothing(source: Path, archive: Path, tmp_path: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-100])
    with pytest.raises(TorchyardError):
        import_runs(archive, tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []


def test_an_unwritable_results_directory(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TorchyardError):
        import_runs(source, tmp_path / "file" / "home")


def test_killed_during_the_import(tmp_path: Path) -> None:
    source = tmp_path / "source"
    first = write_run(source, day(1), [compared()])
    for number in range(1, 150):
        copy = shutil.copytree(first, source / day(1, f"{number:04x}"))
        change_facts(Path(copy), id=day(1, f"{number:04x}"))
    home = tmp_path / "home"
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from torchyard.results.run_changes import import_runs\n"
        "print('ready', flush=True)\nimport_runs(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(source), str(home)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(500):
        if home.exists() and any(path.name[0] != "." for path in home.iterdir()):
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    whole = [path for path in home.iterdir() if path.name[0] != "."]
    for folder in whole:
        assert content(folder) == content(source / folder.name)
    imported = import_runs(source, home)
    assert len(imported.runs) + len(imported.same) == 150
    assert len(imported.same) == len(whole)
    assert imported.refused == ()


FORMULA = Workload(suite="=cmd()", name='a,"b"\nc')


@pytest.fixture
def rows(tmp_path: Path) -> Sequence[dict[str, Any]]:
    write_run(tmp_path, day(1), [compared(), FAILED], notes=["hot", "late"])
    write_run(tmp_path, day(2), [compared(FORMULA)], revision="v2")
    with Store.open(tmp_path) as store:
        store.refresh()
        found = list(rows_of(store.comparisons(RunFilter()), store.runs(RunFilter())))
    return [
        {**row, "speedup": math.inf} if row["workload"].startswith("kernels/matmul") else row
        for row in found
    ]


def test_every_field_has_a_column(rows: Sequence[dict[str, Any]]) -> None:
    assert {field.name for field in fields(ComparisonEntry)} < set(COLUMNS)
    assert [list(row) for row in rows] == [list(COLUMNS)] * 3
    assert rows[1]["notes"] == "hot; late"
    assert (rows[0]["study"], rows[0]["revision"]) == ("eager against inductor", "v2")
    assert tuple(FORMS) == SHOWN_FORMS


def test_a_run_that_went_away_meanwhile(rows: Sequence[dict[str, Any]], tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        (first, *_) = rows_of(store.comparisons(RunFilter()), [])
    assert (first["run"], first["study"]) == (day(2), "")


def test_csv(rows: Sequence[dict[str, Any]]) -> None:
    read = list(csv.DictReader(io.StringIO(FORMS["csv"](rows).decode())))
    assert list(read[0]) == list(COLUMNS)
    # A spreadsheet would run it.
    assert read[0]["workload"].startswith("'=cmd()/a")
    assert read[0]["suite"] == "'=cmd()"
    assert (read[0]["verdict"], read[0]["trusted"]) == ("faster", "true")
    assert float(read[0]["speedup"]) == 1.25
    (failed,) = [row for row in read if row["verdict"] == "failed"]
    assert (failed["speedup"], failed["memory_bytes"], failed["launches"]) == ("", "", "0")
    (endless,) = [row for row in read if row["workload"].startswith("kernels/matmul")]
    assert endless["speedup"] == ""


def test_json_lines(rows: Sequence[dict[str, Any]]) -> None:
    lines = FORMS["jsonl"](rows).decode("ascii").splitlines()
    read = [json.loads(line) for line in lines]
    assert len(read) == 3
    assert read[0]["workload"] == FORMULA.label
    assert read[0]["verdict"] == "faster"
    assert read[0]["trusted"] is True
    assert read[0]["memory_bytes"] == 2**20
    assert [row["speedup"] for row in read if row["verdict"] == "failed"] == [None]


def test_parquet(rows: Sequence[dict[str, Any]]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(io.BytesIO(FORMS["parquet"](rows)))
    assert table.column_names == list(COLUMNS)
    read = table.to_pylist()
    lines = FORMS["jsonl"](rows).decode().splitlines()
    assert read == [json.loads(line) for line in lines]
    kinds = {"string": str, "double": float, "int64": int, "bool": bool}
    assert [kinds[str(kind)] for kind in table.schema.types] == list(COLUMNS.values())


@pytest.mark.parametrize("form", list(FORMS))
def test_nothing(form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    data = FORMS[form]([])
    assert data == {"csv": (",".join(COLUMNS) + "\n").encode(), "jsonl": b""}.get(form, data)


def test_parquet_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingTool, match="needs pyarrow") as caught:
        FORMS["parquet"]([])
    assert "torchyard[parquet]" in caught.value.hint
