"""Shared runs: markers are inserted into every text of a run and must not appear in any report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.bench.sample_run import COMPARISONS, GPT, STUDY, write_run
from torchyard.bench.report.formats import FORMATS
from torchyard.bench.report.sharing import redacted_run
from torchyard.core.comparison import Scope
from torchyard.core.study import Environment, Mode, Precision, RelocationMethod, Target
from torchyard.results.run_reader import Run, read_run

HOST, USER, FOLDER, VALUE, WORD = "qhostmark", "qusermark", "qpathmark", "qvaluemark", "qwordmark"
MARKS = (HOST, USER, FOLDER, VALUE, WORD)
PLANT = (
    f" see /home/{USER}/{FOLDER}/a.py and {USER}@{HOST} on {HOST}.corp.example, "
    f"SECRET_TOKEN={VALUE} with {VALUE}; ssh://{HOST}/x ~{USER}/{FOLDER}"
)
FIXED = {
    *get_args(Mode),
    *get_args(Precision),
    *get_args(Scope),
    *get_args(RelocationMethod),
    "eager",
    "inductor",
    "tcmalloc",
}


def planted(value: Any) -> Any:
    """The same with marks in every text; words that have a meaning stay."""
    if isinstance(value, Target):
        python = f"/home/{USER}/my {FOLDER}/python"
        return dataclasses.replace(value, python=python, variables=(("HF_TOKEN", VALUE),))
    if isinstance(value, Environment):
        return dataclasses.replace(
            value, variables=(("KEY", VALUE),), preload=(f"{FOLDER}/libx.so",)
        )
    if isinstance(value, Enum) or value is None:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: planted(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    if isinstance(value, str):
        return value if value in FIXED else value + PLANT
    if isinstance(value, Mapping):
        return {str(key) + PLANT: planted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(planted(item) for item in value)
    return value


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("marked") / "run"
    write_run(folder, study=planted(STUDY), comparisons=planted(COMPARISONS))
    info = json.loads((folder / "run.json").read_text())
    info["owner"] |= {"host": HOST, "user": USER}
    info["command"] = ["torchyard", "bench", WORD, f"/home/{USER}/{FOLDER}"]
    info["machine"] = planted(info["machine"]) | {"hostname": WORD, "cwd": WORD, "uuid": WORD}
    info["targets"] = planted(info["targets"])
    (folder / "run.json").write_text(json.dumps(info))
    launches = (folder / "launches.jsonl").read_text().splitlines()
    texts = [json.dumps({**json.loads(x), "guards": {f"g {PLANT}": PLANT}}) for x in launches]
    (folder / "launches.jsonl").write_text("\n".join(texts) + "\n")
    return read_run(folder)


# A roofline's picture needs a peak that was measured here; it is drawn from the same cleaned run.
@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"roofline-svg"}))
def test_no_mark_is_in_any_report(marked: Run, name: str) -> None:
    open_text = FORMATS[name](marked)
    shared = FORMATS[name](redacted_run(marked))
    assert [mark for mark in MARKS if mark in shared.lower()] == []
    assert any(mark in open_text for mark in MARKS), "the marks were never there"


def test_placeholders_are_stable(marked: Run) -> None:
    first, second = (FORMATS["json"](redacted_run(marked)) for _ in range(2))
    assert first == second
    assert "<path-1>" in first
    assert "<user-1>" in first


def test_numbers_and_charts_are_those_of_the_run(marked: Run) -> None:
    shared = redacted_run(marked)
    assert [one.estimate for one in shared.comparisons if one.estimate and not one.estimate.reasons]
    for old, new in zip(marked.comparisons, shared.comparisons, strict=True):
        assert old.verdict == new.verdict
        assert (old.estimate is None) == (new.estimate is None)
        if old.estimate and new.estimate:
            assert old.estimate.speedup == new.estimate.speedup
    page, open_page = FORMATS["html"](shared), FORMATS["html"](marked)
    assert page.count('class="lazy-chart"') == open_page.count('class="lazy-chart"') > 10
    assert page.count("By launch:") == open_page.count("By launch:") == 6


def test_a_page_for_sharing_says_so(marked: Run, tmp_path: Path) -> None:
    page = FORMATS["html"](redacted_run(marked))
    assert "Redacted copy" in page
    assert "omitted for sharing" in page
    assert "Redacted copy" not in FORMATS["html"](write_run(tmp_path / "run"))


def test_json_for_sharing_says_so(marked: Run) -> None:
    document = json.loads(FORMATS["json"](redacted_run(marked)))
    assert document["run"]["shared"] is True
    assert document["run"]["command"] is None
    assert document["machine"]["hostname"] == "<omitted>"
    variables = document["study"]["baseline"]["target"]["variables"]
    assert variables == [["HF_TOKEN", "<value-1>"]]
    assert json.loads(FORMATS["json"](marked))["run"]["shared"] is False


def test_a_run_that_is_not_shared_is_unchanged(tmp_path: Path) -> None:
    run = redacted_run(write_run(tmp_path / "run"))
    assert [one.workload.label for one in run.comparisons] == [
        one.workload.label for one in COMPARISONS
    ]
    assert run.info["machine"]["cpu"] == "Example 9000, 2 cores"
    assert run.comparisons[4].workload == GPT
    assert run.comparisons[5].failure == COMPARISONS[5].failure
    assert run.study.baseline.target.python == "<path-1>"


def test_the_folder_is_not_touched(marked: Run) -> None:
    before = {path: path.read_bytes() for path in marked.folder.rglob("*") if path.is_file()}
    FORMATS["html"](redacted_run(marked))
    assert before == {p: p.read_bytes() for p in marked.folder.rglob("*") if p.is_file()}
