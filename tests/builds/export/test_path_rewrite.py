"""Paths that move: whole ones only, in every form, however deep they are."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.builds.export.sample_plans import hand_plan
from torchyard.builds.export.image import PathRewrite
from torchyard.builds.plan import Command, WriteFile

MOVE = PathRewrite(
    {
        "/yard/builds/one": "/opt/one",
        "/yard/sources": "/opt/one/sources",
        "/it's here": "/opt/one/local",
    }
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/yard/builds/one", "/opt/one"),
        ("/yard/builds/one/env", "/opt/one/env"),
        ("-I/yard/builds/one/include", "-I/opt/one/include"),
        ("-DX=/yard/builds/one;/yard/sources/a", "-DX=/opt/one;/opt/one/sources/a"),
        (
            "/yard/builds/one/bin:/usr/bin:/yard/builds/one/lib",
            "/opt/one/bin:/usr/bin:/opt/one/lib",
        ),
        ("see /yard/builds/one.", "see /opt/one."),
        ("file:///yard/builds/one/x%20y", "file:///opt/one/x%20y"),
        ("cp '/yard/sources/a b' x", "cp '/opt/one/sources/a b' x"),
        # other folders whose names only begin the same
        ("/yard/builds/one-more", "/yard/builds/one-more"),
        ("/yard/builds/one.old", "/yard/builds/one.old"),
        ("/yard/builds/one2", "/yard/builds/one2"),
        ("/yard/builds", "/yard/builds"),
    ],
)
def test_paths_inside_texts(before: str, after: str) -> None:
    assert MOVE.text(before) == after


def test_a_path_with_a_quote_is_found_plain_quoted_and_as_an_address() -> None:
    assert MOVE.text("/it's here/x") == "/opt/one/local/x"
    assert MOVE.text(Path("/it's here/x").as_uri()) == "file:///opt/one/local/x"
    script = "cp " + shlex.quote("/it's here/x") + " y"
    assert shlex.split(MOVE.text(script)) == ["cp", "/opt/one/local/x", "y"]


def test_the_longer_of_two_folders_counts() -> None:
    move = PathRewrite({"/a": "/short", "/a/b": "/long"})
    assert move.text("/a/b/c /a/c") == "/long/c /short/c"


def test_a_whole_plan_moves() -> None:
    folder = "/yard/builds/one"
    plan = hand_plan(
        Command(argv=("ls", f"{folder}/x"), folder=f"{folder}/y"),
        WriteFile(path=f"{folder}/z", text=f"in {folder}\n"),
        folder=folder,
        variables=(("PATH", f"{folder}/env/bin:/bin"),),
        creates=(f"{folder}/z",),
    )
    moved = MOVE.apply(plan)
    assert folder not in repr(moved)
    assert moved.folder == "/opt/one"
    (step,) = moved.steps
    assert step.actions[0] == Command(argv=("ls", "/opt/one/x"), folder="/opt/one/y")
    assert step.actions[1] == WriteFile(path="/opt/one/z", text="in /opt/one\n")
    assert moved.components[0].source == "/opt/one/sources/thing-1.0"
    assert plan.folder == folder, "the plan itself stays"
