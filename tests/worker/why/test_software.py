"""Loaded libraries and the primitives that oneDNN reports."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worker.in_process_service import make_service, variant, write_file
from torchyard.worker.why.service import RedirectedOutput, executed, facts, loaded_libraries

pytestmark = pytest.mark.torch

PROGRAM = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(16, 16, 3, padding=1)

        def forward(self, x):
            return torch.sort(self.conv(x), dim=0)[0]

        def example_inputs(self):
            return (torch.randn(2, 16, 32, 32),)
"""


@pytest.mark.parametrize(
    "line",
    [
        "onednn_verbose,v1,primitive,exec,cpu,matmul,gemm:acl,undef,src_f32::blocked:ab,,,8x8:8x8,0.1",
        "onednn_verbose,primitive,exec,cpu,matmul,gemm:acl,undef,src_f32::blocked:ab,,,8x8:8x8,0.1",
        "dnnl_verbose,exec,cpu,matmul,gemm:acl,undef,src_f32::blocked:ab,,,8x8:8x8,0.1",
    ],
)
def test_executions_are_read_in_all_formats(line: str) -> None:
    assert list(executed([line])) == [("matmul", "gemm:acl")]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "loss,exec,cpu,matmul,gemm:acl",
        "onednn_verbose,v1,info,oneDNN v3.7.1 (commit 8d263e6)",
        "onednn_verbose,v1,primitive,create:cache_miss,cpu,matmul,gemm:acl,undef",
        "onednn_verbose,v1,primitive,exec,cpu",
    ],
)
def test_other_lines_are_no_executions(line: str) -> None:
    assert list(executed([line])) == []


SCRIPT = """
import ctypes, os, sys
from torchyard.worker.why.service import RedirectedOutput
c = ctypes.CDLL(None)
print("before")
with RedirectedOutput() as output:
    c.printf(b"of C\\n")
    os.write(1, b"of the system\\n")
    first = output.new_lines()
    c.puts(b"more")
    second = output.new_lines()
print("after", sorted(first), second)
"""


def test_output_of_c_code_is_redirected_and_stdout_restored() -> None:
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120
    )
    assert completed.stdout.splitlines() == ["before", "after ['of C', 'of the system'] ['more']"]


def test_stdout_is_restored_after_an_error() -> None:
    before = os.fstat(1).st_ino
    inside = []

    def fail() -> None:
        with RedirectedOutput():
            inside.append(os.fstat(1).st_ino)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside != [before]
    assert os.fstat(1).st_ino == before


def test_a_library_is_listed_once_it_is_loaded() -> None:
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_global_deps.so"
    ctypes.CDLL(str(library))
    names = {name for name, *_ in loaded_libraries()}
    assert not {name for name in names if name.startswith(("libtorch", "libc10"))}
    assert {"libc", "libstdc++"} <= names
    if "libopenblas" in names:
        (version,) = {version for name, version, _ in loaded_libraries() if name == "libopenblas"}
        assert version[0].isdigit()
        assert "OpenBLAS" not in version


def test_facts_are_those_of_this_torch() -> None:
    import torch

    answer = facts()
    assert answer["torch"] == torch.__version__
    assert "PyTorch built with" in answer["show"]
    assert "ATen/Parallel" in answer["parallel"]


def test_primitives_belong_to_the_operator_that_executes_them(tmp_path: Path) -> None:
    import torch

    from torchyard.worker.why.service import attribution_of

    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    service = make_service(f"{write_file(tmp_path, 'net.py', PROGRAM)}:Net", variant("one"))
    service.warm("one", 0.0)
    primitives = attribution_of(service).software("one")["primitives"]
    assert {unit[6] for unit, *_ in primitives} <= {"convolution", "mkldnn_convolution"}
    assert "sort" not in {unit[6] for unit, *_ in primitives}
    for unit, _, implementation in primitives:
        assert unit[1] == "conv"
        assert implementation
