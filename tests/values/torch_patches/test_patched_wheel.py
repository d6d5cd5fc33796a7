"""A library that takes precedence over that of an installed package, which stays as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builds.verify.sample_components import needs_gcc
from torchyard.core.study import Target
from torchyard.errors import MissingTool, StepFailed, UsageError
from torchyard.values.torch_patches.patched_wheel import NotReplaceable, PatchedWheel

pytestmark = [pytest.mark.timeout(600), needs_gcc]

NATIVE = "aten/src/ATen/native"
SOURCES = {
    "F.cpp": '#include "near.h"\n#include <ATen/base.h>\nint f() { return BASE + NEAR + FLAG; }\n',
    # As in torch: an operator is called from another file, and from another library.
    "G.cpp": """
int f();
extern "C" int g() { return 2 * f(); }
__attribute__((visibility("hidden"))) int internal(int x) { return x + 7; }
static int twice(int x) { return 2 * x; }
int user(int x) { return internal(twice(x)); }
""",
    "near.h": "#define NEAR 1\n",
}
PACKAGE = """
import ctypes, pathlib, types
__version__ = "9.8.7+cpu"
__config__ = types.SimpleNamespace(
    show=lambda: "C++ Version: 201703\\n - OpenMP\\nCXX_FLAGS= -Wall -DFLAG=10000, LAPACK_INFO=mkl"
)
_C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
class _Zeros:
    mul_ = sum = lambda self, *_: self
    item = lambda self: 0
zeros = lambda _: _Zeros()
library = ctypes.CDLL(str(pathlib.Path(__file__).parent / "lib" / "libtorch_cpu.so"))
"""


def compiled_library(folder: Path, tree: Path, include: Path) -> None:
    command = ["c++", "-shared", "-fPIC", "-DFLAG=10000", f"-I{include}"]
    files = [str(tree / NATIVE / name) for name in ("F.cpp", "G.cpp")]
    subprocess.run(
        [*command, *files, "-Wl,-soname,libtorch_cpu.so", "-o", str(folder / "libtorch_cpu.so")],
        check=True,
    )


@pytest.fixture
def wheel(tmp_path: Path) -> PatchedWheel:
    tree, environment = tmp_path / "tree", tmp_path / "env"
    (tree / NATIVE).mkdir(parents=True)
    for name, text in SOURCES.items():
        (tree / NATIVE / name).write_text(text)
    (tree / "version.txt").write_text("9.8.7\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    package = site / "torch"
    for folder in (package / "lib", package / "include" / "ATen", site / "nvidia" / "x" / "lib"):
        folder.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    (package / "include" / "ATen" / "base.h").write_text("#define BASE 100\n")
    compiled_library(package / "lib", tree, package / "include")
    return PatchedWheel(str(environment / "bin" / "python"), tree, tmp_path / "patched")


def result(target: Target) -> int:
    command = [target.python, "-c", "import torch; print(torch.library.g())"]
    return int(subprocess.run(command, capture_output=True, check=True, cwd="/").stdout)


def patched(wheel: PatchedWheel, text: str, name: str = "F.cpp") -> Target:
    return wheel.build({f"{NATIVE}/{name}": text}, wheel.patches_folder, say=lambda _: None)


def test_a_patched_function_is_called_by_the_released_library(wheel: PatchedWheel) -> None:
    unchanged = wheel.unchanged([f"{NATIVE}/F.cpp"], wheel.patches_folder, say=lambda _: None)
    target = patched(wheel, SOURCES["F.cpp"].replace("+ NEAR", "+ NEAR + 1000"))
    assert [result(one) for one in (wheel.target, unchanged, target)] == [20202, 20202, 22202]
    assert (wheel.patches_folder / "package" / "nvidia" / "x" / "lib").is_dir()


def test_functions_that_the_released_library_does_not_export(wheel: PatchedWheel) -> None:
    text = "int internal(int);\nint f() { return internal(10); }\n"
    assert result(patched(wheel, text)) == 34


def test_the_file_that_needs_a_missing_function_is_named(wheel: PatchedWheel) -> None:
    files = {"F.cpp": SOURCES["F.cpp"], "H.cpp": "int missing();\nint h() { return missing(); }\n"}
    with pytest.raises(NotReplaceable, match=r"H\.cpp needs _Z7missingv") as raised:
        wheel.build(
            {f"{NATIVE}/{name}": text for name, text in files.items()},
            wheel.patches_folder,
            say=lambda _: None,
        )
    assert raised.value.file == f"{NATIVE}/H.cpp"


def test_without_a_compiler_only_building_fails(
    wheel: PatchedWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "c++-99")
    other = PatchedWheel(wheel.target.python, wheel.tree, wheel.patches_folder)
    with pytest.raises(MissingTool, match=r"c\+\+-99 cannot be started"):
        patched(other, SOURCES["F.cpp"])


def test_an_error_of_the_compiler_is_shown(wheel: PatchedWheel) -> None:
    with pytest.raises(StepFailed, match=r"F\.cpp: the command ended with 1") as raised:
        patched(wheel, "int f( { return missing; }")
    assert "error:" in raised.value.why


def test_what_an_earlier_run_compiled_is_used_again(wheel: PatchedWheel) -> None:
    text = SOURCES["F.cpp"].replace("NEAR", "1")
    patched(wheel, text)
    compiled = sorted(wheel.patches_folder.glob("objects/*/*.o"))
    times = [path.stat().st_mtime_ns for path in compiled]
    assert (
        result(wheel.build({f"{NATIVE}/F.cpp": text}, wheel.tree.parent / "2", say=print)) == 20202
    )
    assert [path.stat().st_mtime_ns for path in compiled] == times
    patched(wheel, text + "\n")
    assert len(list(wheel.patches_folder.glob("objects/*/*.o"))) == 2


def test_files_that_register_operators_are_refused(wheel: PatchedWheel) -> None:
    with pytest.raises(NotReplaceable, match="registers operators"):
        patched(wheel, "TORCH_LIBRARY_IMPL(aten, CPU, m) {}")
    target = patched(wheel, "// TORCH_LIBRARY_IMPL(aten, CPU, m)\nint f() { return 1; }\n")
    assert result(target) == 2


@pytest.mark.parametrize(("version", "why"), [("9.8.6", "9.8.6"), (None, "no source tree")])
def test_sources_of_another_release_are_refused(
    version: str | None, why: str, wheel: PatchedWheel
) -> None:
    (wheel.tree / "version.txt").unlink()
    if version:
        (wheel.tree / "version.txt").write_text(version)
    with pytest.raises(UsageError, match=why):
        PatchedWheel(wheel.target.python, wheel.tree, wheel.patches_folder)
