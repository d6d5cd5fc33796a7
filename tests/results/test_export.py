"""Export of comparisons as tables for other programs."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tests.results.run_directories import compared, day, write_run
from tests.results.run_samples import FAILED
from torchyard.core.study import Workload
from torchyard.errors import MissingTool
from torchyard.results.commands.transfer import FORMS as SHOWN_FORMS
from torchyard.results.index.store import Store
from torchyard.results.model import ComparisonEntry, RunFilter
from torchyard.results.report import COLUMNS, FORMS, rows_of

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
