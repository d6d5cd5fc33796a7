"""Editable installs without network: a real extension, with the setuptools of this environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from tests.builds.plans import plan_of
from torchyard.builds.builders import BuilderContext, python_steps
from torchyard.builds.plan import Command, WriteFile
from torchyard.builds.recipe import PythonTable, Recipe

SETUP = """
from setuptools import Extension, setup
setup(name="spam-egg", version="1.0", packages=["spam"], ext_modules=[Extension("spam._c", ["c.c"])])
"""
MODULE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_c", 0, -1, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__c(void) { return PyModule_Create(&module); }
"""


def test_a_setup_py_project_is_installed_in_place_and_keeps_its_objects(tmp_path: Path) -> None:
    """Pip builds in the working copy without isolation, so nothing is downloaded and objects stay."""
    assert int(version("setuptools").split(".")[0]) >= 80
    tree = tmp_path / "tree"
    (tree / "spam").mkdir(parents=True)
    (tree / "spam" / "__init__.py").write_text("")
    (tree / "setup.py").write_text(SETUP)
    (tree / "c.c").write_text(MODULE)
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / name / "site-packages"
    (packages / "tools.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (part,) = plan_of(tmp_path).components
    recipe = Recipe(name="part", builder="python", python=PythonTable(install="editable"))
    context = BuilderContext(
        component=replace(part, recipe=recipe, python=str(environment / "bin" / "python")),
        needs=(),
        variables=(),
        root="",
        dist=tmp_path / "dist" / "part",
        front_end="setup.py",
    )
    (step,) = python_steps(context)
    variables = {"PATH": os.environ["PATH"], "PIP_INDEX_URL": "http://127.0.0.1:9/"}
    for action in step.actions:
        if isinstance(action, WriteFile):
            Path(action.path).parent.mkdir(parents=True, exist_ok=True)
            Path(action.path).write_text(action.text)
        else:
            assert isinstance(action, Command)
            completed = subprocess.run(
                action.argv,
                cwd=action.folder,
                env={**variables, **dict(action.variables)},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert completed.returncode == 0, completed.stdout + completed.stderr
    imported = subprocess.run(
        [environment / "bin" / "python", "-c", "import spam._c; print(spam._c.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(imported.stdout.strip()).parent == tree / "spam"
    assert list(tree.glob("build/**/*.o")), "the objects are kept for the next build"
