"""Source operators of eager code: phase, module, line and operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.in_process_service import make_service, variant
from tests.worker.why.net import write_net
from torchyard.worker.why.service import attribution_of
from torchyard.worker.why.sources import Unit, module_pattern, place_of_trace

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("", ""),
        ("L['self']", ""),
        ("L['self'].blocks.0.norm", "blocks.*.norm"),
        ("L['s'].blocks.12", "blocks.*"),
        ("blocks.3.norm2", "blocks.*.norm2"),
        ("0.weight", "*.weight"),
        ("L['self']._modules['blocks']._modules['0']", "blocks.*"),
        ("layer1.0", "layer1.*"),
    ],
)
def test_module_patterns(path: str, pattern: str) -> None:
    assert module_pattern(path) == pattern


def test_the_innermost_line_outside_of_torch_counts() -> None:
    import torch

    inside = str(Path(torch.__file__).parent / "nn" / "functional.py")
    trace = f'File "/a/net.py", line 3, in f\n  y = g(x)\nFile "{inside}", line 9, in g\n  pass\n'
    assert place_of_trace(trace) == ("/a/net.py", 3)
    assert place_of_trace("") == ("", 0)


def units_of(folder: Path, backend: str = "eager", mode: str = "inference") -> list[Unit]:
    chosen = backend if backend == "eager" else f"{write_net(folder)}:{backend}"
    service = make_service(
        f"{write_net(folder)}:Net", variant("one", chosen), mode=mode, step=mode == "training"
    )
    service.warm("one", 0.0)
    answer = attribution_of(service).sources("one")
    assert all(moved >= 0 for _, _, moved in answer["work"])
    return [Unit(*fields) for fields, _, _ in answer["work"]]


@pytest.mark.parametrize("backend", ["eager", "copied"])
def test_layers_of_equal_structure_are_one(tmp_path: Path, backend: str) -> None:
    units = {(one.module, one.operator): one for one in units_of(tmp_path, backend)}
    norm = units["blocks.*.norm", "native_layer_norm"]
    assert (norm.phase, norm.kind) == ("forward", "LayerNorm")
    assert norm.text == "h = self.norm(x)  # norm"
    assert Path(norm.file).name == "net.py"
    assert units["blocks.*", "sigmoid"].text.endswith("# add")
    assert units["", "mean"].text.endswith("# mean")


def test_backward_operators_belong_to_their_forward_module(tmp_path: Path) -> None:
    units = units_of(tmp_path, mode="training")
    backward = {(one.module, one.operator) for one in units if one.phase == "backward"}
    assert ("blocks.*.norm", "native_layer_norm_backward") in backward
    assert ("blocks.*", "sigmoid_backward") in backward
    assert ("blocks.*.up", "mm") in backward
    assert any(one.phase == "optimizer" for one in units)


def test_recording_leaves_no_hook_behind(tmp_path: Path) -> None:
    import torch

    units_of(tmp_path)
    module = torch.nn.modules.module
    assert not module._global_forward_pre_hooks
    assert not module._global_forward_hooks
