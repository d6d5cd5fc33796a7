"""Use of a finished build: `bin/python` and `activate`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builds.plans import PATH, plan_of, shell, step
from tests.builds.sandbox.sandbox_commands import make_root, needs_mounts
from torchyard.builds.activation import runtime_variables, write_runtime_files
from torchyard.builds.build_folders import BuildFolder
from torchyard.builds.plan import Plan
from torchyard.builds.recipe import BuilderKind, Recipe


def plan_with(
    folder: Path,
    *variables: tuple[str, str],
    python: str = sys.executable,
    builder: BuilderKind = "python",
    root: str = "",
) -> Plan:
    last = replace(step("verify", shell("true")), variables=(("PATH", PATH), *variables), root=root)
    plan = plan_of(folder, last)
    part = replace(plan.components[0], python=python, recipe=Recipe(name="part", builder=builder))
    return replace(plan, components=(part,))


def ask(script: Path, code: str, **variables: str) -> str:
    return subprocess.run(
        [str(script), "-S", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={"PATH": PATH, **variables},
    ).stdout.strip()


def made(plan: Plan) -> Path:
    folder = BuildFolder(folder=Path(plan.folder))
    folder.folder.mkdir(exist_ok=True)
    script = write_runtime_files(plan, folder)
    assert script == folder.folder / "bin" / "python"
    return script


def test_the_interpreter_starts_with_what_it_needs(tmp_path: Path) -> None:
    plan = plan_with(tmp_path / "it's here", ("LD_LIBRARY_PATH", "/x/lib"), ("USE_X", "1"))
    script = made(plan)
    code = "import os, sys; print(os.environ['LD_LIBRARY_PATH'], 'USE_X' in os.environ, sys.argv)"
    assert ask(script, code) == "/x/lib False ['-c']"
    assert ask(script, code, LD_LIBRARY_PATH="/mine").startswith("/x/lib:/mine ")
    assert os.access(script, os.X_OK)


def test_words_and_exit_codes_pass_through(tmp_path: Path) -> None:
    script = made(plan_with(tmp_path))
    code = "import sys; print(sys.argv[1:]); sys.exit(3)"
    done = subprocess.run(
        [str(script), "-c", code, "a b", "$x", "it's"], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("""['a b', '$x', "it's"]\n""", 3)


def test_libraries_of_the_prefix_are_found(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, ("LD_LIBRARY_PATH", "/x/lib"), builder="cmake")
    assert runtime_variables(plan)["LD_LIBRARY_PATH"] == f"{tmp_path}/prefix/lib:/x/lib"
    assert runtime_variables(plan_with(tmp_path)) == {}


def test_only_a_library_has_no_interpreter(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, python="", builder="cmake")
    assert write_runtime_files(plan, BuildFolder(folder=tmp_path)) is None
    assert not (tmp_path / "bin").exists()
    assert (tmp_path / "activate").exists()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_activation_however_often(tmp_path: Path, times: int) -> None:
    made(plan_with(tmp_path, ("USE_X", "1 2"), ("LD_LIBRARY_PATH", "/x/lib"), builder="cmake"))
    script = f'{". ./activate; " * times} echo "$USE_X|$LD_LIBRARY_PATH|$PATH|$HOME"'
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/mine", "HOME": "/h"},
    )
    prefix = f"{tmp_path}/prefix"
    assert done.stdout.strip() == (f"1 2|{prefix}/lib:/x/lib:/mine|{prefix}/bin:/usr/bin:/bin|/h")


def test_in_a_root_the_interpreter_enters_it(tmp_path: Path) -> None:
    script = made(plan_with(tmp_path, python="/usr/bin/python3", root=str(tmp_path / "root")))
    text = script.read_text()
    assert "sandbox_program.py" in text
    assert f"--root {tmp_path}/root" in text
    done = subprocess.run(
        ["sh", "-c", ". ./activate"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert f"this build runs inside {tmp_path}/root" in done.stderr


@needs_mounts
def test_in_a_root_a_results_directory_below_a_system_folder_is_visible() -> None:
    """/var is the root's own, and the home may be there."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="torchyard-test-") as home:
        base, own = (Path(home, "builds", name) for name in ("torch", "vision"))
        root = make_root(base / "root")
        shutil.copy2(shutil.which("cat") or "/bin/cat", own.parent / "cat")
        own.mkdir()
        script = made(plan_with(own, python=str(own.parent / "cat"), root=str(root)))
        for folder in (base, own):
            (folder / "seen").write_text(f"{folder.name}\n")
        done = subprocess.run(
            [str(script), str(base / "seen"), str(own / "seen")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.stdout, done.stderr) == ("torch\nvision\n", "")


def test_written_again_it_is_replaced(tmp_path: Path) -> None:
    script = made(plan_with(tmp_path, python="/old/python"))
    made(plan_with(tmp_path))
    assert "/old/python" not in script.read_text()
