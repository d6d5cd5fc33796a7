"""The kernel of an attention option is the one that runs; where it cannot, there is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker.in_process_service import make_service, variant, write_file

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
]

SMALL = {"layers": 1, "width": 32, "heads": 4, "vocabulary": 97}
OWN = {
    "transformer-encoder": {**SMALL, "length": 8},
    "gpt": {**SMALL, "length": 8},
    "speech": {**SMALL, "mels": 8, "frames": 20, "length": 8},
    "diffusion": {"size": 8, "width": 16, "depth": 1, "length": 7, "context": 12},
    "vision-language": {**SMALL, "size": 32, "length": 8},
}


def first_call(workload: str, backend: str = "eager", **more: Any) -> Any:
    chosen = more.pop("chosen", {})
    mine = variant("mine", backend)
    mine["options"] = list(chosen.items())
    service = make_service(workload, variant("base"), mine, **more)
    service.runner("mine").first_call()
    return service


@pytest.mark.parametrize("kernel", ["math", "flash"])
def test_the_named_kernel_runs(kernel: str) -> None:
    from torchyard.worker.bench.torch_settings import kernels_of

    service = first_call("models/gpt", chosen={"attention": kernel}, parameters=OWN["gpt"])
    runner = service.runner("mine")
    with runner.context():
        assert kernels_of(runner.function, runner.model.args, {}) == {kernel}


@pytest.mark.parametrize("kernel", ["efficient", "cudnn"])
def test_a_kernel_that_the_cpu_lacks_is_refused(kernel: str) -> None:
    from torchyard.worker.workload import CannotBuild

    with pytest.raises(CannotBuild, match=f"no attention kernel '{kernel}'") as error:
        first_call("models/gpt", chosen={"attention": kernel}, parameters=OWN["gpt"])
    assert "attention=math" in error.value.hint


@pytest.mark.parametrize("kernel", ["math", "flash"])
def test_a_workload_without_attention_is_refused(kernel: str) -> None:
    from torchyard.worker.workload import CannotBuild

    with pytest.raises(CannotBuild, match="does not call scaled_dot_product_attention"):
        first_call("kernels/matmul", chosen={"attention": kernel}, parameters={"size": 20})


STUBBORN = """
    import torch
    from torch import nn
    from torch.nn.attention import SDPBackend, sdpa_kernel

    class Stubborn(nn.Module):
        # Selects its own kernel, whatever the settings of the variant are.
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            with sdpa_kernel(SDPBackend.MATH):
                return self.scale * nn.functional.scaled_dot_product_attention(x, x, x)

    class Net:
        def module(self):
            return Stubborn()

        def inputs(self):
            return torch.randn(1, 2, 16, 8)
"""


def test_a_model_that_selects_another_kernel_is_detected(tmp_path: Path) -> None:
    from torchyard.worker.workload import CannotBuild

    path = write_file(tmp_path, "stubborn.py", STUBBORN) + ":Net"
    first_call(path, chosen={"attention": "math"})
    with pytest.raises(CannotBuild, match="attention=flash, but the workload runs the kernel math"):
        first_call(path, chosen={"attention": "flash"})


@pytest.mark.slow
@pytest.mark.parametrize("kernels", [("flash", "math"), ("math", "flash")])
def test_compiled_variants_share_no_kernels_through_caches(kernels: tuple[str, str]) -> None:
    """The caches of AOTAutograd and Inductor do not distinguish the enabled attention kernels."""
    from torchyard.worker.bench.torch_settings import kernels_of

    variants = [variant(kernel, "inductor", attention=kernel) for kernel in kernels]
    parameters = {**SMALL, "prompt": 7, "generate": 5}
    service = make_service("models/gpt", *variants, mode="decode", parameters=parameters)
    for kernel in kernels:
        runner = service.runner(kernel)
        runner.first_call()
        with runner.context():
            fused = kernels_of(runner.function, runner.model.args, {}) - {"math"}
        assert fused == ({kernel} - {"math"})


def test_compiled_code_with_another_kernel_is_detected() -> None:
    from torchyard.worker.bench.torch_settings import require_no_other
    from torchyard.worker.workload import CannotBuild

    service = make_service("models/gpt", variant("base"), parameters=OWN["gpt"])
    runner = service.runner("base")
    with runner.context():
        require_no_other("flash", runner.function, runner.model.args, {})
        with pytest.raises(CannotBuild, match="the compiled code runs the kernel flash"):
            require_no_other("math", runner.function, runner.model.args, {})


@pytest.mark.parametrize("name", OWN)
def test_flex_attention_gives_the_same_results(name: str) -> None:
    from torchyard.worker.bench.torch_settings import kernels_of

    service = make_service(
        f"models/{name}", variant("base"), variant("mine", attention="flex"), parameters=OWN[name]
    )
    service.reference("base", "", keep=True)
    record = service.judge("mine", "")
    assert record["status"] == "pass"
    assert record["max_error"] > 0 or "bitwise" in record["method"]
    base, mine = service.runner("base"), service.runner("mine")
    with mine.context():
        assert kernels_of(base.function, base.model.args, {}) == {"flash"}
        assert kernels_of(mine.function, mine.model.args, {}) == set()


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("static", [1, 0])
def test_flex_attention_generates_the_same_text(mode: str, static: int) -> None:
    parameters = {**SMALL, "prompt": 7, "generate": 5, "static": static}
    service = make_service(
        "models/gpt",
        variant("base"),
        variant("mine", attention="flex"),
        mode=mode,
        parameters=parameters,
    )
    service.reference("base", "", keep=True)
    record = service.judge("mine", "")
    assert record["status"] == "pass"
    if mode == "decode" and static:
        assert "generates the same 5 tokens as the baseline" in record["notes"]


def test_a_module_with_flex_attention_follows_changed_weights() -> None:
    service = make_service(
        "models/gpt", variant("base"), variant("mine", attention="flex"), parameters=OWN["gpt"]
    )
    base, mine = service.runner("base"), service.runner("mine")
    shared = zip(mine.own_module.parameters(), base.model.module.parameters(), strict=True)
    assert all(one is other for one, other in shared)
    assert not mine.own_weights
    kernels = {getattr(part, "attention_kernel", None) for part in base.model.module.modules()}
    assert "flex" not in kernels  # the baseline's module is unchanged


def test_a_model_whose_attention_cannot_be_replaced_is_refused() -> None:
    from torchyard.worker.workload import CannotBuild

    service = make_service("models/lstm", variant("base"), variant("mine", attention="flex"))
    with pytest.raises(CannotBuild, match="no attention that can be replaced"):
        service.runner("mine")


def test_flex_attention_that_inductor_cannot_compile_is_refused() -> None:
    import torch

    from torchyard.worker.workload import CannotBuild

    if torch.cpu._is_avx2_supported():
        pytest.skip("this CPU has AVX2")
    service = make_service(
        "models/gpt",
        variant("base"),
        variant("mine", "inductor", attention="flex"),
        parameters=OWN["gpt"],
    )
    with pytest.raises(CannotBuild, match="AVX2"):
        service.runner("mine")


@pytest.mark.parametrize("options", [[["attention", "flex"]], [["weights", "int8"]]])
def test_changed_modules_do_not_apply_to_scripts_and_reduced_programs(
    options: list[list[str]],
) -> None:
    from torchyard.worker.reduce.service import ReductionService
    from torchyard.worker.training_script.modules import AppliedVariant
    from torchyard.worker.workload import CannotBuild

    mine = {"name": "mine", "backend": "eager", "precision": "float32", "options": options}
    with pytest.raises(CannotBuild, match="does not apply to a script"):
        AppliedVariant(mine)
    service = make_service("models/gpt", variant("base"), mine, parameters=OWN["gpt"])
    with pytest.raises(CannotBuild, match="a reduced program has none"):
        ReductionService(service).measure("time", "base", "mine", [], [], 1)
