"""The option `eager-kernel`: Inductor calls the eager kernel, only for the variant that has it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.worker.in_process_service import make_service, variant
from tests.worker.why.net import write_net
from torchyard.worker.bench.options import BadOption, parse, why_not
from torchyard.worker.bench.torch_settings import eager_kernels, overloads_of
from torchyard.worker.workload import CannotBuild

pytestmark = pytest.mark.torch


def test_names_of_operators() -> None:
    assert torch.ops.aten.gelu.default in overloads_of("gelu")
    with pytest.raises(CannotBuild, match="no operator aten::wibble"):
        overloads_of("gelu,wibble")
    assert parse("eager-kernel=gelu,sort") == ("eager-kernel", "gelu,sort")
    with pytest.raises(BadOption, match="has no value"):
        parse("eager-kernel")


@pytest.mark.parametrize("backend", ["eager", "dynamo:aot_eager"])
def test_other_backends_are_refused(backend: str) -> None:
    assert "requires Inductor" in why_not("eager-kernel", backend)
    assert why_not("eager-kernel", "inductor") == ""


def test_tables_of_inductor_are_restored() -> None:
    from torch._inductor import decomposition, lowering

    overloads = overloads_of("native_layer_norm,sin")
    tables = (decomposition.decompositions, decomposition.select_decomp_table(), lowering.lowerings)
    before = [{one: table.get(one) for one in overloads} for table in tables]
    fallbacks = set(lowering.fallbacks)
    with eager_kernels("native_layer_norm,sin"):
        assert not any(one in tables[0] for one in overloads)
        assert torch.ops.aten.sin.default in lowering.fallbacks
    assert [{one: table.get(one) for one in overloads} for table in tables] == before
    assert set(lowering.fallbacks) == fallbacks


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_code_calls_the_eager_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.codecache import PyCodeCache

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    kept = variant("kept", "inductor", eager_kernel="native_layer_norm,sigmoid")
    service = make_service(f"{write_net(tmp_path)}:Net", kept, variant("plain", "inductor"))
    calls = {}
    for name in ("kept", "plain"):
        known = len(PyCodeCache.modules)
        service.warm(name, 0.0)
        code = "".join(Path(one.__file__).read_text() for one in PyCodeCache.modules[known:])
        calls[name] = {
            operator: f"aten.{operator}.default(" in code
            for operator in ("native_layer_norm", "sigmoid")
        }
    assert calls["kept"] == {"native_layer_norm": True, "sigmoid": True}
    assert calls["plain"] == {"native_layer_norm": False, "sigmoid": False}
    outputs = [service.runner(name).caller()() for name in ("kept", "plain")]
    torch.testing.assert_close(*outputs)
