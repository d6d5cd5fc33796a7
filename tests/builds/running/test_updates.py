"""Plans of updates: what is fetched, what is copied, and which edits count as local work."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from torchyard.builds.build_folders import BuildFolder, BuildsDirectory
from torchyard.builds.plan import Command, Plan, fingerprints
from torchyard.builds.planner import make_plan
from torchyard.builds.recipe_file import BuildRequest
from torchyard.builds.running.existing_build import local_changes, make_update_plan, mark_updated
from torchyard.builds.running.runner import StepState, read_state, unfinished_steps, write_state

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


class Workspace:
    """A build whose steps are all done, of a folder or of a git branch."""

    def __init__(self, folder: Path, source: str) -> None:
        self.folder = folder
        self.home = BuildsDirectory(folder=folder / "home")
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
def folder_workspace(tmp_path: Path) -> Workspace:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "a.c").write_text("1")
    workspace = Workspace(tmp_path, f"[source.folder]\npath = '{origin}'")
    for place in (workspace.source, workspace.tree):
        subprocess.run(["cp", "-a", "-T", str(origin), str(place)], check=True)
    return workspace


def git(place: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", "-C", str(place), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def git_workspace(tmp_path: Path) -> Workspace:
    workspace = Workspace(tmp_path, "[source.git]\nurl = 'https://example.org/x'\nref = 'main'")
    workspace.source.mkdir(parents=True)
    git(workspace.source, "init", "-q", "-b", "main")
    (workspace.source / "a.c").write_text("1\n")
    git(workspace.source, "add", "a.c")
    git(workspace.source, "commit", "-q", "-m", "first")
    # As after a fetch: the reflog of a checkout knows of no commit that was made there.
    shutil.rmtree(workspace.source / ".git" / "logs")
    subprocess.run(["cp", "-a", "-T", str(workspace.source), str(workspace.tree)], check=True)
    return workspace


def test_a_pinned_source_cannot_move(tmp_path: Path) -> None:
    source = f"[source.tarball]\nurl = 'https://example.org/x.tgz'\nsha256 = '{'0' * 64}'"
    assert Workspace(tmp_path, source).updates() is None


def test_fetching_has_the_network_and_the_working_copy_has_none(
    folder_workspace: Workspace,
) -> None:
    updates = folder_workspace.updates()
    assert updates is not None
    fetch, copy = updates.steps
    assert (fetch.name, fetch.network) == ("mine/update", True)
    assert (copy.name, copy.network) == ("mine/update-tree", False)
    assert copy.needs == ("mine/update",)
    last = copy.actions[-1]
    assert isinstance(last, Command)
    assert not last.inside_root
    assert "sync" in last.argv
    assert str(folder_workspace.tree) in last.argv


def test_without_a_working_copy_only_the_source_is_fetched(folder_workspace: Workspace) -> None:
    shutil.rmtree(folder_workspace.tree)
    updates = folder_workspace.updates()
    assert updates is not None
    assert [step.name for step in updates.steps] == ["mine/update"]
    mark_updated(folder_workspace.plan(), updates)
    assert "mine/tree" in unfinished_steps(folder_workspace.plan(), folder_workspace.places)


@needs_git
def test_a_source_that_is_gone_is_fetched_again(git_workspace: Workspace) -> None:
    shutil.rmtree(git_workspace.source)
    updates = git_workspace.updates()
    assert updates is not None
    lines = [
        " ".join(action.argv) for action in updates.steps[0].actions if isinstance(action, Command)
    ]
    assert any("remote add" in line for line in lines)


def test_updated_steps_are_up_to_date(folder_workspace: Workspace) -> None:
    (folder_workspace.folder / "origin" / "b.c").write_text(
        "2"
    )  # so the folder's digest is another
    updates = folder_workspace.updates()
    assert updates is not None
    folder_workspace.places.edited("mine").parent.mkdir(parents=True, exist_ok=True)
    folder_workspace.places.edited("mine").touch()
    assert "mine/fetch" in unfinished_steps(folder_workspace.plan(), folder_workspace.places)
    mark_updated(folder_workspace.plan(), updates)
    left = unfinished_steps(folder_workspace.plan(), folder_workspace.places)
    assert "mine/fetch" not in left
    assert "mine/tree" not in left
    assert "mine/configure" in left, "what was built was built of another source"
    assert not folder_workspace.places.edited("mine").exists()
    state = read_state(folder_workspace.places.state("mine/tree"))
    assert state is not None
    assert state.status == "done"


def test_edits_of_a_copied_folder(folder_workspace: Workspace) -> None:
    assert folder_workspace.work() == ""
    (folder_workspace.tree / "built.o").touch()
    assert folder_workspace.work() == ""
    (folder_workspace.tree / "a.c").write_text("mine")
    assert folder_workspace.work() == f"{folder_workspace.tree} has edits: a.c"


@needs_git
def test_edits_and_commits_of_a_checkout(git_workspace: Workspace) -> None:
    assert git_workspace.work() == ""
    (git_workspace.tree / "a.c").write_text("mine\n")
    assert "has edits: M a.c" in git_workspace.work()
    git(git_workspace.tree, "commit", "-q", "-a", "-m", "my own")
    assert "has commits that are not in its source: commit: my own" in git_workspace.work()


@needs_git
def test_an_updated_source_is_not_local_work(git_workspace: Workspace) -> None:
    (git_workspace.source / "a.c").write_text("2\n")
    git(git_workspace.source, "commit", "-q", "-a", "-m", "theirs")
    assert git_workspace.work() == ""


@needs_git
def test_with_patches_only_commits_are_seen(git_workspace: Workspace) -> None:
    (git_workspace.folder / "x.patch").write_text("")
    git_workspace.recipe.write_text(f"patches = ['x.patch']\n{git_workspace.recipe.read_text()}")
    (git_workspace.tree / "a.c").write_text("patched\n")
    assert git_workspace.work() == ""
