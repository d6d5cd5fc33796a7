"""Settings of a variant: set around its calls, restored afterwards, invisible to other variants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.in_process_service import make_service, variant, write_file
from torchyard.worker.workload import CannotBuild

pytestmark = pytest.mark.torch

# Its output says what torch was set to when it was called.
WITNESS = """
    import torch
    from torch import nn

    class Witness(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            precision = {"highest": 0, "high": 1, "medium": 2}
            state = [
                precision[torch.get_float32_matmul_precision()],
                int(torch.are_deterministic_algorithms_enabled()),
                int(torch.is_inference_mode_enabled()),
                int(torch.backends.cudnn.benchmark),
                int(torch.backends.cuda.flash_sdp_enabled()),
                int(torch._C._get_mkldnn_enabled()),
                int(self.conv.weight.is_contiguous(memory_format=torch.channels_last)),
                int(x.is_contiguous(memory_format=torch.channels_last)),
            ]
            return torch.tensor(state), self.conv(x)

        def example_inputs(self):
            return (torch.randn(2, 3, 8, 8),)
"""


@pytest.fixture(autouse=True)
def onednn() -> Iterator[None]:
    """On, whatever tests before this one in the process have left."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(True)
    yield
    torch._C._set_mkldnn_enabled(before)


PLAIN = [0, 0, 0, 0, 1, 1, 0, 0]


@pytest.fixture
def witness(tmp_path: Path) -> str:
    return write_file(tmp_path, "witness.py", WITNESS)


def seen(service: Any, name: str) -> list[int]:
    runner = service.runner(name)
    with runner.context():
        state: list[int] = runner.caller()()[0].tolist()
    return state


@pytest.mark.parametrize(
    ("options", "place", "value"),
    [
        ({"matmul_precision": "medium"}, 0, 2),
        ({"deterministic": True}, 1, 1),
        ({"inference_mode": True}, 2, 1),
        ({"cudnn_benchmark": True}, 3, 1),
        ({"attention": "math"}, 4, 0),
        ({"no_onednn": True}, 5, 0),
    ],
)
def test_flag_applies_to_its_variant_only(
    witness: str, options: dict[str, Any], place: int, value: int
) -> None:
    service = make_service(witness, variant("plain"), variant("own", **options))
    expected = list(PLAIN)
    expected[place] = value
    assert seen(service, "plain") == PLAIN
    assert seen(service, "own") == expected
    assert seen(service, "plain") == PLAIN
    assert service.runner("own").model is service.runner("plain").model


def test_disabled_onednn_does_not_affect_other_variants(witness: str) -> None:
    """Torch does so for the whole process when oneDNN refuses a product."""
    service = make_service(witness, variant("plain"), variant("own", precision="bfloat16"))
    with service.runner("own").context():
        torch._C._set_mkldnn_enabled(False)
    assert seen(service, "plain") == PLAIN
    with service.runner("own").context():
        assert not torch._C._get_mkldnn_enabled()
    assert torch._C._get_mkldnn_enabled()


def test_flags_are_restored_after_an_error(tmp_path: Path) -> None:
    code = "def make():\n    import torch\n    return (lambda x: 1 / 0), torch.ones(3)\n"
    service = make_service(write_file(tmp_path, "bad.py", code), variant("own", deterministic=True))
    with pytest.raises(ZeroDivisionError):
        service.warm("own", 0.1)
    assert not torch.are_deterministic_algorithms_enabled()


def test_tf32_is_set_and_restored(witness: str) -> None:
    runner = make_service(witness, variant("own", tf32=True)).runner("own")
    before = torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()
    with runner.context():
        assert torch._C._get_cublas_allow_tf32()
        assert torch._C._get_cudnn_allow_tf32()
    assert (torch._C._get_cublas_allow_tf32(), torch._C._get_cudnn_allow_tf32()) == before


def test_channels_last_has_a_model_of_its_own_with_the_same_numbers(witness: str) -> None:
    service = make_service(witness, variant("plain"), variant("own", channels_last=True))
    assert seen(service, "own")[-2:] == [1, 1]
    assert seen(service, "plain") == PLAIN
    plain, own = service.runner("plain").model, service.runner("own").model
    assert plain.module is not own.module
    assert torch.equal(plain.module.conv.weight, own.module.conv.weight)
    service.reseat(3, "pages")
    assert seen(service, "own")[-2:] == [1, 1]


def test_volumes_have_their_channels_last_too(tmp_path: Path) -> None:
    code = """
        import torch
        def make():
            return torch.nn.Conv3d(2, 3, 3), torch.randn(1, 2, 6, 6, 6)
    """
    service = make_service(
        write_file(tmp_path, "v.py", code), variant("a"), variant("b", channels_last=True)
    )
    model = service.runner("b").model
    for tensor in (model.module.weight, model.args[0]):
        assert tensor.is_contiguous(memory_format=torch.channels_last_3d)
    path = str(tmp_path / "reference.pt")
    service.reference("a", path)
    assert service.judge("b", path)["status"] == "pass"


@pytest.mark.parametrize(
    ("mine", "mode", "words"),
    [
        (variant("b", channels_last=True), "inference", "four or five dimensions"),
        (variant("b", inference_mode=True), "training", "supports inference only"),
        (variant("b", dynamic=True), "inference", "requires a torch.compile backend"),
        (variant("b", nonsense=True), "inference", "no option 'nonsense'"),
        (variant("b", "inductor", inductor__freezin=True), "inference", "no setting 'freezin'"),
        (variant("b", "inductor", inductor__freezing=3), "inference", "has another type"),
    ],
)
def test_invalid_option_fails_only_its_variant(
    tmp_path: Path, mine: dict[str, Any], mode: str, words: str
) -> None:
    code = """
        import torch
        def make():
            return torch.nn.Linear(4, 4), torch.randn(2, 4), lambda output: output.sum()
    """
    service = make_service(write_file(tmp_path, "l.py", code), variant("a"), mine, mode=mode)
    service.runner("a").first_call()
    with pytest.raises(CannotBuild, match=words):
        service.warm("b", 0.1)


def test_a_setting_of_the_compiler_is_there_while_it_compiles(
    net_backend: str, witness: str
) -> None:
    from torch._inductor import config

    before = config.freezing
    service = make_service(witness, variant("own", net_backend, inductor__freezing=True))
    runner = service.runner("own")
    with runner.context():
        assert config.freezing is True
    assert config.freezing is before


@pytest.fixture
def net_backend(tmp_path: Path) -> str:
    return write_file(tmp_path, "mine.py", "def make(module):\n    return module\n") + ":make"


BATCHED = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, batch_size=6):
            super().__init__()
            self.rows = batch_size
            self.line = nn.Linear(4, 4)

        def forward(self, x):
            return self.line(x).relu()

        def example_inputs(self):
            return (torch.randn(self.rows, 4),)

        def loss(self, output):
            return output.square().mean()
"""


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_other_batch_sizes_are_tried_beside_what_is_timed(tmp_path: Path, mode: str) -> None:
    path = write_file(tmp_path, "batched.py", BATCHED)
    static = variant("static", "dynamo:eager", other_batch=True)
    dynamic = variant("dynamic", "dynamo:eager", dynamic=True)
    service = make_service(path, static, dynamic, mode=mode, batch_size=6)
    metrics = {name: service.measure(name) for name in ("static", "dynamic")}
    assert metrics["static"]["tried_batches"] == metrics["dynamic"]["tried_batches"] == [3, 9]
    # The first other size makes dynamo compile for any size, which then fits the second.
    assert metrics["static"]["recompiles"] == 1
    assert metrics["static"]["recompile_reasons"][0][0].startswith("batch size 3: ")
    assert metrics["dynamic"]["recompiles"] == 0
    assert service.runner("static").recompiles == 0


def test_without_a_batch_size_the_trial_says_why(tmp_path: Path) -> None:
    code = "import torch\ndef make():\n    return torch.nn.Linear(4, 4), torch.randn(2, 4)\n"
    service = make_service(
        write_file(tmp_path, "l.py", code), variant("a", "dynamo:eager", other_batch=True)
    )
    metrics = service.measure("a")
    assert ["recompiles", "the workload has no batch size"] in metrics["unavailable"]


def test_failing_batch_size_is_reported(tmp_path: Path) -> None:
    code = BATCHED.replace("return self.line(x).relu()", "return self.line(x[:6].view(6, 4))")
    runner = variant("a", "dynamo:eager", dynamic=True)
    service = make_service(write_file(tmp_path, "fixed.py", code), runner, batch_size=6)
    metrics = service.measure("a")
    assert metrics["tried_batches"] == [9]
    ((_, reason),) = [item for item in metrics["unavailable"] if item[0] == "recompiles"]
    assert reason.startswith("batch size 3 failed: ")


def test_recompilations_have_reasons(tmp_path: Path) -> None:
    code = """
        import torch
        class Counting(torch.nn.Module):
            count = 0
            def forward(self, x):
                self.count += 1
                return x * self.count
        def make():
            return Counting(), torch.ones(4)
    """
    runner = make_service(write_file(tmp_path, "c.py", code), variant("a", "dynamo:eager")).runner(
        "a"
    )
    before = runner.recompiles
    assert before is None
    runner.first_call()
    assert runner.recompiles == 0
    with runner.context():
        call = runner.caller()
        for _ in range(3):
            call()
    assert runner.recompiles >= 1
    assert any("count" in reason for reason in runner.recompile_reasons)
