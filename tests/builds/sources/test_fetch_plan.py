from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds.sources.fetching import Place
from torchyard.builds.recipe import (
    DebianSource,
    FolderSource,
    GitSource,
    SourceTable,
    TarballSource,
)
from torchyard.builds.sources import SOURCES, used_source_kind
from torchyard.errors import UsageError

GIT = GitSource(url="https://example.org/project.git", ref="v1.0")
TARBALL = TarballSource(url="https://example.org/p-1.0.tar.gz", sha256="a" * 64)


def test_every_kind_of_the_recipe_has_a_module() -> None:
    fields = set(SourceTable.__dataclass_fields__) - {"use"}
    assert set(SOURCES) == fields


def test_the_only_table_is_used() -> None:
    assert used_source_kind(SourceTable(git=GIT), "source") == "git"


def test_use_picks_among_several(place: Place) -> None:
    source = SourceTable(use="tarball", git=GIT, tarball=TARBALL)
    plan = place.plan(source)
    assert plan.kind == "tarball"
    assert plan.summary == "archive https://example.org/p-1.0.tar.gz"


@pytest.mark.parametrize(
    ("source", "what", "hint"),
    [
        (SourceTable(git=GIT, tarball=TARBALL), "pytorch: source.use is missing", 'use = "git"'),
        (SourceTable(use="folder", git=GIT), "no table [pytorch: source.folder]", "git"),
        (SourceTable(), "pytorch: source has no source", "[pytorch: source.debian]"),
        (SourceTable(use="cvs", git=GIT), "not a kind of source", "sdist"),  # type: ignore[arg-type]
    ],
)
def test_a_choice_that_cannot_be_made_names_the_key(
    source: SourceTable, what: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        used_source_kind(source, "pytorch: source")
    assert what in caught.value.what
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("source", "key"),
    [
        (SourceTable(git=GitSource(url="")), "source.git.url"),
        (SourceTable(git=GitSource(url="--upload-pack=sh")), "source.git.url"),
        (SourceTable(git=GitSource(url="https://x/y", ref="--all")), "source.git.ref"),
        (SourceTable(git=GitSource(url="https://x/y", ref="a b")), "source.git.ref"),
        (SourceTable(git=GitSource(url="https://x/y", ref="a..b")), "source.git.ref"),
        (
            SourceTable(git=GitSource(url="https://x/y", overrides={"../up": "v1"})),
            "source.git.overrides",
        ),
        (
            SourceTable(git=GitSource(url="https://x/y", overrides={"/etc": "v1"})),
            "source.git.overrides",
        ),
        (
            SourceTable(git=GitSource(url="https://x/y", overrides={"a": "-x"})),
            'source.git.overrides."a"',
        ),
        (
            SourceTable(git=GitSource(url="https://x/y", overrides={"a": "b"}, submodules=False)),
            "source.git.submodules",
        ),
        (SourceTable(tarball=TarballSource(url="https://x/y", sha256="12")), "tarball.sha256"),
        (SourceTable(tarball=TarballSource(url="https://x/y", sha256="")), "tarball.sha256"),
        (
            SourceTable(tarball=TarballSource(url="https://x/y", sha256="a" * 64, strip=-1)),
            "source.tarball.strip",
        ),
        (SourceTable(debian=DebianSource(package="../x")), "source.debian.package"),
        (SourceTable(debian=DebianSource(package="x y")), "source.debian.package"),
        (SourceTable(debian=DebianSource(package="xy", suite="a b")), "source.debian.suite"),
        (SourceTable(debian=DebianSource(package="xy", version="$(id)")), "source.debian.version"),
        (SourceTable(folder=FolderSource(path="/nonexistent")), "source.folder.path"),
        (SourceTable(folder=FolderSource(path="")), "source.folder.path"),
    ],
)
def test_values_that_cannot_be_right_name_their_key(
    source: SourceTable, key: str, place: Place
) -> None:
    with pytest.raises(UsageError) as caught:
        place.plan(source)
    assert key in caught.value.what
    assert caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        SourceTable(git=GitSource(url="https://ann:s3cret@example.org/p.git")),
        SourceTable(git=GitSource(url="https://s3cret@example.org/p.git")),
        SourceTable(git=GitSource(url="ssh://git:s3cret@example.org/p.git")),
        SourceTable(
            tarball=TarballSource(url="https://u:s3cret@example.org/p.tgz", sha256="a" * 64)
        ),
    ],
)
def test_credentials_in_a_recipe_are_refused_and_not_shown(
    source: SourceTable, place: Place
) -> None:
    with pytest.raises(UsageError) as caught:
        place.plan(source)
    error = caught.value
    assert "s3cret" not in error.what + error.why + error.hint
    assert "example.org/p" in error.what
    assert ".url" in error.what


def test_a_user_name_for_ssh_is_no_secret(place: Place) -> None:
    for url in ("ssh://git@example.org/p.git", "git@example.org:p.git"):
        plan = place.plan(SourceTable(git=GitSource(url=url)))
        assert any(url in getattr(action, "argv", ()) for action in plan.actions)


def test_plans_work_beside_the_destination_and_rename_last(place: Place, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    sources = [
        SourceTable(git=GIT),
        SourceTable(tarball=TARBALL),
        SourceTable(folder=FolderSource(path=str(tmp_path / "tree"))),
        SourceTable(debian=DebianSource(package="pytorch", suite="trixie")),
    ]
    for source in sources:
        commands: list[tuple[str, ...]] = [
            getattr(action, "argv", ()) for action in place.plan(source).actions
        ]
        assert ("rm", "-rf", "--", str(place.part)) in commands
        rename = max(i for i, argv in enumerate(commands) if argv[:1] == ("mv",))
        assert commands[rename][-1] == str(place.destination)
        touched = [
            i for i, argv in enumerate(commands) if str(place.destination) in argv and i < rename
        ]
        assert [commands[i][:2] for i in touched] == [("rm", "-rf")]
