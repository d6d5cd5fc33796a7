"""A CUDA library, compiled by a real nvcc on a machine with or without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import Cli
from tests.builds.e2e.projects import write

TOOLKITS = sorted(Path("/usr/local").glob("cuda-*/bin/nvcc"))

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not TOOLKITS, reason="needs a CUDA toolkit in /usr/local/cuda-X.Y"),
]

CMAKE = """\
cmake_minimum_required(VERSION 3.18)
project(twice C CUDA)
# Libraries that use the driver's API are linked with a stub, which is not installed.
add_library(cuda SHARED stub.c)
set_target_properties(cuda PROPERTIES SOVERSION 1)
add_library(twice SHARED twice.cu)
target_link_libraries(twice PRIVATE cuda)
install(TARGETS twice LIBRARY DESTINATION lib)
"""
KERNEL = """\
#include <cuda.h>
__global__ void twice(int *value) { *value *= 2; }
extern "C" int run(int value) {
    int *place = nullptr, version = 0;
    if (cuDriverGetVersion(&version) != CUDA_SUCCESS) return -1;
    if (cudaMalloc(&place, sizeof(int)) != cudaSuccess) return -1;
    cudaMemcpy(place, &value, sizeof(int), cudaMemcpyHostToDevice);
    twice<<<1, 1>>>(place);
    cudaMemcpy(&value, place, sizeof(int), cudaMemcpyDeviceToHost);
    return value;
}
"""
RECIPE = """\
name = "twice"
version = "1.0"
builder = "cmake"
[source.folder]
path = "source"
[environment]
use = "venv"
cuda = "{cuda}.0"
path = ["{{cuda-folder}}/bin"]
[options]
CMAKE_CUDA_ARCHITECTURES = "90"
[verify]
files = ["lib/libtwice.so"]
libraries = ["lib/libtwice.so"]
[[verify.smoke]]
name = "the interpreter runs"
python = "assert True"
[[verify.smoke]]
name = "the kernel runs"
device = "cuda"
python = '''
import ctypes, os
assert ctypes.CDLL(os.environ["LIBRARY"]).run(21) == 42
'''
[environment.variables]
CUDA_HOME = "{{cuda-folder}}"
LIBRARY = "{{prefix}}/lib/libtwice.so"
"""


def test_the_build_finishes_and_records_what_was_not_tested(cli: Cli, tmp_path: Path) -> None:
    toolkit = TOOLKITS[-1].parent.parent
    stub = "int cuDriverGetVersion(int *version) { return 1; }\n"
    write(tmp_path / "source", {"CMakeLists.txt": CMAKE, "twice.cu": KERNEL, "stub.c": stub})
    recipe = tmp_path / "twice.toml"
    recipe.write_text(RECIPE.format(cuda=toolkit.name.removeprefix("cuda-")))
    ended = cli.build(str(recipe), "--name", "twice", "--cache", "none")
    assert "twice: built in" in ended.out
    (component,) = cli.record("twice")["components"]
    tools = {tool["name"]: tool for tool in component["toolchain"]}
    assert tools["nvcc"]["path"] == f"{toolkit}/bin/nvcc"
    plain, kernel = component["verified"]["smoke"]
    assert plain["passed"]
    has_gpu = Path("/dev/nvidiactl").exists()
    assert kernel["passed"] == has_gpu
    assert ("no cuda device" in kernel["skipped"]) == (not has_gpu)
    findings = [item for item in component["verified"]["findings"] if "libcuda" in item["what"]]
    assert [item["level"] for item in findings] == ([] if has_gpu else ["warning"])
