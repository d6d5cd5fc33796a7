from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.builds.e2e.projects import GIT_VARIABLES, git
from tests.builds.sources.fetching import CommandFailed, Place
from torchyard.builds.plan import Command
from torchyard.builds.recipe import GitSource, SourceTable

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    git(folder, "add", "--all")
    git(folder, "commit", "-q", "-m", f"{name}: {text}")
    return git(folder, "rev-parse", "HEAD")


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    return folder


@dataclass(frozen=True)
class Upstream:
    """`top` has the submodule `third_party/ideep`, and that has `mkl-dnn`, as PyTorch does."""

    top: Path
    dnn: Path
    dnn_old: str
    dnn_new: str
    first: str
    middle: str
    last: str

    @property
    def url(self) -> str:
        return self.top.as_uri()


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GIT_VARIABLES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def single_commits_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # In the second version of git's protocol any commit can be asked for; before, only tips can.
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    monkeypatch.setenv("GIT_CONFIG_KEY_1", "protocol.version")
    monkeypatch.setenv("GIT_CONFIG_VALUE_1", "0")


def make_upstream(folder: Path) -> Upstream:
    dnn = repository(folder / "dnn")
    dnn_old = commit(dnn, "version", "3.6")
    dnn_new = commit(dnn, "version", "3.7")
    git(dnn, "tag", "-a", "v3.7", "-m", "release")
    ideep = repository(folder / "ideep")
    git(ideep, "submodule", "--quiet", "add", dnn.as_uri(), "mkl-dnn")
    git(ideep / "mkl-dnn", "checkout", "-q", dnn_old)
    commit(ideep, "version", "ideep")
    top = repository(folder / "top")
    first = commit(top, "file", "one")
    git(top, "tag", "v1.0")
    git(top, "branch", "feature/x")
    middle = commit(top, "file", "between")
    git(top, "submodule", "--quiet", "add", ideep.as_uri(), "third_party/ideep")
    last = commit(top, "file", "two")
    return Upstream(
        top=top,
        dnn=dnn,
        dnn_old=dnn_old,
        dnn_new=dnn_new,
        first=first,
        middle=middle,
        last=last,
    )


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    """For tests that only read it."""
    return make_upstream(tmp_path_factory.mktemp("upstream"))


@pytest.fixture
def moving(tmp_path: Path) -> Upstream:
    """For tests that commit to it."""
    return make_upstream(tmp_path / "upstream")


def source(upstream: Upstream, **changes: object) -> SourceTable:
    return SourceTable(git=replace(GitSource(url=upstream.url), **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("shallow", [True, False])
@pytest.mark.parametrize("ref", ["main", "v1.0", "feature/x", "refs/tags/v1.0", "COMMIT", "SHORT"])
def test_any_revision_shallow_or_not(
    upstream: Upstream, place: Place, ref: str, shallow: bool
) -> None:
    ref = {"COMMIT": upstream.middle, "SHORT": upstream.middle[:9]}.get(ref, ref)
    wanted = source(upstream, ref=ref, shallow=shallow)
    place.fetch(wanted)
    expected = {ref: upstream.middle, "main": upstream.last}
    expected |= dict.fromkeys(("v1.0", "feature/x", "refs/tags/v1.0"), upstream.first)
    identity = place.identity(wanted)
    assert identity.commit == expected[ref]
    assert identity.version == ref
    text = (place.destination / "file").read_text(encoding="utf-8")
    assert (
        text
        == {upstream.first: "one", upstream.middle: "between", upstream.last: "two"}[
            identity.commit
        ]
    )
    assert git(place.destination, "status", "--porcelain") == ""
    assert not place.part.exists()
    if shallow and ref == "main":
        assert git(place.destination, "rev-list", "--count", "HEAD") == "1"
    if not shallow and ref == "main":
        assert git(place.destination, "rev-list", "--count", "HEAD") == "3"


def test_nested_submodules_come_along_and_are_recorded(upstream: Upstream, place: Place) -> None:
    place.fetch(source(upstream))
    dnn = place.destination / "third_party" / "ideep" / "mkl-dnn"
    assert (dnn / "version").read_text(encoding="utf-8") == "3.6"
    identity = place.identity(source(upstream))
    assert identity.submodules["third_party/ideep/mkl-dnn"] == upstream.dnn_old
    assert set(identity.submodules) == {"third_party/ideep", "third_party/ideep/mkl-dnn"}


def test_without_submodules(upstream: Upstream, place: Place) -> None:
    place.fetch(source(upstream, submodules=False))
    assert list((place.destination / "third_party" / "ideep").iterdir()) == []
    assert place.identity(source(upstream, submodules=False)).submodules == {}


@pytest.mark.parametrize("shallow", [True, False])
@pytest.mark.parametrize("ref", ["v3.7", "main", "COMMIT"])
def test_one_submodule_at_another_revision(
    upstream: Upstream, place: Place, ref: str, shallow: bool
) -> None:
    ref = upstream.dnn_new if ref == "COMMIT" else ref
    path = "third_party/ideep/mkl-dnn"
    wanted = source(upstream, shallow=shallow, overrides={path: ref})
    place.fetch(wanted)
    assert (place.destination / path / "version").read_text(encoding="utf-8") == "3.7"
    identity = place.identity(wanted)
    assert identity.submodules[path] == upstream.dnn_new
    assert identity.overridden == (path,)
    assert identity.commit == upstream.last


def test_an_override_of_a_plain_folder_is_refused(upstream: Upstream, place: Place) -> None:
    with pytest.raises(CommandFailed, match=r"no submodule at third_party: correct .*overrides"):
        place.fetch(source(upstream, overrides={"third_party": "v1.0"}))
    assert not place.destination.exists()


def test_an_unknown_revision_of_a_submodule_names_its_key(upstream: Upstream, place: Place) -> None:
    with pytest.raises(CommandFailed) as caught:
        place.fetch(source(upstream, overrides={"third_party/ideep": "v9"}))
    assert 'no revision v9: correct source.git.overrides."third_party/ideep"' in str(caught.value)


def test_a_server_that_gives_no_single_commits(
    upstream: Upstream, place: Place, single_commits_refused: None
) -> None:
    said = place.fetch(source(upstream, ref=upstream.middle))
    assert any("whole history" in line for line in said)
    assert place.identity(source(upstream)).commit == upstream.middle


def test_submodules_of_a_server_that_gives_no_single_commits(
    upstream: Upstream, place: Place, single_commits_refused: None
) -> None:
    said = place.fetch(source(upstream))
    # The nested one is at a commit that is no tip of a branch any more.
    assert any("fetching them whole" in line for line in said)
    identity = place.identity(source(upstream))
    assert identity.submodules["third_party/ideep/mkl-dnn"] == upstream.dnn_old


@pytest.mark.parametrize("shallow", [True, False])
@pytest.mark.parametrize("ref", ["v9.9", "0123456789abcdef0123456789abcdef01234567"])
def test_a_revision_that_does_not_exist(
    upstream: Upstream, place: Place, ref: str, shallow: bool
) -> None:
    with pytest.raises(CommandFailed) as caught:
        place.fetch(source(upstream, ref=ref, shallow=shallow))
    assert f"the repository has no revision {ref}: correct source.git.ref" in str(caught.value)
    assert not place.destination.exists()


def test_a_repository_that_does_not_exist(tmp_path: Path, place: Place) -> None:
    nowhere = SourceTable(git=GitSource(url=(tmp_path / "nowhere").as_uri()))
    with pytest.raises(CommandFailed, match="cannot be read: see git's own message above"):
        place.fetch(nowhere)


def test_what_an_earlier_attempt_left_is_not_used(upstream: Upstream, place: Place) -> None:
    place.part.mkdir()
    (place.part / "left over").touch()
    (place.part / ".git").mkdir()
    place.fetch(source(upstream))
    assert not (place.destination / "left over").exists()


def test_a_failed_fetch_leaves_the_earlier_source(upstream: Upstream, place: Place) -> None:
    place.fetch(source(upstream))
    with pytest.raises(CommandFailed):
        place.fetch(source(upstream, ref="v9"))
    assert place.identity(source(upstream)).commit == upstream.last


def test_a_recipe_cannot_inject_shell_code(
    upstream: Upstream, place: Place, tmp_path: Path
) -> None:
    trap = tmp_path / "trapped"
    with pytest.raises(CommandFailed):
        place.fetch(source(upstream, ref=f"$(touch${{IFS}}{trap})"))
    with pytest.raises(CommandFailed):
        place.fetch(source(upstream, ref=f"';touch${{IFS}}'{trap}"))
    assert not trap.exists()


def test_git_never_waits_for_a_password(upstream: Upstream, place: Place) -> None:
    for action in place.plan(source(upstream)).actions:
        if isinstance(action, Command) and action.argv[0] in ("git", "sh"):
            assert ("GIT_TERMINAL_PROMPT", "0") in action.variables


def test_update_moves_a_branch_with_its_submodules(moving: Upstream, place: Place) -> None:
    place.fetch(source(moving))
    git(moving.top, "submodule", "--quiet", "add", moving.dnn.as_uri(), "another")
    git(moving.top, "rm", "-q", "third_party/ideep")
    tip = commit(moving.top, "file", "three")
    place.update(source(moving))
    identity = place.identity(source(moving))
    assert identity.commit == tip
    assert identity.submodules == {"another": moving.dnn_new}
    assert (place.destination / "file").read_text(encoding="utf-8") == "three"
    assert not (place.destination / "third_party").exists()
    assert git(place.destination, "status", "--porcelain") == ""
    assert not place.part.exists()


def test_update_keeps_overrides(moving: Upstream, place: Place) -> None:
    path = "third_party/ideep/mkl-dnn"
    wanted = source(moving, overrides={path: "v3.7"})
    place.fetch(wanted)
    tip = commit(moving.top, "file", "three")
    place.update(wanted)
    identity = place.identity(wanted)
    assert (identity.commit, identity.submodules[path]) == (tip, moving.dnn_new)


def test_update_at_the_tip_or_of_a_tag_does_nothing(upstream: Upstream, place: Place) -> None:
    place.fetch(source(upstream))
    before = place.destination.stat().st_ino
    assert "is at the tip" in place.update(source(upstream))[-1]
    assert "v1.0 is no branch" in place.update(source(upstream, ref="v1.0"))[-1]
    assert place.destination.stat().st_ino == before


def test_update_of_a_commit_has_no_actions(upstream: Upstream, place: Place) -> None:
    plan = place.plan_update(source(upstream, ref=upstream.first))
    assert plan.actions == ()
    assert plan.summary.startswith("nothing to update")


def test_update_that_fails_leaves_the_source_as_it_was(moving: Upstream, place: Place) -> None:
    wanted = source(moving)
    place.fetch(wanted)
    commit(moving.top, "file", "three")
    with pytest.raises(CommandFailed):
        place.update(source(moving, overrides={"third_party/ideep": "v9"}))
    assert place.identity(wanted).commit == moving.last
    assert (place.destination / "file").read_text(encoding="utf-8") == "two"
