"""Planted waste in DataLoader workers, ranks and child processes is found there; clean programs have no finding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.values.process_corpus import CLEAN, PLANTED, Program

pytestmark = [pytest.mark.torch, pytest.mark.long]
LEAST = 8


def _profile(program: Program, folder: Path) -> dict[str, Any]:
    (folder / "program.py").write_text(program.text)
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "torchyard", "values", "--once", "--json"),
            *(*program.options, "program.py", *program.arguments),
        ],
        env={**os.environ, "TORCHYARD_HOME": str(folder / "home")},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    profile: dict[str, Any] = json.loads(ran.stdout)["profile"]
    return profile


def _name(process: dict[str, Any]) -> str:
    number = {"loader": process["worker"], "rank": process["rank"]}.get(process["kind"])
    return process["kind"] if number is None else f"{process['kind']} {number}"


def test_the_corpus_is_large_enough() -> None:
    assert len(PLANTED) >= LEAST
    assert len(CLEAN) >= LEAST


@pytest.mark.parametrize("program", PLANTED, ids=lambda program: program.name)
def test_planted_waste_is_found_in_its_processes(program: Program, tmp_path: Path) -> None:
    profile = _profile(program, tmp_path)
    processes = profile["processes"]
    assert {process["state"] for process in processes} == {"finished"}
    (finding,) = profile["findings"]
    assert finding["pattern"] == program.pattern
    assert finding["place"]["line"] == program.line
    shares = finding["processes"]
    assert tuple(_name(processes[share["process"]]) for share in shares) == program.where
    assert finding["count"] == sum(share["count"] for share in shares)
    assert finding["bytes_wasted"] == sum(share["bytes_wasted"] for share in shares) > 0
    for name in ("operators", "written_bytes"):
        assert profile["counts"][name] == sum(process[name] for process in processes)


@pytest.mark.parametrize("program", CLEAN, ids=lambda program: program.name)
def test_clean_programs_have_no_finding(program: Program, tmp_path: Path) -> None:
    profile = _profile(program, tmp_path)
    assert profile["findings"] == []
    main, *others = profile["processes"]
    assert main["state"] == "finished"
    assert {process["state"] for process in others} <= {"finished", "interrupted"}
    assert any(process["operators"] for process in others)


def test_findings_of_workers_are_confirmed_by_the_run_without_the_profiler(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PLANTED[0].text)
    ran = subprocess.run(
        [sys.executable, "-m", "torchyard", "values", "--html", "waste.html", "program.py"],
        env={**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "1 finding (1 proven)" in ran.stdout
    assert "in 2 of 2 DataLoader workers (8 calls, 128 KiB each)" in ran.stdout
    assert "time not measured: a process other than the main process" in ran.stdout
    page = (tmp_path / "waste.html").read_text()
    assert "DataLoader worker 1" in page
    assert "2 DataLoader workers; totals are sums over them" in page
