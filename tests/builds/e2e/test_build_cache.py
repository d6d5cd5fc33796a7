"""The build cache: a component that was compiled once is reused, checked, and moved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import Cli, call
from tests.builds.e2e.projects import library, write
from tests.builds.sources.file_server import Reply, served

pytestmark = pytest.mark.long

PKG_CONFIG = """
configure_file(tiny.pc.in tiny.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tiny.pc DESTINATION lib/pkgconfig)
set_target_properties(tiny PROPERTIES INSTALL_RPATH "${CMAKE_INSTALL_PREFIX}/lib")
"""


class Machines:
    """Several homes that share a cache folder and a source, like machines with a network disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        self.source = library(folder / "source")
        with (self.source / "CMakeLists.txt").open("a") as file:
            file.write(PKG_CONFIG)
        write(self.source, {"tiny.pc.in": "prefix=@CMAKE_INSTALL_PREFIX@\nName: tiny\n"})

    def cli(self, name: str) -> Cli:
        return Cli(home=self.folder / name)

    def words(self, *more: str, name: str = "tiny") -> tuple[str, ...]:
        return (
            *("generic", "--name", name, "--set", f"source.folder.path={self.source}"),
            *("--set", 'verify.files=["lib/libtiny.so", "include/tiny.h"]', "--cache", "none"),
            *("--build-cache", str(self.cache), *more),
        )

    def entries(self) -> list[Path]:
        return sorted(self.cache.glob("*/entry.json"))


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path)


def test_reused_after_clean_and_on_another_machine(machines: Machines) -> None:
    first = machines.cli("first-machine")
    ended = first.build(*machines.words())
    assert "build cache: stored as" in ended.err
    assert first.compiled("tiny") != []
    # After `clean`.
    first.build("clean", "tiny", "--level", "tree")
    ended = first.build(*machines.words())
    assert "build cache: restored from" in ended.err
    assert first.compiled("tiny") == []
    # On another machine, whose folders have shorter names; then the first one is gone.
    second = machines.cli("two")
    ended = second.build(*machines.words(name="t"))
    shutil.rmtree(first.home)
    assert "build cache: restored from" in ended.err
    assert second.compiled("t") == []
    prefix = second.folder("t") / "prefix"
    assert (
        call(prefix / "lib/libtiny.so", "tiny_one"),
        call(prefix / "lib/libtiny.so", "tiny_two"),
    ) == (1, 2)
    assert f"prefix={prefix}\n" in (prefix / "lib/pkgconfig/tiny.pc").read_text()
    assert str(first.home).encode() not in (prefix / "lib/libtiny.so").read_bytes()
    assert second.record("t")["components"][0]["reused"] == machines.entries()[0].parent.name
    # All steps are done; nothing runs again.
    assert "nothing to do" in second.build(*machines.words(name="t")).out


def test_another_option_source_or_compiler_is_another_component(machines: Machines) -> None:
    cli = machines.cli("one")
    cli.build(*machines.words())
    cli.build(*machines.words("--set", "LOUD=true", name="loud"))
    assert call(cli.folder("loud") / "prefix/lib/libtiny.so", "tiny_two") == 200
    (machines.source / "two.c").write_text("int tiny_two(void) { return 77; }\n")
    cli.build(*machines.words(name="edit"))
    assert call(cli.folder("edit") / "prefix/lib/libtiny.so", "tiny_two") == 77
    cli.build(*machines.words("--set", "CMAKE_C_FLAGS=-O1", name="flags"))
    assert len(machines.entries()) == 4


def test_a_damaged_entry_is_not_used(machines: Machines) -> None:
    first = machines.cli("one")
    first.build(*machines.words())
    (entry,) = machines.entries()
    with (entry.parent / "files.tar").open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    ended = machines.cli("two").build(*machines.words())
    assert "build cache not used: the checksum of its archive is wrong" in ended.err
    assert call(machines.cli("two").folder("tiny") / "prefix/lib/libtiny.so", "tiny_one") == 1


def test_a_path_that_does_not_fit_is_not_patched(machines: Machines) -> None:
    machines.cli("a").build(*machines.words())
    longer = machines.cli("a-home-with-a-much-longer-name")
    ended = longer.build(*machines.words())
    assert "contains the path of its build" in ended.err
    assert longer.compiled("tiny") != []


def test_a_restored_component_can_be_rebuilt(machines: Machines) -> None:
    machines.cli("one").build(*machines.words())
    second = machines.cli("two")
    second.build(*machines.words())
    tree = second.folder("tiny") / "trees/generic"
    (tree / "one.c").write_text("int tiny_one(void) { return 11; }\n")
    second.build("rebuild", "tiny")
    assert call(second.folder("tiny") / "prefix/lib/libtiny.so", "tiny_one") == 11
    # Edited working copies are not stored.
    assert len(machines.entries()) == 1


def test_an_entry_cannot_write_outside_the_build(machines: Machines, tmp_path: Path) -> None:
    import hashlib
    import io
    import tarfile

    machines.cli("one").build(*machines.words())
    (path,) = machines.entries()
    with tarfile.open(path.parent / "files.tar", "w") as archive:
        member = tarfile.TarInfo("prefix/../../../../evil")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    entry = json.loads(path.read_text())
    entry["sha256"] = hashlib.sha256((path.parent / "files.tar").read_bytes()).hexdigest()
    path.write_text(json.dumps(entry))
    ended = machines.cli("two").build(*machines.words(), code=5)
    assert "unsafe name" in ended.err
    assert not list(tmp_path.rglob("evil"))


def test_an_entry_cannot_change_files_outside_the_build(machines: Machines, tmp_path: Path) -> None:
    machines.cli("first").build(*machines.words())
    (path,) = machines.entries()
    entry = json.loads(path.read_text())
    outside = tmp_path / "outside"
    outside.write_text(entry["build_folder"])
    for home, name in {"a": str(outside), "b": "../../../../outside"}.items():
        path.write_text(json.dumps({**entry, "text": [name]}))
        ended = machines.cli(home).build(*machines.words(), code=5)
        assert "unsafe name" in ended.err
        assert outside.read_text() == entry["build_folder"]


def test_a_cache_on_a_web_server(machines: Machines) -> None:
    machines.cli("one-of-the-machines").build(*machines.words())
    (path,) = machines.entries()
    with served() as server:
        words = [w if w != str(machines.cache) else server.address for w in machines.words()]
        words[words.index("--name") + 1] = "t"
        for file in (path, path.parent / "files.tar"):
            server.replies[f"/{path.parent.name}/{file.name}"] = Reply(body=file.read_bytes())
        second = machines.cli("two")
        ended = second.build(*words)
        assert "build cache: restored from" in ended.err
        assert second.compiled("t") == []
        assert call(second.folder("t") / "prefix/lib/libtiny.so", "tiny_one") == 1
        # A damaged archive, a server that refuses, and one without the entry.
        archive = server.replies[f"/{path.parent.name}/files.tar"]
        server.replies[f"/{path.parent.name}/files.tar"] = Reply(body=archive.body[:-1] + b"x")
        third = machines.cli("three")
        assert "build cache not used: its entry cannot be read" in third.build(*words).err
        assert third.compiled("t") != []
        server.replies[f"/{path.parent.name}/entry.json"] = Reply(status=403)
        assert "responded with 403" in machines.cli("four").build(*words).err
        server.replies.clear()
        ended = machines.cli("five").build(*words)
        assert "build cache not used" not in ended.err
        assert machines.cli("five").compiled("t") != []


def test_a_wheel_is_reused_and_installed(machines: Machines, tools: Path) -> None:
    from tests.builds.e2e.projects import python_project

    del tools
    project = python_project(machines.folder / "project", "setuptools")
    words = (
        *("generic", "--variant", "python", "--name", "wheel", "--cache", "none"),
        *("--set", f"source.folder.path={project}", "--build-cache", str(machines.cache)),
    )
    first, second = machines.cli("one"), machines.cli("two")
    first.build(*words)
    ended = second.build(*words)
    assert "build cache: restored from" in ended.err
    assert second.compiled("wheel") == []
    assert list((second.folder("wheel") / "wheels").glob("*.whl"))


USER = """\
cmake_minimum_required(VERSION 3.18)
project(user C)
set(CMAKE_INSTALL_RPATH "${CMAKE_INSTALL_PREFIX}/lib")
find_library(TINY tiny REQUIRED)
add_library(user SHARED user.c)
target_link_libraries(user PRIVATE ${TINY})
install(TARGETS user LIBRARY DESTINATION lib)
"""
STACK = """\
version = "1.0"
[environment]
use = "current"
[[components]]
recipe = "./tiny.toml"
[[components]]
recipe = "./user.toml"
needs = ["tiny"]
"""


def test_a_stack_is_moved(machines: Machines) -> None:
    """The second library finds the first one by its RPATH, in the folder of the new build."""
    recipes = {
        name: f"builder = 'cmake'\nversion = '1.0'\n[source.folder]\npath = '{source}'\n"
        f"[environment]\nuse = 'current'\n[verify]\nlibraries = ['lib/lib{name}.so']\n"
        for name, source in (("tiny", machines.source), ("user", machines.folder / "user"))
    }
    code = "int tiny_two(void);\nint user_value(void) { return tiny_two() + 40; }\n"
    write(machines.folder / "user", {"CMakeLists.txt": USER, "user.c": code})
    texts = {f"{name}.toml": text for name, text in recipes.items()}
    write(machines.folder, {"both.toml": STACK, **texts})
    words = (str(machines.folder / "both.toml"), "--cache", "none", "--name", "both")
    cache = ("--build-cache", str(machines.cache))
    first, second = machines.cli("first-machine"), machines.cli("second")
    first.build(*words, *cache)
    assert len(machines.entries()) == 2
    ended = second.build(*words, *cache)
    assert ended.err.count("build cache: restored from") == 2
    shutil.rmtree(first.home)
    assert call(second.folder("both") / "prefix/lib/libuser.so", "user_value") == 42
    # A change of the first library also compiles the second one again.
    (machines.source / "two.c").write_text("int tiny_two(void) { return 60; }\n")
    third = machines.cli("third")
    ended = third.build(*words, *cache)
    assert "restored" not in ended.err
    assert call(third.folder("both") / "prefix/lib/libuser.so", "user_value") == 100
