"""The suite huggingface: without the package, and with it where it is installed."""

import importlib.util
import subprocess
import sys
from typing import Any

import pytest

from torchyard.worker import suites
from torchyard.worker.workload import BuiltWorkload, CannotBuild, flatten

pytestmark = pytest.mark.torch
with_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed beside the tests",
)
quiet = pytest.mark.filterwarnings("default")  # what transformers warns about is not ours

BERT: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 200,
    "length": 16,
}
GPT2: dict[str, Any] = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 200, "length": 16}
T5: dict[str, Any] = {
    "num_layers": 1,
    "d_model": 32,
    "d_ff": 64,
    "d_kv": 16,
    "num_heads": 2,
    "vocab_size": 200,
    "length": 12,
}
BART: dict[str, Any] = {
    "encoder_layers": 1,
    "decoder_layers": 1,
    "d_model": 32,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "vocab_size": 200,
    "length": 12,
}
VIT: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
}
WAV2VEC2: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "length": 3000,
}
WHISPER = dict(BART, max_source_positions=20)
CLIP: dict[str, Any] = {
    f"{part}.{key}": value
    for part in ("text_config", "vision_config")
    for key, value in VIT.items()
    if (part, key) != ("text_config", "image_size")
}
TASKS = [
    ("BertForMaskedLM", BERT, {"input_ids": (2, 16)}, {"labels"}),
    ("BertForPreTraining", BERT, {"input_ids": (2, 16)}, {"labels", "next_sentence_label"}),
    (
        "BertForQuestionAnswering",
        BERT,
        {"input_ids": (2, 16)},
        {"start_positions", "end_positions"},
    ),
    ("BertForMultipleChoice", BERT, {"input_ids": (2, 4, 16)}, {"labels"}),
    ("BertForTokenClassification", BERT, {"input_ids": (2, 16)}, {"labels"}),
    ("BertForNextSentencePrediction", BERT, {"input_ids": (2, 16)}, {"labels"}),
    ("GPT2LMHeadModel", GPT2, {"input_ids": (2, 16)}, {"labels"}),
    ("GPT2ForSequenceClassification", GPT2, {"input_ids": (2, 16)}, {"labels"}),
    (
        "T5ForConditionalGeneration",
        T5,
        {"input_ids": (2, 12), "decoder_input_ids": (2, 12)},
        {"labels"},
    ),
    (
        "BartForSequenceClassification",
        BART,
        {"input_ids": (2, 12), "decoder_input_ids": (2, 12)},
        {"labels"},
    ),
    ("ViTForImageClassification", VIT, {"pixel_values": (2, 3, 32, 32)}, {"labels"}),
    ("Wav2Vec2ForCTC", WAV2VEC2, {"input_values": (2, 3000)}, {"labels"}),
    (
        "WhisperForConditionalGeneration",
        WHISPER,
        {"input_features": (2, 80, 40), "decoder_input_ids": (2, 12)},
        {"labels"},
    ),
    ("CLIPModel", CLIP, {"input_ids": (2, 77), "pixel_values": (2, 3, 32, 32)}, {"return_loss"}),
]


def made(
    name: str, mode: str, parameters: dict[str, Any], batch_size: int | None = 2
) -> BuiltWorkload:
    import torch

    torch.manual_seed(7)
    return suites.build("huggingface", name, mode, batch_size, parameters)


def refusal(name: str, mode: str = "inference", **parameters: Any) -> tuple[str, str]:
    with pytest.raises(CannotBuild) as caught:
        made(name, mode, parameters)
    return str(caught.value), caught.value.hint


def test_without_the_package() -> None:
    code = """
import sys
sys.modules["transformers"] = None
from torchyard.worker import suites
from torchyard.worker.workload import CannotBuild
try:
    suites.build("huggingface", "BertForMaskedLM")
except CannotBuild as error:
    print(error, error.hint, sep="|")
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    message, hint = completed.stdout.strip().split("|")
    assert message.startswith("transformers cannot be imported in the target")
    assert hint == "install transformers into the target"


@quiet
@with_transformers
@pytest.mark.parametrize(("name", "parameters", "shapes", "labels"), TASKS)
def test_tasks(
    name: str, parameters: dict[str, Any], shapes: dict[str, Any], labels: set[str]
) -> None:
    import torch

    inference = made(name, "inference", parameters)
    assert {key: tuple(value.shape) for key, value in inference.kwargs.items()} == shapes
    with torch.no_grad():
        output = flatten(inference.module(**inference.kwargs))
    assert all(bool(tensor.isfinite().all()) for tensor in output)

    training = made(name, "training", parameters)
    assert set(training.kwargs) == set(shapes) | labels
    assert training.loss is not None
    assert training.loss_name == "the model's own"
    first, second = (training.loss(training.module(**training.kwargs)) for _ in range(2))
    assert first.shape == ()
    # No dropout and no other chance: the same inputs give the same loss in training too.
    assert float(first.detach()) == float(second.detach())
    first.backward()
    gradients = [p.grad for p in training.module.parameters() if p.grad is not None]
    assert any(float(gradient.abs().max()) > 0 for gradient in gradients)


@quiet
@with_transformers
def test_dropout_is_off_before_the_model_is_built() -> None:
    import torch

    for name, parameters in (("BertForMaskedLM", BERT), ("CLIPModel", CLIP)):
        module = made(name, "training", parameters).module
        chances = [each.p for each in module.modules() if isinstance(each, torch.nn.Dropout)]
        assert all(chance == 0.0 for chance in chances)
    config = made("BertForMaskedLM", "training", BERT).module.config
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.0
    wished = made("BertForMaskedLM", "training", {**BERT, "hidden_dropout_prob": 0.25})
    assert wished.module.config.hidden_dropout_prob == 0.25


@quiet
@with_transformers
def test_parameters_reach_the_configuration_under_either_name() -> None:
    for key in ("n_layer", "num_hidden_layers"):
        parameters = {k: v for k, v in GPT2.items() if k != "n_layer"} | {key: 3}
        module = made("GPT2LMHeadModel", "inference", parameters).module
        assert len(module.transformer.h) == 3
        assert module.config.use_cache is False


@quiet
@with_transformers
def test_tokens_avoid_the_special_ones() -> None:
    built = made("RobertaForMaskedLM", "inference", {**BERT, "vocab_size": 8, "length": 200})
    tokens = set(built.kwargs["input_ids"].unique().tolist())
    assert tokens == set(range(8)) - {0, 1, 2}


@quiet
@with_transformers
def test_lengths_by_family_and_by_positions() -> None:
    small = {key: value for key, value in BERT.items() if key != "length"}
    for name, parameters, length in (
        ("BertModel", {}, 512),
        ("BertModel", {"max_position_embeddings": 60}, 60),
        ("RobertaModel", {}, 510),
        ("LlamaForCausalLM", {"num_key_value_heads": 1}, 128),
    ):
        built = made(name, "inference", {**small, **parameters}, None)
        assert tuple(built.kwargs["input_ids"].shape) == (1, length)


@quiet
@with_transformers
def test_refusals() -> None:
    message, hint = refusal("BertForMaskLM")
    assert "has no model class 'BertForMaskLM'; did you mean" in message
    assert "BertForMaskedLM" in message
    assert "such as BertForMaskedLM" in hint
    for name in ("BertConfig", "pipeline", "os", "__name__", "BertPreTrainedModel"):
        assert f"has no model class {name!r}" in refusal(name)[0]

    message, hint = refusal("BertForMaskedLM", hidden_sizes=32)
    assert "has no parameter 'hidden_sizes'; did you mean hidden_size" in message
    assert "num_hidden_layers" in hint

    message, hint = refusal("BertForMaskedLM", hidden_size="large")
    assert message == "invalid parameter hidden_size of huggingface/BertForMaskedLM: 'large'"
    assert "768" in hint

    message, hint = refusal("BertForMaskedLM", length=513)
    assert "fewer positions than a length of 513" in message
    assert "at most 512" in hint
    assert "BertForMaskedLM: 0" in refusal("BertForMaskedLM", length=0)[0]

    message, hint = refusal("BertForMaskedLM", hidden_size=30, num_attention_heads=4)
    assert "does not accept" in message
    message, hint = refusal("BertModel", "training", **BERT)
    assert "does not support training" in message
    assert "BertForMaskedLM" in hint


@with_transformers
def test_the_list_holds_models_only() -> None:
    names = suites.names("huggingface")
    assert {"BertForMaskedLM", "GPT2LMHeadModel", "T5ForConditionalGeneration"} <= set(names)
    assert not {"BertConfig", "AutoModel", "BertPreTrainedModel", "BertTokenizer"} & set(names)
