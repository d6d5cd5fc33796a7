"""Updates as plans: what is fetched, what is brought over, what counts as own work."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from torchyard.builds.build_folders import BuildFolder, YardHome
from torchyard.builds.plan import Command, Plan, fingerprints
from torchyard.builds.planner import make_plan
from torchyard.builds.recipe_file import BuildRequest
from torchyard.builds.running.existing_build import local_changes, make_update_plan, mark_updated
from torchyard.builds.running.runner import StepState, read_state, unfinished_steps, write_state

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


class Desk:
    """A build whose steps are all done, of a folder or of a git branch."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self.home = YardHome(folder=folder / "home")
        self.recipe = folder / "mine.toml"
        self.recipe.write_text(f"{source}\n[environment]\nuse = 'current'\n")
        plan = self.plan()
        prints = fingerprints(plan)
        places = BuildFolder(folder=Path(plan.folder))
        for step in plan.steps:
            state = StepState(
                step=step.name, fingerprint=prints[step.name], status="done", started_at=1.0
            )
            write_state(places.state(step.name), state)
            for path in step.creates:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
        (part,) = plan.components
        self.source, self.tree = Path(part.source), Path(part.tree)
        self.places = places

    def plan(self) -> Plan:
        request = BuildRequest(recipe=str(self.recipe))
        return make_plan(request, home=self.home, name="it", environ={"PATH": "/usr/bin:/bin"})

    def updates(self) -> Plan | None:
        plan = self.plan()
        return make_update_plan(plan, plan.components, self.home)

    def work(self) -> str:
        return local_changes(self.plan().components[0])


@pytest.fixture
def folder_desk(tmp_path: Path) -> Desk:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "a.c").write_text("1")
    desk = Desk(tmp_path, f"[source.folder]\npath = '{origin}'")
    for place in (desk.source, desk.tree):
        subprocess.run(["cp", "-a", "-T", str(origin), str(place)], check=True)
    return desk


def git(place: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", "-C", str(place), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def git_desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path, "[source.git]\nurl = 'https://example.org/x'\nref = 'main'")
    desk.source.mkdir(parents=True)
    git(desk.source, "init", "-q", "-b", "main")
    (desk.source / "a.c").write_text("1\n")
    git(desk.source, "add", "a.c")
    git(desk.source, "commit", "-q", "-m", "first")
    # As after a fetch: the reflog of a checkout knows of no commit that was made there.
    shutil.rmtree(desk.source / ".git" / "logs")
    subprocess.run(["cp", "-a", "-T", str(desk.source), str(desk.tree)], check=True)
    return desk


def test_a_pinned_source_cannot_move(tmp_path: Path) -> None:
    source = f"[source.tarball]\nurl = 'https://example.org/x.tgz'\nsha256 = '{'0' * 64}'"
    assert Desk(tmp_path, source).updates() is None


def test_fetching_has_the_network_and_the_working_copy_has_none(folder_desk: Desk) -> None:
    updates = folder_desk.updates()
    assert updates is not None
    fetch, copy = updates.steps
    assert (fetch.name, fetch.network) == ("mine/update", True)
    assert (copy.name, copy.network) == ("mine/update-tree", False)
    assert copy.needs == ("mine/update",)
    last = copy.actions[-1]
    assert isinstance(last, Command)
    assert not last.inside_root
    assert "sync" in last.argv
    assert str(folder_desk.tree) in last.argv


def test_without_a_working_copy_only_the_source_is_fetched(folder_desk: Desk) -> None:
    shutil.rmtree(folder_desk.tree)
    updates = folder_desk.updates()
    assert updates is not None
    assert [step.name for step in updates.steps] == ["mine/update"]
    mark_updated(folder_desk.plan(), updates)
    assert "mine/tree" in unfinished_steps(folder_desk.plan(), folder_desk.places)


@needs_git
def test_a_source_that_is_gone_is_fetched_anew(git_desk: Desk) -> None:
    shutil.rmtree(git_desk.source)
    updates = git_desk.updates()
    assert updates is not None
    lines = [
        " ".join(action.argv) for action in updates.steps[0].actions if isinstance(action, Command)
    ]
    assert any("remote add" in line for line in lines)


def test_afterwards_the_source_and_the_copy_count_as_what_the_plan_wants(folder_desk: Desk) -> None:
    (folder_desk.folder / "origin" / "b.c").write_text("2")  # so the folder's digest is another
    updates = folder_desk.updates()
    assert updates is not None
    folder_desk.places.edited("mine").parent.mkdir(parents=True, exist_ok=True)
    folder_desk.places.edited("mine").touch()
    assert "mine/fetch" in unfinished_steps(folder_desk.plan(), folder_desk.places)
    mark_updated(folder_desk.plan(), updates)
    left = unfinished_steps(folder_desk.plan(), folder_desk.places)
    assert "mine/fetch" not in left
    assert "mine/tree" not in left
    assert "mine/configure" in left, "what was built was built of another source"
    assert not folder_desk.places.edited("mine").exists()
    state = read_state(folder_desk.places.state("mine/tree"))
    assert state is not None
    assert state.status == "done"


def test_edits_of_a_copied_folder(folder_desk: Desk) -> None:
    assert folder_desk.work() == ""
    (folder_desk.tree / "built.o").touch()
    assert folder_desk.work() == ""
    (folder_desk.tree / "a.c").write_text("mine")
    assert folder_desk.work() == f"{folder_desk.tree} has edits: a.c"


@needs_git
def test_edits_and_commits_of_a_checkout(git_desk: Desk) -> None:
    assert git_desk.work() == ""
    (git_desk.tree / "a.c").write_text("mine\n")
    assert "has edits: M a.c" in git_desk.work()
    git(git_desk.tree, "commit", "-q", "-a", "-m", "my own")
    assert "has commits that are not in its source: commit: my own" in git_desk.work()


@needs_git
def test_a_source_that_moved_on_is_no_own_work(git_desk: Desk) -> None:
    (git_desk.source / "a.c").write_text("2\n")
    git(git_desk.source, "commit", "-q", "-a", "-m", "theirs")
    assert git_desk.work() == ""


@needs_git
def test_with_patches_only_commits_are_seen(git_desk: Desk) -> None:
    (git_desk.folder / "x.patch").write_text("")
    git_desk.recipe.write_text(f"patches = ['x.patch']\n{git_desk.recipe.read_text()}")
    (git_desk.tree / "a.c").write_text("patched\n")
    assert git_desk.work() == ""
