"""Candidates that break text generation: other tokens, a damaged cache, a cache that overflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.worker.in_process_service import make_service, variant, write_file

pytestmark = pytest.mark.torch

GPT = {"layers": 2, "width": 32, "heads": 4, "vocabulary": 97, "prompt": 7, "generate": 5}
LLAMA = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "prompt": 7,
    "generate": 5,
}
CANDIDATES = """
    import torch

    class Step(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    class SameStep(Step):
        def forward(self, tokens, start, *cache):
            return self.module(tokens, start, *cache)

    class LaterStep(Step):
        # Right at the timed position, and wrong at all later ones.
        def forward(self, tokens, start):
            logits = self.module(tokens, start)
            return logits if int(start) < 9 else logits.flip(-1)

    class FixedPosition(Step):
        # As if the position had been compiled in as a constant.
        def forward(self, tokens, start):
            return self.module(tokens, torch.full_like(start, 7))

    class OtherPlace(Step):
        # The logits are right; keys and values are written one place too late.
        def forward(self, tokens, start):
            logits = self.module(tokens, start)
            keys = self.module.keys_0
            keys[:, :, 8] = keys[:, :, 7]
            return logits

    class NoCache(Step):
        # The logits are right, but the cache is not written.
        def forward(self, tokens, start):
            before = [buffer.clone() for buffer in self.module.buffers()]
            logits = self.module(tokens, start)
            for buffer, old in zip(self.module.buffers(), before):
                buffer.copy_(old)
            return logits

    class NanLater(Step):
        def forward(self, tokens, start):
            logits = self.module(tokens, start)
            return logits if int(start) < 10 else logits * float("nan")
"""
WRONG = ["LaterStep", "FixedPosition", "OtherPlace", "NoCache", "NanLater"]


@pytest.fixture
def candidates(tmp_path: Path) -> str:
    return write_file(tmp_path, "candidates.py", CANDIDATES)


def checked(backend: str, workload: str = "models/gpt", **more: Any) -> dict[str, Any]:
    parameters = more.pop("parameters", GPT)
    service = make_service(
        workload,
        variant("base"),
        variant("mine", backend),
        mode="decode",
        batch_size=2,
        parameters={**parameters, **more},
    )
    service.reference("base", "", keep=True)
    return dict(service.judge("mine", ""))


@pytest.mark.parametrize("static", [1, 0])
@pytest.mark.parametrize(
    ("workload", "parameters"), [("models/gpt", GPT), ("huggingface/LlamaForCausalLM", LLAMA)]
)
def test_the_same_step_passes(
    candidates: str, workload: str, parameters: dict[str, int], static: int
) -> None:
    if workload.startswith("huggingface"):
        pytest.importorskip("transformers")
    record = checked(candidates + ":SameStep", workload, parameters=parameters, static=static)
    assert record["status"] == "pass"
    if static:
        assert "generates the same 5 tokens as the baseline" in record["notes"]


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_step_is_wrong(candidates: str, name: str) -> None:
    assert checked(f"{candidates}:{name}")["status"] == "fail"


def test_a_step_that_is_right_at_the_timed_position_only_is_named(candidates: str) -> None:
    record = checked(candidates + ":LaterStep")
    assert "after 2 equal generated tokens, the logits differ by" in record["detail"]


def test_close_logits_that_give_another_token_are_not_wrong() -> None:
    import torch

    from torchyard.worker.suites.generation import compare_streams, stream_problem

    near, far = torch.tensor([[0.0, 3.0, 2.999]]), torch.tensor([[0.0, 3.0, 2.0]])
    other = torch.tensor([[0.0, 2.999, 3.0]])
    baseline, candidate = [(torch.tensor([1]), near)], [(torch.tensor([2]), other)]
    assert "another token" in compare_streams(baseline, candidate)
    assert stream_problem(baseline, candidate, "float32") == ""
    assert stream_problem([(torch.tensor([1]), far)], candidate, "float32")
    nan = [(torch.tensor([1]), near * float("nan"))]
    assert stream_problem(baseline, nan, "float32")
    # After different tokens, the texts differ: nothing can be compared.
    later = [(torch.tensor([1]), near), (torch.tensor([0]), far)]
    unlike = [(torch.tensor([2]), other), (torch.tensor([0]), -far)]
    assert stream_problem(later, unlike, "float32") == ""


@pytest.mark.parametrize(
    ("workload", "parameters"), [("models/gpt", GPT), ("huggingface/LlamaForCausalLM", LLAMA)]
)
def test_a_full_cache_raises_and_is_not_overwritten(
    workload: str, parameters: dict[str, int]
) -> None:
    import torch

    from torchyard.worker import suites

    if workload.startswith("huggingface"):
        pytest.importorskip("transformers")
    suite, name = workload.split("/")
    built = suites.build(suite, name, "decode", 2, dict(parameters))
    step, (token, start) = built.module, built.args
    with torch.no_grad():
        step(token, start + 4)  # the last place
        before = [buffer.clone() for buffer in step.buffers(recurse=False)]
        assert before
        for offset in (5, 6, 1000):
            with pytest.raises((IndexError, RuntimeError)):
                step(token, start + offset)
        now = list(step.buffers(recurse=False))
    assert all(torch.equal(one, other) for one, other in zip(now, before, strict=True))


def test_tokens_are_compared_in_bfloat16(candidates: str) -> None:
    service = make_service(
        "models/gpt",
        variant("base"),
        variant("mine", precision="bfloat16"),
        mode="decode",
        parameters=GPT,
    )
    service.reference("base", "", keep=True)
    record = service.judge("mine", "")
    assert record["status"] in ("pass", "less-accurate")
    assert "generates the same 5 tokens as the baseline" in record["notes"]
