"""The revision that a run measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.results.run_directories import compared, day, write_run
from tests.results.run_samples import STUDY
from torchyard.results.run_reader import (
    CI_VARIABLES,
    read_run,
    revision_from_ci,
    revision_of_run,
    revision_of_variant,
    target_facts,
)


@pytest.mark.parametrize("name", CI_VARIABLES)
def test_what_a_ci_job_says(name: str) -> None:
    assert revision_from_ci({name: "4f2a", "PATH": "/bin"}) == "4f2a"


def test_outside_of_a_ci_job() -> None:
    assert revision_from_ci({}) == ""
    assert revision_from_ci({"GITHUB_SHA": "", "CI_COMMIT_SHA": "b"}) == "b"
    assert revision_from_ci({"GITHUB_SHA": "a", "CI_COMMIT_SHA": "b"}) == "a"


def test_an_explicit_revision_overrides_that_of_torch(tmp_path: Path) -> None:
    said = read_run(write_run(tmp_path, day(1), [compared()], revision="v1"))
    assert revision_of_run(said.info, said.study) == "v1"
    assert said.info["revision"] == "v1"
    not_said = read_run(write_run(tmp_path, day(2), [compared()]))
    assert revision_of_run(not_said.info, not_said.study) == "ab" * 20


def test_a_torch_of_each_candidate() -> None:
    (first,) = STUDY.candidates
    second = replace(first, name="new", target=replace(first.target, name="new"))
    study = replace(STUDY, candidates=(first, second))
    info = {"targets": {"this": {"torch_git": "a"}, "new+tcmalloc": {"torch_git": "b"}}}
    assert revision_of_variant(info, first) == "a"
    assert revision_of_variant(info, second) == "b"
    assert revision_of_run(info, study) == "a, b"
    assert revision_of_run({**info, "revision": "v1"}, study) == "v1"


@pytest.mark.parametrize("info", [{}, {"targets": 3}, {"targets": {"this": 3}}, {"revision": None}])
def test_runs_without_the_information(info: dict[str, object]) -> None:
    (variant,) = STUDY.candidates
    assert target_facts(info, variant) == {}
    assert revision_of_variant(info, variant) == ""
    assert revision_of_run(info, STUDY) == ""


def test_folders_of_earlier_releases_have_neither_revision_nor_notes() -> None:
    run = read_run(Path(__file__).parent / "data" / "format-1")
    assert "revision" not in run.info
    assert revision_of_run(run.info, run.study) == ""
