"""The steps of the GitHub action compare two revisions of a small repository.

The machine may be noisy: a gate that is untrusted or undecided is accepted, but equal code never exceeds
the limit, and planted work never keeps it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from tests.docs.ci_steps import LIBRARY, commit, make_repository, run_steps

pytest.importorskip("torch")
UNKNOWN: Final = {"undecided", "untrusted", "unsupported"}


def standing(output_folder: Path) -> str:
    text = (output_folder / "gate.md").read_text()
    (row,) = [line for line in text.splitlines() if "net.py" in line and line.startswith("| ")]
    return row.rstrip(" |").rpartition("| ")[2]


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("repeats", [20, 30])
def test_each_revision_runs_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    monkeypatch.setenv("LOADED", str(tmp_path / "loaded"))
    (tmp_path / "temp").mkdir()
    repository = make_repository(tmp_path / "repository")
    commit(repository, "src/library.py", LIBRARY.replace("20", str(repeats)) + "# changed\n")
    temp = tmp_path / "temp"
    code, output = run_steps(
        repository,
        temp,
        workloads="benchmarks/net.py\n\nbenchmarks/new.py:Net\n",
        source="src",
        time="40s",
    )
    folder = temp / "torchyard"
    assert "benchmarks/new.py is not in the base revision: not compared" in output
    found = standing(folder)
    if repeats == 20:
        assert code == 0, output
        assert found in {"kept", *UNKNOWN}, output
    else:
        assert found in {"crossed", *UNKNOWN}, output
        assert code == (7 if found == "crossed" else 0), output
    assert (temp / "summary.md").read_text() == (folder / "gate.md").read_text()
    assert (folder / "report.html").is_file()
    loaded = set((tmp_path / "loaded").read_text().splitlines())
    base = folder / "base"
    assert loaded == {
        f"{base}/benchmarks/net.py {base}/src/library.py",
        f"{repository}/benchmarks/net.py {repository}/src/library.py",
    }
    facts = json.loads((folder / "run" / "run.json").read_text())
    assert facts["study"]["budget"]["time_s"] == 40.0
    assert len(facts["revision"]) == 40
