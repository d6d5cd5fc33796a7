"""Text generation: the phases compute what the whole model computes, and refuse what they cannot do."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.torch

SMALL = {"layers": 2, "width": 32, "heads": 4, "vocabulary": 97}
LLAMA = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
}
MODELS = {
    "models/gpt": SMALL,
    "huggingface/LlamaForCausalLM": LLAMA,
    "huggingface/GPT2LMHeadModel": {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 97},
    "huggingface/OPTForCausalLM": {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "ffn_dim": 32,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 32,
        "vocab_size": 97,
    },
}


def build(label: str, mode: str, **more: Any) -> Any:
    import torch

    from torchyard.worker import suites

    torch.manual_seed(3)
    suite, name = label.split("/")
    parameters = {**MODELS.get(label, {}), "prompt": 7, "generate": 5, **more}
    return suites.build(suite, name, mode, 2, parameters)


def whole_text_logits(built: Any, tokens: Any) -> Any:
    """Logits of the last position, computed without any cache."""
    import torch

    phase = built.module
    if hasattr(phase, "gpt"):
        gpt = phase.gpt
        hidden = gpt.embedding(tokens) + gpt.positions[: tokens.shape[1]]
        return gpt.head(gpt.norm(gpt.blocks(hidden)))[:, -1:]
    with torch.no_grad():
        return phase.model(input_ids=tokens, use_cache=False).logits[:, -1:]


@pytest.mark.parametrize("static", [1, 0])
@pytest.mark.parametrize("label", list(MODELS))
def test_both_phases_agree_with_the_whole_model(label: str, static: int) -> None:
    import torch

    prefill = build(label, "prefill", static=static)
    decode = build(label, "decode", static=static)
    with torch.no_grad():
        prompt = prefill.args[0]
        outputs = [each.module(*each.args) for each in (prefill, decode)]
        first, second = ((one if static else one[0]) for one in outputs)
        token = decode.args[0]
        torch.testing.assert_close(first, whole_text_logits(prefill, prompt))
        assert torch.equal(token, first[:, -1].argmax(-1, keepdim=True))
        torch.testing.assert_close(
            second, whole_text_logits(decode, torch.cat([prompt, token], dim=1))
        )
        again = decode.module(*decode.args)
        assert torch.equal(second, again if static else again[0])
    assert prefill.module.training is False
    assert prefill.batch_size == decode.batch_size == 2


@pytest.mark.parametrize("label", ["models/gpt", "huggingface/LlamaForCausalLM"])
def test_a_stream_is_the_greedy_text_of_the_whole_model(label: str) -> None:
    import torch

    decode = build(label, "decode")
    with torch.no_grad():
        steps = decode.stream(decode.module)
        text = torch.cat([build(label, "prefill").args[0], decode.args[0]], dim=1)
        for token, _ in steps:
            expected = whole_text_logits(decode, text)[:, -1].argmax(-1)
            assert torch.equal(token, expected)
            text = torch.cat([text, expected[:, None]], dim=1)
    assert len(steps) == 5


def test_streams_differ_where_one_token_differs() -> None:
    import torch

    from torchyard.worker.suites.generation import compare_streams

    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.5]])
    first = (logits.argmax(-1), logits)
    other = (torch.tensor([1, 2]), logits)
    assert (
        compare_streams([first] * 4, [first] * 4) == "generates the same 4 tokens as the baseline"
    )
    text = compare_streams([first] * 4, [first, first, other, first])
    assert "at position 3 of 4" in text
    assert "differ by 0.5 of a range of 2 " in text


@pytest.mark.parametrize(
    ("label", "mode", "parameters", "message"),
    [
        ("huggingface/BertForMaskedLM", "decode", {"num_hidden_layers": 1}, "past_key_values"),
        ("huggingface/Gemma2ForCausalLM", "decode", {**LLAMA, "head_dim": 8}, "sliding window"),
        ("huggingface/LlamaForCausalLM", "decode", {"max_position_embeddings": 11}, "11 positions"),
        ("huggingface/LlamaForCausalLM", "inference", {}, "has no effect in mode inference"),
        ("models/gpt", "decode", {"length": 64}, "length has no effect"),
        ("models/gpt", "inference", {}, "has no effect in mode inference"),
        ("models/gpt", "decode", {"static": 2}, "invalid parameter static"),
        ("models/gpt", "prefill", {"prompt": 0}, "invalid parameter prompt"),
        ("models/lstm", "decode", {}, "does not support decode"),
        ("kernels/matmul", "prefill", {}, "does not support prefill"),
    ],
)
def test_what_cannot_generate_is_refused(
    label: str, mode: str, parameters: dict[str, Any], message: str
) -> None:
    from torchyard.worker.workload import CannotBuild

    with pytest.raises(CannotBuild, match=message) as error:
        build(label, mode, **parameters)
    assert error.value.hint


def test_a_model_that_reads_the_whole_text_is_refused() -> None:
    """With full attention, the keys of the prompt depend on the token that follows."""
    import torch

    from torchyard.worker.suites import generation, models
    from torchyard.worker.suites.choices import Choices
    from torchyard.worker.workload import CannotBuild

    class BothDirections(generation.GptPhase):
        def run_model(self, tokens: Any, start: Any, cache: Any) -> Any:
            logits, longer = super().run_model(tokens, start, cache)
            return logits + tokens.float().mean() * torch.linspace(0, 1, logits.shape[-1]), longer

    torch.manual_seed(0)
    lengths = generation.Lengths("models/gpt", {"prompt": 7, "generate": 5})
    gpt = models.Gpt(Choices("models/gpt", 2, {**SMALL, "length": 12}))
    with pytest.raises(CannotBuild, match="other results with a cache"):
        generation.build_phase(BothDirections(gpt, lengths), "decode", lengths, 2, 97, "cpu")
