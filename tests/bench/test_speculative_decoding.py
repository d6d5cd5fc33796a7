"""The example of speculative decoding: the same tokens in fewer passes of the whole model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import call
from torchyard.core.comparison import AccuracyStatus, Verdict
from torchyard.results.run_reader import read_run

pytestmark = [pytest.mark.long, pytest.mark.torch]

EXAMPLE = Path(__file__).parents[2] / "examples/speculative_decoding.py"


@pytest.fixture
def example() -> Any:
    spec = importlib.util.spec_from_file_location("speculative_decoding", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tokens_are_the_same_in_fewer_passes(example: Any) -> None:
    import torch

    torch.manual_seed(0)
    greedy, speculative = example.GreedyDecoding().eval(), example.SpeculativeDecoding().eval()
    speculative.load_state_dict(greedy.state_dict())
    passes = []
    speculative.decoder.layers[-1].register_forward_hook(lambda *_: passes.append(1))
    prompt = torch.randint(example.VOCABULARY, (1, example.PROMPT))
    with torch.no_grad():
        expected, text = greedy(prompt), speculative(prompt)
    assert torch.equal(text, expected)
    assert text.shape == (1, example.GENERATED)
    assert len(passes) < example.GENERATED  # one for each token without a draft


def test_a_draft_that_is_always_wrong_gives_the_same_tokens(example: Any) -> None:
    import torch

    torch.manual_seed(0)
    greedy, speculative = example.GreedyDecoding().eval(), example.SpeculativeDecoding().eval()
    speculative.load_state_dict(greedy.state_dict())
    decoder, passes = speculative.decoder, []
    whole = decoder.choose

    def choose(tokens: Any, start: int, cache: Any, layers: int = example.LAYERS) -> Any:
        chosen = whole(tokens, start, cache, layers)
        if layers < example.LAYERS:
            return (chosen + 1) % example.VOCABULARY
        passes.append(1)
        return chosen

    decoder.choose = choose
    prompt = torch.randint(example.VOCABULARY, (1, example.PROMPT))
    with torch.no_grad():
        assert torch.equal(speculative(prompt), greedy(prompt))
    assert len(passes) >= example.GENERATED / 2


def test_the_command_in_its_documentation_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert f"torchyard bench examples/{EXAMPLE.name}:Greedy" in EXAMPLE.read_text("utf-8")
    folder = tmp_path / "run"
    files = [f"{EXAMPLE}:Greedy", f"{EXAMPLE}:Speculative"]
    limits = ("--time", "5s", "--launches", "1", "--threads", "1")
    call(capsys, "bench", *files, *limits, "--run-dir", str(folder), "-q")
    (row,) = read_run(folder).comparisons
    assert row.verdict not in (Verdict.FAILED, Verdict.WRONG)
    assert row.accuracy is not None
    assert row.accuracy.status is AccuracyStatus.PASS
