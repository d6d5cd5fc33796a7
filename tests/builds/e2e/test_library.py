"""A CMake library from the command line: build, show, change, clean."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import Cli, call
from tests.builds.e2e.projects import library


class Library:
    """A finished build called `tiny`, and the words that describe it."""

    def __init__(self, cli: Cli, source: Path) -> None:
        self.cli = cli
        self.source = source
        self.words = (
            *("generic", "--name", "tiny", "--set", f"source.folder.path={source}"),
            *("--set", 'verify.files=["lib/libtiny.so", "include/tiny.h"]', "--cache", "none"),
        )
        self.folder = cli.folder("tiny")
        self.tree = self.folder / "trees" / "generic"

    def answers(self) -> tuple[int, int]:
        """What the installed library says."""
        library = self.folder / "prefix" / "lib" / "libtiny.so"
        return call(library, "tiny_one"), call(library, "tiny_two")

    def compiled(self) -> list[str]:
        """Names of objects and libraries made so far; two at once end in any order."""
        return sorted(self.cli.compiled("tiny"))


@pytest.fixture(scope="module")
def tiny(shared_cli: Cli, shared_folder: Path) -> Library:
    made = Library(shared_cli, library(shared_folder / "source"))
    ended = shared_cli.build(*made.words)
    assert "tiny: built in " in ended.out
    assert "(7 steps run, 0 up to date)" in ended.out
    assert "generic/configure: configure with CMake" in ended.err
    assert made.answers() == (1, 2)
    return made


def test_a_second_run_does_nothing_and_says_so(tiny: Library) -> None:
    before = tiny.compiled()
    ended = tiny.cli.build(*tiny.words)
    assert ended.out.startswith("tiny: nothing to do, all 7 steps are up to date\n")
    assert ended.err == ""
    assert tiny.compiled() == before == ["libtiny.so", "one.c.o", "two.c.o"]


def test_json_of_a_run(tiny: Library) -> None:
    document = tiny.cli.build(*tiny.words, "--json").json()
    assert document["schema"] == 1
    assert (document["ran"], len(document["skipped"])) == ([], 7)
    assert document["folder"] == str(tiny.folder)


def test_the_plan_shows_the_commands_and_does_nothing(tiny: Library) -> None:
    states = {path: path.stat().st_mtime_ns for path in (tiny.folder / "steps").iterdir()}
    text = tiny.cli.build(*tiny.words, "--set", "LOUD=true", "--plan").out
    assert "cmake -S " in text
    assert "-DLOUD=ON" in text
    assert f"cmake --build {tiny.tree}/build" in text
    assert "7, of which 3 are done" in text
    states_now = {path: path.stat().st_mtime_ns for path in (tiny.folder / "steps").iterdir()}
    assert states_now == states


def test_the_plan_as_json(tiny: Library) -> None:
    for words in (("--format", "json"), ("--json",)):
        document = json.loads(tiny.cli.build(*tiny.words, "--plan", *words).out)
        steps = document["plan"]["steps"]
        assert [step["name"] for step in steps][-2:] == ["generic/install", "generic/verify"]


def test_the_plan_as_a_script_builds_the_same(tiny: Library, tmp_path: Path) -> None:
    other = Cli(home=tmp_path / "by-hand")
    script = tmp_path / "build.sh"
    words = (*tiny.words, "--plan", "--format", "script", "--output", str(script))
    assert f"wrote {script}" in other.build(*words).err
    subprocess.run(["sh", str(script)], check=True, capture_output=True, cwd="/")
    made = other.folder("tiny") / "prefix" / "lib" / "libtiny.so"
    assert call(made, "tiny_two") == 2


def test_another_option_configures_and_compiles_again(tiny: Library) -> None:
    louder = (*tiny.words, "--set", "LOUD=true")
    document = tiny.cli.build(*louder, "--json").json()
    assert document["ran"] == [
        *("generic/configure", "generic/build", "generic/install", "generic/verify")
    ]
    assert tiny.answers() == (1, 200)
    (part,) = tiny.cli.record("tiny")["components"]
    verdicts = {one["name"]: one["verdict"] for one in part["verified"]["options"]}
    assert verdicts["LOUD"] == "honoured"
    tiny.cli.build(*tiny.words)
    assert tiny.answers() == (1, 2)


def test_only_one_step(tiny: Library) -> None:
    (tiny.folder / "prefix" / "lib" / "libtiny.so").unlink()
    document = tiny.cli.build(*tiny.words, "--only", "install", "--json").json()
    assert document["ran"] == ["generic/install"]
    assert tiny.answers() == (1, 2)


def test_the_summary_of_single_steps_names_them(tiny: Library) -> None:
    ended = tiny.cli.build(*tiny.words, "--only", "install")
    assert ended.out.startswith("tiny: ran generic/install in ")
    assert "built in" not in ended.out


def test_only_an_unknown_step(tiny: Library) -> None:
    ended = tiny.cli.build(*tiny.words, "--only", "instal", code=2)
    assert "--only: there is no step 'instal'" in ended.err
    assert "hint: " in ended.err


def test_from_a_step_on(tiny: Library) -> None:
    document = tiny.cli.build(*tiny.words, "--from", "generic/install", "--json").json()
    assert document["ran"] == ["generic/install", "generic/verify"]


def test_force_runs_every_step(tiny: Library) -> None:
    document = tiny.cli.build(*tiny.words, "--force", "--json", "--no-doctor").json()
    assert len(document["ran"]) == 7
    assert tiny.answers() == (1, 2)


def test_rebuild_compiles_only_what_was_edited(tiny: Library) -> None:
    before = tiny.cli.compiled("tiny")
    time.sleep(1.1)  # CMake installs nothing over a file that is less than a second older
    source = tiny.tree / "two.c"
    source.write_text(source.read_text().replace("2 * FACTOR", "22 * FACTOR"))
    ended = tiny.cli.build("rebuild", "tiny")
    assert "tiny: built in " in ended.out
    assert tiny.cli.compiled("tiny")[len(before) :] == ["two.c.o", "libtiny.so"]
    assert tiny.answers() == (1, 22)
    assert "edited" in tiny.cli.build("show", "tiny").out
    refused = tiny.cli.build("update", "tiny", code=4)
    assert "has edits: two.c" in refused.err
    after = tiny.cli.build(*tiny.words)
    assert "nothing to do" in after.out, "an edit in the working copy is not the plan's business"
    tiny.cli.build(*tiny.words, "--from", "tree")
    assert tiny.answers() == (1, 2)


def test_update_brings_what_the_folder_holds_now(tiny: Library) -> None:
    before = len(tiny.cli.compiled("tiny"))
    source = tiny.source / "two.c"
    text = source.read_text()
    source.write_text(text.replace("2 * FACTOR", "222 * FACTOR"))
    tiny.cli.build("update", "tiny")
    assert tiny.answers() == (1, 222)
    assert tiny.cli.compiled("tiny")[before:] == ["two.c.o", "libtiny.so"]
    assert "nothing to do" in tiny.cli.build(*tiny.words).out
    source.write_text(text)
    tiny.cli.build(*tiny.words)
    assert tiny.answers() == (1, 2), "a changed folder is seen by a plain build, too"


def test_clean_objects(tiny: Library) -> None:
    ended = tiny.cli.build("clean", "tiny")
    assert f"removed {tiny.tree}/build" in ended.out
    assert (tiny.tree / "one.c").exists()
    document = tiny.cli.build(*tiny.words, "--json").json()
    assert "generic/build" in document["ran"]
    assert "generic/tree" not in document["ran"]
    assert tiny.compiled() == ["libtiny.so", "one.c.o", "two.c.o"]


def test_clean_tree_removes_what_was_generated_into_it(tiny: Library) -> None:
    (tiny.tree / "generated.c").write_text("nonsense")
    document = tiny.cli.build("clean", "tiny", "--level", "tree", "--json").json()
    assert str(tiny.tree) in document["removed"]
    assert not tiny.tree.exists()
    tiny.cli.build(*tiny.words)
    assert not (tiny.tree / "generated.c").exists()
    assert tiny.answers() == (1, 2)


def test_clean_of_an_unknown_component_or_build(tiny: Library) -> None:
    ended = tiny.cli.build("clean", "tiny", "--component", "genric", code=2)
    assert "tiny has no component 'genric'" in ended.err
    assert "did you mean 'generic'?" in ended.err
    ended = tiny.cli.build("clean", "tinyy", code=2)
    assert "there is no build 'tinyy'" in ended.err
    assert "did you mean 'tiny'?" in ended.err


def test_list_and_show(tiny: Library) -> None:
    assert tiny.cli.build("list").out.startswith("tiny ")
    rows = tiny.cli.build("list", "--json").json()["builds"]
    assert [(row["name"], row["folder"]) for row in rows] == [("tiny", str(tiny.folder))]
    shown = tiny.cli.build("show", "tiny").out
    for words in ("source     folder", "tools      cc ", "generic/build", " compiles, "):
        assert words in shown
    record = tiny.cli.build("show", "tiny", "--json").json()["record"]
    assert record["components"][0]["prefix_files"] == ["include/tiny.h", "lib/libtiny.so"]
    assert record["recipe"]["name"] == "generic"


@pytest.mark.parametrize(("form", "mark"), [("cyclonedx", '"bomFormat"'), ("spdx", "SPDX-2.")])
def test_the_bill_of_materials(tiny: Library, tmp_path: Path, form: str, mark: str) -> None:
    pytest.importorskip("cyclonedx" if form == "cyclonedx" else "spdx_tools")
    path = tmp_path / "bill.json"
    tiny.cli.build("sbom", "tiny", "--format", form, "--output", str(path))
    assert mark in path.read_text()
    assert "tiny" in path.read_text()


def test_what_needs_a_finished_build_says_so(tiny: Library) -> None:
    for command in ("show", "lock", "sbom"):
        ended = tiny.cli.build(command, "tinyy", code=2)
        assert "there is no build 'tinyy'" in ended.err
        assert "did you mean 'tiny'?" in ended.err
