"""Sources from the command line: moving branches, lock files, archives."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import Cli, call, wait_until
from tests.builds.e2e.projects import commit, git, library, repository, write
from tests.builds.sources.file_server import Reply, served

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

PATCH = """\
--- a/one.c
+++ b/one.c
@@ -1,2 +1,2 @@
 #include "tiny.h"
-int tiny_one(void) { return 1; }
+int tiny_one(void) { return 11; }
"""
RECIPE = """\
name = "moving"
builder = "cmake"
patches = ["loud.patch"]

[source.git]
url = "{url}"
ref = "main"

[environment]
use = "current"

[[prepare]]
run = ["sh", "-c", "sed -i 's/2 \\\\* FACTOR/3 * FACTOR/' two.c; echo generated > generated.h"]

[verify]
files = ["lib/libtiny.so"]
"""
ALWAYS = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "protocol.file.allow"}


class Moving:
    """A build of the tip of a branch, with a patch and a prepare command."""

    def __init__(self, folder: Path) -> None:
        self.cli = Cli(home=folder / "home", variables={**ALWAYS, "GIT_CONFIG_VALUE_0": "always"})
        self.origin = library(folder / "origin")
        url = repository(self.origin)
        recipe = write(
            folder / "recipe", {"moving.toml": RECIPE.format(url=url), "loud.patch": PATCH}
        )
        self.words = (str(recipe / "moving.toml"), "--name", "moving", "--cache", "none")
        self.tree = self.cli.folder("moving") / "trees" / "moving"

    def answers(self, build: str = "moving") -> tuple[int, int]:
        made = self.cli.folder(build) / "prefix" / "lib" / "libtiny.so"
        return call(made, "tiny_one"), call(made, "tiny_two")

    def compiled(self) -> list[str]:
        return self.cli.compiled("moving", "moving")

    def recorded_commit(self, build: str = "moving") -> str:
        return str(self.cli.record(build)["components"][0]["source"]["commit"])

    def change(self, old: str, new: str, message: str) -> str:
        text = (self.origin / "two.c").read_text()
        assert old in text
        (self.origin / "two.c").write_text(text.replace(old, new))
        return commit(self.origin, message)


@pytest.fixture
def moving(tmp_path: Path) -> Moving:
    made = Moving(tmp_path)
    made.cli.build(*made.words)
    assert made.answers() == (11, 3), "patch and prepare command took effect"
    assert made.recorded_commit() == git(made.origin, "rev-parse", "HEAD")
    return made


@needs_git
def test_update_moves_to_the_tip_with_patches_and_preparation(moving: Moving) -> None:
    before = len(moving.compiled())
    tip = moving.change("FACTOR 1", "FACTOR 10", "ten times")
    assert "nothing to do" in moving.cli.build(*moving.words).out, "a branch moves by update only"
    moving.cli.build("update", "moving")
    assert moving.answers() == (11, 30)
    assert moving.recorded_commit() == tip
    assert git(moving.tree, "rev-parse", "HEAD") == tip
    assert moving.compiled()[before:] == ["two.c.o", "libtiny.so"]
    assert "nothing to do" in moving.cli.build(*moving.words).out
    # A file that the branch no longer has goes, and what the preparation made stays.
    (moving.origin / "unused.txt").write_text("x")
    commit(moving.origin, "with a file")
    moving.cli.build("update", "moving")
    assert (moving.tree / "unused.txt").exists()
    (moving.origin / "unused.txt").unlink()
    commit(moving.origin, "without it")
    # Another build brings the shared source there first.
    moving.cli.build(moving.words[0], "--name", "newest", "--cache", "none", "--only", "fetch")
    moving.cli.build("update", "moving")
    assert not (moving.tree / "unused.txt").exists()
    assert (moving.tree / "generated.h").exists()
    assert moving.compiled()[before:] == ["two.c.o", "libtiny.so"]


@needs_git
def test_update_of_what_is_at_the_tip_compiles_nothing(moving: Moving) -> None:
    before = moving.compiled()
    moving.cli.build("update", "moving")
    assert moving.compiled() == before
    assert moving.answers() == (11, 3)


@needs_git
def test_a_lock_builds_the_locked_commit_after_the_branch_moved(
    moving: Moving, tmp_path: Path
) -> None:
    first = moving.recorded_commit()
    lock = tmp_path / "moving.lock.toml"
    assert f"wrote {lock}" in moving.cli.build("lock", "moving", "--output", str(lock)).err
    assert first in lock.read_text()
    moving.change("FACTOR 1", "FACTOR 10", "ten times")
    moving.cli.build(moving.words[0], "--name", "newest", "--cache", "none")
    assert moving.answers("newest") == (11, 30)
    words = (moving.words[0], "--cache", "none", "--locked", str(lock))
    moving.cli.build(*words, "--name", "again")
    assert moving.answers("again") == (11, 3)
    assert moving.recorded_commit("again") == first
    ended = moving.cli.build(*words, "--name", "again", "--set", "LOUD=true", code=2)
    assert "options.LOUD differs from the lock file" in ended.err


@needs_git
@pytest.mark.slow
def test_commands_on_a_locked_build_use_its_lock_until_it_is_updated(
    moving: Moving, tmp_path: Path
) -> None:
    first = moving.recorded_commit()
    lock = tmp_path / "moving.lock.toml"
    moving.cli.build("lock", "moving", "--output", str(lock))
    moving.change("FACTOR 1", "FACTOR 10", "ten times")
    words = (moving.words[0], "--cache", "none", "--locked", str(lock))
    moving.cli.build(*words, "--name", "again")
    edited = moving.cli.folder("again") / "trees" / "moving" / "one.c"
    edited.write_text(edited.read_text().replace("11", "12"))
    moving.cli.build("rebuild", "again")
    assert moving.answers("again") == (12, 3)
    assert moving.recorded_commit("again") == first
    assert "generic" not in moving.cli.build("clean", "again").out
    moving.cli.build(*words, "--name", "again")
    assert moving.answers("again") == (12, 3)
    moving.cli.build("update", "again")
    assert moving.answers("again") == (11, 30)


@needs_git
@pytest.mark.slow
def test_update_does_not_throw_own_commits_away(moving: Moving) -> None:
    # Another build moves the shared source on; that alone is no own work.
    moving.change("FACTOR 1", "FACTOR 10", "ten times")
    moving.cli.build(moving.words[0], "--name", "newest", "--cache", "none", "--only", "fetch")
    own = moving.tree / "two.c"
    own.write_text(own.read_text() + "/* mine */\n")
    commit(moving.tree, "mine")
    ended = moving.cli.build("update", "moving", code=4)
    assert "would discard local work" in ended.err
    assert "commit: mine" in ended.err
    assert "/* mine */" in own.read_text()
    moving.cli.build("update", "moving", "--discard")
    assert "/* mine */" not in own.read_text()
    assert moving.answers() == (11, 30)
    moving.change("FACTOR 10", "FACTOR 100", "a hundred times")
    moving.cli.build(moving.words[0], "--name", "newest", "--cache", "none", "--only", "fetch")
    moving.cli.build("update", "moving")
    assert moving.answers() == (11, 300)


@needs_git
@pytest.mark.slow
def test_the_record_names_what_was_compiled_and_not_where_the_source_is_now(
    moving: Moving,
) -> None:
    first = moving.recorded_commit()
    moving.change("FACTOR 1", "FACTOR 10", "ten times")
    moving.cli.build(moving.words[0], "--name", "newest", "--cache", "none", "--only", "fetch")
    moving.cli.build("rebuild", "moving")
    assert moving.recorded_commit() == first


def test_a_build_waits_for_another_one_that_copies_the_same_source(
    cli: Cli, tmp_path: Path
) -> None:
    source = library(tmp_path / "source")
    hold, held = tmp_path / "hold", tmp_path / "held"
    hold.touch()
    recipe = tmp_path / "shared.toml"
    recipe.write_text(
        f'[source.folder]\npath = "{source}"\n[environment]\nuse = "current"\n'
        f"[[prepare]]\nrun = ['sh', '-c', 'touch {held}; while [ -e {hold} ]; do sleep 0.1; done']\n"
    )
    words = (str(recipe), "--cache", "none", "--no-doctor")
    first = cli.start(*words, "--name", "first")
    wait_until(held.exists, "the first one copies")
    said = tmp_path / "second.txt"
    with said.open("w") as file:
        second = subprocess.Popen(
            cli.argv("build", *words, "--name", "second"),
            env=cli.environment(),
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "waiting" in said.read_text(), "the second one waits")
        assert "shared/fetch: waiting for another build that uses " in said.read_text()
    finally:
        hold.unlink()
        codes = (first.wait(), second.wait())
    assert codes == (0, 0), said.read_text()
    for name in ("first", "second"):
        assert call(cli.folder(name) / "prefix/lib/libtiny.so", "tiny_two") == 2


def archive(folder: Path, source: Path) -> tuple[Path, str]:
    """A tarball of a folder, and its checksum."""
    path = folder / "tiny-1.0.tar.gz"
    subprocess.run(["tar", "-C", str(source.parent), "-czf", str(path), source.name], check=True)
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def fetched(cli: Cli) -> list[str]:
    """Names of sources that count as fetched."""
    names = (item.name for item in (cli.home / "sources").iterdir())
    return [name for name in names if not name.endswith((".part", ".lock"))]


def tarball_words(url: str, sha256: str) -> tuple[str, ...]:
    return (
        *("generic", "--name", "tiny", "--cache", "none", "--no-doctor"),
        *("--set", f"source.tarball.url={url}", "--set", f"source.tarball.sha256={sha256}"),
    )


def test_a_wrong_checksum_names_both_and_leaves_nothing(cli: Cli, tmp_path: Path) -> None:
    path, sha256 = archive(tmp_path, library(tmp_path / "tiny"))
    wrong = "0" * 64
    ended = cli.build(*tarball_words(path.as_uri(), wrong), code=5)
    assert path.name in ended.err
    assert wrong in ended.err
    assert sha256 in ended.err
    left = [item for item in (cli.home / "downloads").rglob("*.tar.gz*") if item.is_file()]
    assert not [item for item in left if item.stat().st_size]
    assert fetched(cli) == []
    # The right checksum, and nothing of the first attempt is in the way.
    cli.build(*tarball_words(path.as_uri(), sha256))
    assert call(cli.folder("tiny") / "prefix" / "lib" / "libtiny.so", "tiny_two") == 2
    assert cli.record("tiny")["components"][0]["source"]["sha256"] == sha256


def test_a_damaged_archive_of_the_right_checksum_is_not_half_unpacked(
    cli: Cli, tmp_path: Path
) -> None:
    path, _ = archive(tmp_path, library(tmp_path / "tiny"))
    path.write_bytes(path.read_bytes()[:-40])
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    ended = cli.build(*tarball_words(path.as_uri(), sha256), code=5)
    assert "generic/fetch failed" in ended.err
    assert fetched(cli) == []
    ended = cli.build(*tarball_words(path.as_uri(), sha256), code=5)
    assert "generic/fetch failed" in ended.err


def test_a_partial_download_is_never_used_and_is_resumed(tmp_path: Path) -> None:
    path, sha256 = archive(tmp_path, library(tmp_path / "tiny"))
    whole = path.read_bytes()
    variables = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1", "NETRC": "/nonexistent"}
    cli = Cli(home=tmp_path / "home", variables=variables)
    with served() as server:
        # Truncated in each of the attempts of one run, with a little more in each.
        server.replies["/tiny.tar.gz"] = Reply(body=whole, tag='"1"', cuts=[100, 10, 10, 10])
        words = tarball_words(f"{server.address}/tiny.tar.gz", sha256)
        ended = cli.build(*words, code=5)
        assert "is incomplete" in ended.err
        kept = [item for item in (cli.home / "downloads").rglob("*") if item.is_file()]
        assert not [item for item in kept if item.name.endswith(".tar.gz")]
        assert [item.stat().st_size for item in kept if item.name.endswith(".part")] == [130]
        cli.build(*words)
        assert server.asked("/tiny.tar.gz")[-1]["range"] == "bytes=130-"
    assert call(cli.folder("tiny") / "prefix/lib/libtiny.so", "tiny_two") == 2
