"""Kernels of Inductor are related to source operators, also when they come from the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.worker.why.net import write_net
from torchyard.worker.why.kernels import kernel_source

pytestmark = pytest.mark.torch

SCRIPT = """
import json, sys
from tests.worker.in_process_service import make_service, variant
from torchyard.worker.why.service import attribution_of

service = make_service(sys.argv[1] + ":Net", variant("one", "inductor"), mode=sys.argv[2])
attribution = attribution_of(service)
attribution.observe(0)
service.warm("one", 0.0)
why_not = attribution.sources("one")["kernels_why_not"]
answer = attribution.instrumented("one", 3)
names = [row[0] for row in answer["rows"] if row[0].startswith("cpp_")]
code = dict(attribution.kernel_code([*names, "cpp_missing"])["code"])
assert sorted(code) == sorted(set(names)), (names, list(code))
assert all("#pragma" in text or "kernel(" in text for text in code.values()), code

import torch._inductor.output_code as output_code
from torch._inductor.codecache import PyCodeCache
kernels = [v for m in PyCodeCache.modules for k, v in vars(m).items() if k.startswith("cpp_")]
restored = output_code.CompiledFxGraph.__call__.__name__ == "__call__" and not any(
    type(kernel).__name__ == "function" and kernel.__name__ == "call" for kernel in kernels
)
memory = attribution.memory("one")
print(json.dumps({"why_not": why_not, "rows": answer["rows"], "restored": restored, "memory": memory}))
"""


def profiled(folder: Path, mode: str = "inference") -> dict[str, Any]:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    (folder / "cache").mkdir(exist_ok=True)
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT, write_net(folder), mode],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=Path(__file__).parents[3],
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    answer: dict[str, Any] = json.loads(completed.stdout.splitlines()[-1])
    return answer


def sources(answer: dict[str, Any], prefix: str) -> set[tuple[str, str, str]]:
    return {
        (unit[0], unit[1], unit[6])
        for name, units, *_ in answer["rows"]
        if name.startswith(prefix)
        for unit in units
    }


def test_generated_kernels_and_library_calls(tmp_path: Path) -> None:
    for _ in range(2):  # compiled, then from the cache
        answer = profiled(tmp_path)
        assert answer["why_not"] == ""
        assert answer["restored"]
        assert ("forward", "blocks.*.norm", "native_layer_norm") in sources(answer, "cpp_")
        assert ("forward", "blocks.*", "sigmoid") in sources(answer, "cpp_")
        assert ("forward", "blocks.*.up", "addmm") in sources(answer, "aten::addmm")
        assert ("forward", "", "sort") in sources(answer, "aten::sort")
        moved = {row[-1] for row in answer["rows"] if row[0].startswith("cpp_fused_native_layer")}
        norm_bytes = 4 * (2 * 8 * 32 + 2 * 32)  # input, output, weight and bias
        assert max(moved) == pytest.approx(norm_bytes, rel=0.2)
        assert all(row[-1] == 0 for row in answer["rows"] if not row[0].startswith("cpp_"))
        allocated = {name: size for name, _, size in answer["memory"]["sites"]}
        assert sum(allocated.values()) == answer["memory"]["peak_bytes"] >= 4 * 8 * 32
        assert set(allocated) - {""}, allocated


def test_code_of_a_triton_kernel() -> None:
    text = """
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
import triton
def triton_poi_fused_add_0(in_ptr0):
    pass
''', device_str='cuda')

triton_poi_fused_add_1 = async_compile.triton('triton_poi_fused_add_1', '''
other
''', device_str='cuda')
"""
    assert kernel_source(text, "triton_poi_fused_add_0").endswith("(in_ptr0):\n    pass")
    assert kernel_source(text, "triton_poi_fused_add_1") == "other"
    assert kernel_source(text, "triton_poi_fused_add") == ""


def test_the_backward_graph(tmp_path: Path) -> None:
    answer = profiled(tmp_path, "training")
    assert ("backward", "blocks.*.norm", "native_layer_norm_backward") in sources(answer, "cpp_")
    assert ("backward", "blocks.*.up", "mm") in sources(answer, "aten::")
