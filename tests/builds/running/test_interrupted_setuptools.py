"""An interrupted setuptools step: copies are removed, objects are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.builds.plans import plan_of
from torchyard.builds.plan import Component
from torchyard.builds.recipe import BuilderKind, PythonTable, Recipe
from torchyard.builds.running.compile_progress import remove_partial_copies


def component(folder: Path, builder: BuilderKind = "python", build: str = "build") -> Component:
    recipe = Recipe(name="part", builder=builder, python=PythonTable(build_folder=build))
    return replace(plan_of(folder).components[0], recipe=recipe)


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def left(folder: Path) -> list[str]:
    tree = folder / "tree"
    return sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())


def test_copies_are_removed_and_objects_kept(tmp_path: Path) -> None:
    put(
        tmp_path,
        "build/lib.linux-x86_64-cpython-311/spam/half.py",
        "build/bdist.linux-x86_64/wheel/spam/half.py",
        "build/lib/spam/half.py",
        "build/temp.linux-x86_64-cpython-311/spam.o",
        "spam/whole.py",
    )
    assert len(remove_partial_copies(component(tmp_path))) == 3
    assert left(tmp_path) == ["build/temp.linux-x86_64-cpython-311/spam.o", "spam/whole.py"]


def test_libraries_of_cmake_stay(tmp_path: Path) -> None:
    put(tmp_path, "out/CMakeCache.txt", "out/lib/libtorch.so", "out/lib.linux/torch/half.py")
    remove_partial_copies(component(tmp_path, build="out"))
    assert left(tmp_path) == ["out/CMakeCache.txt", "out/lib/libtorch.so"]


def test_only_python_projects_have_copies(tmp_path: Path) -> None:
    put(tmp_path, "build/lib.linux/x")
    assert remove_partial_copies(component(tmp_path, "cmake")) == ()
    assert left(tmp_path) == ["build/lib.linux/x"]


def test_nothing_there(tmp_path: Path) -> None:
    assert remove_partial_copies(component(tmp_path)) == ()
