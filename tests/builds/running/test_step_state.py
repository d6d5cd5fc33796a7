"""States of steps on disk: atomic writes, freshness, and `touch`."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import shell, step
from torchyard.builds.running.runner import (
    StepState,
    StepStatus,
    is_fresh,
    read_state,
    touch,
    write_state,
)
from torchyard.errors import NotAllowed

STATE = StepState(
    step="part/one",
    fingerprint="abc",
    status="done",
    started_at=100.5,
    first_started_at=90.0,
    wall_s=3.0,
    earlier_s=2.0,
    exit_code=0,
    detail="well",
)


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "one.json"
    write_state(path, STATE)
    assert read_state(path) == STATE
    write_state(path, replace(STATE, status="failed", detail="a\tb\n\x00\ud800"))
    read = read_state(path)
    assert read is not None
    assert (read.status, read.detail) == ("failed", "a\tb\n\x00\ud800")
    assert [item.name for item in path.parent.iterdir()] == ["one.json"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"step": "x"}', '{"step": 1, "fingerprint": []}', "\x00"]
)
def test_a_damaged_state_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(text)
    assert read_state(path) is None


def test_no_state_is_none(tmp_path: Path) -> None:
    assert read_state(tmp_path / "none.json") is None
    assert read_state(tmp_path) is None


def test_a_state_of_a_newer_torchyard_is_read(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    write_state(path, STATE)
    path.write_text(path.read_text().replace('"step"', '"of_tomorrow": 1, "step"', 1))
    assert read_state(path) == STATE


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(NotAllowed):
        write_state(tmp_path / "deep" / "one.json", STATE)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    from torchyard.errors import TorchyardError

    (tmp_path / "steps").write_text("in the way")
    with pytest.raises(TorchyardError, match="cannot write"):
        write_state(tmp_path / "steps" / "one.json", STATE)


@pytest.mark.parametrize(
    ("status", "fingerprint", "fresh"),
    [
        ("done", "abc", True),
        ("done", "other", False),
        ("running", "abc", False),
        ("failed", "abc", False),
        ("interrupted", "abc", False),
    ],
)
def test_fresh_is_done_with_the_same_fingerprint(
    status: StepStatus, fingerprint: str, fresh: bool
) -> None:
    state = replace(STATE, status=status)
    assert is_fresh(step("one", shell("true")), state, fingerprint) is fresh
    assert not is_fresh(step("one", shell("true")), None, fingerprint)


def test_output_must_exist_unless_it_may_be_removed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    kept = step("one", shell("true"), creates=(str(made),))
    assert not is_fresh(kept, STATE, "abc")
    assert is_fresh(replace(kept, kept=False), STATE, "abc")
    made.touch()
    assert is_fresh(kept, STATE, "abc")


def test_touch_takes_over_what_is_there(tmp_path: Path) -> None:
    made, path = tmp_path / "made", tmp_path / "one.json"
    item = step("one", shell("true"), creates=(str(made),))
    assert not touch(item, path, "new"), "no state"
    write_state(path, STATE)
    assert not touch(item, path, "new"), "what it made is gone"
    made.touch()
    assert touch(item, path, "new")
    assert is_fresh(item, read_state(path), "new")
    assert not touch(item, path, "new"), "it is the same already"


def test_touch_does_not_finish_an_interrupted_step(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    write_state(path, replace(STATE, status="running"))
    item = step("one", shell("true"))
    assert touch(item, path, "new")
    state = read_state(path)
    assert state is not None
    assert (state.status, state.fingerprint, state.earlier_s) == ("running", "new", 2.0)
    assert not is_fresh(item, state, "new")
