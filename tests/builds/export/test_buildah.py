"""Exported Dockerfiles built with buildah from a local Debian root, without a registry."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from tests.builds.export.sample_plans import hand_plan, small_plan, small_project
from tests.builds.export.test_dockerfile import ODD_TEXTS, ODD_WORDS, odd_plan
from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.export import export_plan
from torchyard.builds.export.shell import ExportFacts
from torchyard.builds.plan import Command, Plan
from torchyard.builds.planner import make_plan
from torchyard.builds.recipe_file import BuildRequest

SUITE = "bookworm"
BASE = "localhost/torchyard-test-base"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.geteuid() != 0
        or not all(shutil.which(name) for name in ("buildah", "mmdebstrap", "apt-get")),
        reason="needs the rights of root, buildah, mmdebstrap and a mirror of Debian",
    ),
]


@dataclass(frozen=True)
class Buildah:
    """buildah with a storage of its own, so that the machine's images stay as they are."""

    folder: Path

    def run(self, *argv: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        storage = ("--root", self.folder / "images", "--runroot", self.folder / "running")
        ended = subprocess.run(
            ["buildah", *storage, *argv], capture_output=True, text=True, check=False
        )
        assert not check or ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended

    def build(self, name: str, context: Path) -> str:
        """Build the Dockerfile of a folder; what buildah says is returned."""
        options = ("--isolation", "chroot", "--layers", "--tag", name)
        return self.run("bud", *options, context).stdout

    def say(self, image: str, *argv: str) -> str:
        """What a command says in a container of that image."""
        container = self.run("from", image).stdout.strip()
        try:
            return self.run("run", "--isolation", "chroot", container, "--", *argv).stdout
        finally:
            self.run("rm", container)


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """Buildah with a base image: a small Debian with this machine's mirror."""
    folder = tmp_path_factory.mktemp("buildah")
    program = Buildah(folder=folder)
    place = resources.files("torchyard.builds.environments").joinpath("make_root.sh")
    script = folder / "make_root.sh"
    script.write_text(place.read_text(encoding="utf-8"))
    root = folder / "root"
    made = subprocess.run(
        ["sh", script, root, SUITE, "", "ca-certificates"],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"no Debian can be made here: {made.stderr[-300:]}")
    container = program.run("from", "scratch").stdout.strip()
    program.run("add", "--quiet", container, root, "/")
    program.run("commit", "--quiet", container, BASE)
    program.run("rm", container)
    try:
        yield program
    finally:
        program.run("rm", "--all", check=False)
        program.run("rmi", "--all", "--force", check=False)
        shutil.rmtree(folder, ignore_errors=True)
        assert str(folder) not in Path("/proc/self/mountinfo").read_text()


def write_dockerfile(plan: Plan, context: Path, facts: ExportFacts) -> None:
    (file,) = export_plan(plan, "dockerfile", replace(facts, base_image=BASE))
    context.mkdir(parents=True, exist_ok=True)
    (context / file.name).write_text(file.text)


def test_a_cmake_project_from_a_folder(buildah: Buildah, tmp_path: Path) -> None:
    project, context = small_project(tmp_path / "it's a $project"), tmp_path / "context"
    facts = ExportFacts(home=str(tmp_path / "yard"))
    write_dockerfile(small_plan(project, tmp_path / "yard"), context, facts)
    shutil.copytree(project, context / "local/generic-source")
    first = buildah.build("small", context)
    assert "Using cache" not in first.partition("AS runtime")[0]
    assert buildah.say("small", "tell") == "LOUD\n"
    left = buildah.say("small", "ls", "/opt/torchyard/small").split()
    assert left == ["prefix"], "the last stage has only what a user needs"
    second = buildah.build("small", context)
    steps = [line for line in second.splitlines() if "STEP" in line and "FROM" not in line]
    assert second.count("Using cache") == len(steps), "every layer is there already"
    write_dockerfile(small_plan(project, tmp_path / "yard", LOUD=False), context, facts)
    third = buildah.build("small", context)
    assert 0 < third.count("Using cache") < len(steps), "only what follows the change is done"
    assert buildah.say("small", "tell") == "quiet\n"


def test_odd_texts_and_words(buildah: Buildah, tmp_path: Path) -> None:
    plan, _ = odd_plan(tmp_path)
    facts = ExportFacts(home="/yard")
    keep = replace(plan.components[0].recipe, builder="none")
    plan = replace(plan, components=(replace(plan.components[0], recipe=keep),))
    show = 'for name in out/*; do printf "%s\\0" "$name"; cat "$name"; printf "\\0"; done'
    plan = replace(
        plan,
        steps=(
            *plan.steps,
            replace(
                hand_plan(
                    Command(argv=("sh", "-c", f"mkdir -p trees; ({show}) >trees/thing"))
                ).steps[0],
                name="thing/show",
            ),
        ),
    )
    write_dockerfile(plan, tmp_path / "context", facts)
    buildah.build("odd", tmp_path / "context")
    said = buildah.say("odd", "cat", "/opt/torchyard/by-hand/trees/thing").split("\0")
    found = dict(zip(said[::2], said[1::2], strict=False))
    for name, text in ODD_TEXTS.items():
        assert found[f"out/{name}"] == text
    assert found["out/words"] == "".join(f"[{word}]" for word in ODD_WORDS)
    assert "BROKEN=f\n'g'\n" in found["out/environment"]


def planned(name: str, variant: str, settings: dict[str, Any]) -> Plan:
    request = BuildRequest(recipe="generic", variant=variant, settings={"": settings})
    home = BuildsDirectory(folder=Path("/yard"))
    environ = {"HOME": "/", "PATH": ""}
    return replace(make_plan(request, home=home, name=name, environ=environ), jobs=2)


def test_a_root_folder_with_a_debian_source(buildah: Buildah, tmp_path: Path) -> None:
    settings = {
        "source.use": "debian",
        "source.debian.package": "double-conversion",
        "source.debian.suite": SUITE,
        "environment.use": "debian-root",
        "environment.debian-root.suite": SUITE,
        "environment.debian-root.build-dependencies-of": ["double-conversion"],
        "BUILD_SHARED_LIBS": True,
        "verify.files": ["lib/libdouble-conversion.so"],
    }
    write_dockerfile(planned("conv", "cmake", settings), tmp_path, ExportFacts(home="/yard"))
    buildah.build("conv", tmp_path)
    library = "/opt/torchyard/conv/prefix/lib/libdouble-conversion.so"
    assert buildah.say("conv", "ls", library).strip() == library
    assert "pip" in buildah.say("conv", "cat", "/opt/torchyard/conv/freeze.txt")


def test_a_python_extension_in_a_virtual_environment(buildah: Buildah, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        "setup(name='tiny', version='1.0', ext_modules=[Extension('tiny', ['tiny.c'])])\n"
    )
    (project / "tiny.c").write_text(
        "#include <Python.h>\n"
        "static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(42); }\n"
        'static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {0}};\n'
        'static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", "", -1, methods};\n'
        "PyMODINIT_FUNC PyInit_tiny(void) { return PyModule_Create(&module); }\n"
    )
    settings = {
        "source.folder.path": str(project),
        "environment.venv.packages": ["setuptools<80", "wheel"],
        "python.distribution": "tiny",
        "python.front-end": "setup.py",
        "verify.import-name": "tiny",
    }
    context = tmp_path / "context"
    write_dockerfile(planned("tiny", "python", settings), context, ExportFacts(home="/yard"))
    shutil.copytree(project, context / "local/generic-source")
    buildah.build("tiny", context)
    assert buildah.say("tiny", "python", "-c", "import tiny; print(tiny.answer())") == "42\n"
    kept = set(buildah.say("tiny", "ls", "/opt/torchyard/tiny").split())
    assert kept == {"env", "freeze.txt", "wheels"}
