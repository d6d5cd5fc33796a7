"""The list of the suite huggingface: every model is built, run and trained in a small size."""

import importlib.util
from typing import Any

import pytest

from torchyard.worker import catalog, suites
from torchyard.worker.catalog.huggingface_models import (
    BY_NAME,
    HUGGINGFACE,
    MODELS,
    HuggingFaceModel,
)
from torchyard.worker.workload import CannotBuild, flatten

with_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None,
    reason="transformers is not installed beside the tests",
)
quiet = pytest.mark.filterwarnings("default")  # what transformers warns about is not ours
every = pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])

# Keys of configurations with values so small that a model takes milliseconds.
SMALL: dict[str, int] = {
    "attention_heads": 4,
    "attention_window": 8,
    "d_ff": 96,
    "d_inner": 96,
    "d_kv": 16,
    "d_model": 64,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "decoder_layers": 2,
    "dim": 64,
    "embedding_size": 64,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "encoder_layers": 2,
    "ffn_dim": 96,
    "head_dim": 16,
    "hidden_dim": 96,
    "hidden_size": 64,
    "image_size": 28,
    "intermediate_size": 96,
    "intra_bottleneck_size": 32,
    "max_source_positions": 20,
    "mm_tokens_per_image": 4,
    "n_embd": 64,
    "n_head": 4,
    "n_heads": 4,
    "n_layer": 2,
    "n_layers": 2,
    "num_attention_heads": 4,
    "num_decoder_layers": 2,
    "num_experts_per_tok": 2,
    "num_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_layers": 2,
    "num_local_experts": 4,
    "patch_size": 14,
    "rotary_dim": 8,
    "vocab_size": 256,
    "word_embed_proj_dim": 64,
}
# Millions of parameters: as published for the model or, for a head or sizes of which no checkpoint
# is published, counted by hand from the layers.
MILLIONS: dict[str, float] = {
    "AlbertForMaskedLM": 206.4,
    "AlbertForQuestionAnswering": 205.8,
    "AllenaiLongformerBase": 148.7,
    "BartForCausalLM": 254.1,
    "BartForConditionalGeneration": 406.3,
    "BertForMaskedLM": 109.5,
    "BertForQuestionAnswering": 108.9,
    "BlenderbotForCausalLM": 2538.6,
    "BlenderbotForConditionalGeneration": 2696.3,
    "BlenderbotSmallForCausalLM": 59.6,
    "BlenderbotSmallForConditionalGeneration": 85.1,
    "CamemBert": 110.7,
    "DebertaV2ForMaskedLM": 880.0,
    "DebertaV2ForQuestionAnswering": 877.5,
    "DistilBertForMaskedLM": 67.0,
    "DistilBertForQuestionAnswering": 66.4,
    "DistillGPT2": 81.9,
    "ElectraForCausalLM": 13.5,
    "ElectraForQuestionAnswering": 13.5,
    "GPT2ForSequenceClassification": 124.4,
    "GPTJForCausalLM": 6050.9,
    "GPTJForQuestionAnswering": 5844.4,
    "GPTNeoForCausalLM": 1315.6,
    "GPTNeoForSequenceClassification": 1315.6,
    "GoogleFnet": 83.0,
    "LayoutLMForMaskedLM": 113.0,
    "LayoutLMForSequenceClassification": 112.6,
    "M2M100ForConditionalGeneration": 483.9,
    "MBartForCausalLM": 254.1,
    "MBartForConditionalGeneration": 406.3,
    "MT5ForConditionalGeneration": 300.2,
    "MegatronBertForCausalLM": 333.7,
    "MegatronBertForQuestionAnswering": 332.6,
    "MobileBertForMaskedLM": 36.6,
    "MobileBertForQuestionAnswering": 24.6,
    "OPTForCausalLM": 125.2,
    "PLBartForCausalLM": 95.9,
    "PLBartForConditionalGeneration": 139.2,
    "PegasusForCausalLM": 254.1,
    "PegasusForConditionalGeneration": 406.3,
    "RobertaForCausalLM": 124.7,
    "RobertaForQuestionAnswering": 124.1,
    "T5ForConditionalGeneration": 60.5,
    "T5Small": 60.5,
    "TrOCRForCausalLM": 253.6,
    "XGLMForCausalLM": 564.5,
    "XLNetLMHeadModel": 360.3,
    "YituTechConvBert": 106.3,
    "Llama-3.2-1B": 1235.8,
    "gemma-2-2b": 2614.3,
    "gemma-3-4b-it": 4300.1,
    "whisper-tiny": 37.8,
    "Qwen3-0.6B": 596.0,
    "Mistral-7B-Instruct-v0.3": 7248.0,
    "gpt-oss-20b": 20914.8,
    "clip-vit-base-patch32": 151.3,
}


def small(model: HuggingFaceModel) -> dict[str, Any]:
    """The model's own sizes, reduced, as a user would write them."""
    settings: dict[str, Any] = {"length": 16}
    for key, value in model.sizes.items():
        if key.endswith("_config"):
            settings.update({f"{key}.{part}": SMALL[part] for part in value if part in SMALL})
        elif key in SMALL:
            settings[key] = SMALL[key]
    return settings


def test_the_list_is_whole() -> None:
    assert len(MODELS) == len(BY_NAME) == len(HUGGINGFACE) == len(MILLIONS) == 56
    assert catalog.LISTS["huggingface"] == HUGGINGFACE
    assert all(listed.about and "inference" in listed.modes for listed in HUGGINGFACE)
    assert all(m.gpu_batch_size >= 1 and m.cpu_batch_size >= 1 for m in MODELS)


def test_models_that_no_usual_gpu_can_train_are_not_trained_by_a_whole_suite() -> None:
    for model in MODELS:
        assert ("training" in model.modes) == (MILLIONS[model.name] < 3000), model.name


@quiet
@with_transformers
@pytest.mark.torch
@every
def test_every_name_runs_and_trains(model: HuggingFaceModel) -> None:
    import torch

    torch.manual_seed(7)
    inference = suites.build("huggingface", model.name, "inference", 2, small(model))
    assert type(inference.module).__name__ == model.model_class
    assert "labels" not in inference.kwargs
    with torch.no_grad():
        output = flatten(inference.module(**inference.kwargs))
    assert all(bool(tensor.isfinite().all()) for tensor in output)
    assert output[0].shape[0] == inference.batch_size == 2

    training = suites.build("huggingface", model.name, "training", 2, small(model))
    assert training.loss is not None
    first, second = (training.loss(training.module(**training.kwargs)) for _ in range(2))
    assert first.shape == ()
    assert bool(first.isfinite())
    assert float(first.detach()) == float(second.detach())  # nothing is left to chance
    first.backward()
    gradients = [p.grad for p in training.module.parameters() if p.grad is not None]
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
    assert sum(float(gradient.abs().sum()) > 0 for gradient in gradients) > len(gradients) / 2


@quiet
@with_transformers
@pytest.mark.torch
@every
def test_full_sizes_are_those_that_are_known(model: HuggingFaceModel) -> None:
    import torch
    import transformers

    from torchyard.worker.suites.huggingface_config import make_config

    model_class = getattr(transformers, model.model_class)
    config, length = make_config(model.name, model_class, model.sizes, {}, model.length)
    assert length == model.length  # there are positions for it
    with torch.device("meta"):
        module = model_class(config)
    known = MILLIONS[model.name]
    if "MT5" in model.name and config.tie_word_embeddings:
        # transformers 5 uses the embedding as the head, too, whatever the configuration says.
        known -= config.vocab_size * config.d_model / 1e6
    millions = sum(parameter.numel() for parameter in module.parameters()) / 1e6
    assert millions == pytest.approx(known, rel=0.02)


@quiet
@with_transformers
@pytest.mark.torch
def test_derived_sizes_follow_the_number_of_layers() -> None:
    for layers in (1, 2, 3):
        wishes = {**small(BY_NAME["GPTNeoForCausalLM"]), "num_layers": layers}
        module = suites.build("huggingface", "GPTNeoForCausalLM", "inference", 1, wishes).module
        assert len(module.config.attention_layers) == len(module.transformer.h) == layers
    wishes = {**small(BY_NAME["gemma-3-4b-it"]), "text_config.num_hidden_layers": 7}
    module = suites.build("huggingface", "gemma-3-4b-it", "inference", 1, wishes).module
    assert module.config.text_config.num_hidden_layers == 7
    assert len(module.config.text_config.layer_types) == 7


@quiet
@with_transformers
@pytest.mark.torch
def test_parameters_of_a_listed_model_are_checked() -> None:
    with pytest.raises(CannotBuild) as caught:
        suites.build("huggingface", "Llama-3.2-1B", parameters={"hidden_sizes": 64})
    assert "huggingface/Llama-3.2-1B has no parameter 'hidden_sizes'" in str(caught.value)
    assert "hidden_size" in str(caught.value)
    with pytest.raises(CannotBuild) as caught:
        suites.build("huggingface", "Llama-3.2-1C")
    assert "did you mean Llama-3.2-1B" in str(caught.value)


@quiet
@with_transformers
@pytest.mark.torch
def test_a_class_that_this_transformers_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.setattr(transformers, "GptOssForCausalLM", None)
    with pytest.raises(CannotBuild) as caught:
        suites.build("huggingface", "gpt-oss-20b")
    assert "requires the class GptOssForCausalLM" in str(caught.value)
    assert caught.value.hint == "install transformers 4.55 or newer into the target"
