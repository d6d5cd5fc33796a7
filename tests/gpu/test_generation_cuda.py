"""CUDA: attention kernels, flex attention and quantised weights of text generation.

Never run by `make test`; run by hand on a machine with a GPU: `python -m pytest -m gpu tests/gpu`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.in_process_service import make_service, variant

pytestmark = [pytest.mark.gpu, pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

GPT = {"layers": 2, "width": 256, "heads": 4, "vocabulary": 997}
LENGTHS = {"prompt": 64, "generate": 16}


def checked(service: Any, name: str) -> dict[str, Any]:
    service.reference("base", "", keep=True)
    return dict(service.judge(name, ""))


@pytest.mark.parametrize("kernel", ["math", "flash", "efficient", "cudnn"])
def test_the_named_kernel_runs_or_is_refused(kernel: str) -> None:
    """Flash attention and cuDNN support half precision only."""
    from torchyard.worker.bench.torch_settings import kernels_of
    from torchyard.worker.workload import CannotBuild

    service = make_service(
        "models/gpt",
        variant("half", precision="bfloat16", attention=kernel),
        variant("single", attention=kernel),
        device="cuda",
        parameters={**GPT, "length": 64},
    )
    half, single = service.runner("half"), service.runner("single")
    half.first_call()
    with half.context():
        assert kernels_of(half.function, half.model.args, {}) == {kernel}
    if kernel in ("flash", "cudnn"):
        with pytest.raises(CannotBuild, match="no attention kernel"):
            single.first_call()


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_compiled_flex_attention_gives_the_same_results(mode: str) -> None:
    service = make_service(
        "models/gpt",
        variant("base"),
        variant("mine", "inductor", attention="flex"),
        mode=mode,
        device="cuda",
        parameters={**GPT, **LENGTHS},
    )
    assert checked(service, "mine")["status"] == "pass"


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_quantised_weights_differ_by_design(backend: str) -> None:
    service = make_service(
        "models/gpt",
        variant("base"),
        variant("mine", backend, precision="bfloat16", weights="int8"),
        mode="decode",
        device="cuda",
        parameters={**GPT, **LENGTHS},
    )
    record = checked(service, "mine")
    assert record["status"] == "less-accurate"
    assert "changes results by design" in record["detail"]
