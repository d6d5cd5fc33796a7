"""The examples of wasted work: their waste is found, and current operators have none."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.worker.values.pattern_profiles import names, profile_patterns  # noqa: E402

pytestmark = pytest.mark.torch

EXAMPLES = Path(__file__).parents[2] / "examples" / "values"
HISTORIC = {
    "conv_auxiliary_buffer": ("fill_", "self.ones.resize_(rows * columns).fill_(1)"),
    "replication_pad_backward": ("zero_", "grad_input.zero_()"),
    "embedding_padding_row": ("masked_fill_", "rows.masked_fill_(is_padding, 0)"),
}


def run(name: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, *words])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", HISTORIC)
def test_a_historic_case_is_found_at_its_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operator, source = HISTORIC[name]
    found = profile_patterns(lambda: run(name, monkeypatch))
    assert names(found) == [("redundant write", operator)]
    place = found[0].place
    assert Path(place.file) == EXAMPLES / f"{name}.py"
    assert Path(place.file).read_text().splitlines()[place.line - 1].strip() == source


@pytest.mark.parametrize("deep", [False, True], ids=["fast", "deep"])
@pytest.mark.parametrize("name", HISTORIC)
def test_current_operators_have_no_finding(
    name: str, deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert names(profile_patterns(lambda: run(name, monkeypatch, "--today"), deep=deep)) == []


@pytest.mark.parametrize("name", HISTORIC)
def test_old_and_new_compute_the_same(name: str) -> None:
    module = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    torch.manual_seed(0)
    if name == "conv_auxiliary_buffer":
        old = module["OldConvolution"](3, 4, bias=True)
        new = torch.nn.Conv2d(3, 4, 3, padding=1)
        new.weight.data = old.weight.data.view(4, 3, 3, 3)
        new.bias.data = old.bias.data
        given = torch.randn(2, 3, 8, 8)
        torch.testing.assert_close(old(given), new(given), rtol=1e-4, atol=1e-5)
    elif name == "replication_pad_backward":
        weights = torch.randn(2, 3, 8, 9, 10)
        gradients = []
        for pad in (module["OldReplicationPad3d"].apply, torch.nn.ReplicationPad3d(2)):
            volume = torch.ones(2, 3, 4, 5, 6, requires_grad=True)
            (pad(volume) * weights).sum().backward()
            gradients.append(volume.grad)
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    else:
        old = module["OldEmbedding"](10, 4, padding_idx=0)
        words = torch.tensor([[1, 2, 0], [3, 0, 0]])
        assert torch.equal(old(words), torch.nn.functional.embedding(words, old.weight))


def test_the_residual_network_is_a_resnet_50() -> None:
    module = runpy.run_path(str(EXAMPLES / "resnet50_training.py"))
    with torch.device("meta"):
        network = module["ResNet50"]()
    assert sum(weight.numel() for weight in network.parameters()) == 25_557_032


@pytest.mark.slow
def test_the_residual_network_trains_without_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Batch norm fills its buffers twice when it is made: too rare to matter in four steps, not in two.
    words = ("--batch", "1", "--size", "64", "--steps", "4")
    assert names(profile_patterns(lambda: run("resnet50_training", monkeypatch, *words))) == []
    assert capsys.readouterr().out.count("loss ") == 4


@pytest.mark.slow
def test_the_language_model_has_a_sparse_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    words = ("--batch", "1", "--length", "32", "--layers", "1", "--steps", "2")
    found = profile_patterns(lambda: run("bert_training", monkeypatch, *words))
    assert ("sparse gradient", "embedding_dense_backward") in names(found)
