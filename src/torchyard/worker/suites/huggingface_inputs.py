"""Random inputs for transformers models, by the kind of input and the task in the class's name.

Token ids avoid the special tokens, because padding, ends and separators change what a model does.
Labels are part of the inputs in training only: an inference gives logits, not a loss.
"""

import inspect
from typing import Any, Dict, List, Set, Tuple

import torch

from torchyard.worker.built import CannotBuild

CHOICES = 4
SPECIAL_TOKENS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
    "decoder_start_token_id",
)


def make_inputs(
    label: str, module: Any, length: int, batch: int, training: bool
) -> Tuple[Dict[str, Any], bool]:
    """Named inputs, and whether labels are among those that the model takes for training."""
    config, name = module.config, type(module).__name__
    accepted = set(inspect.signature(module.forward).parameters)
    inputs = _features(label, module, accepted, length, batch)
    if "decoder_input_ids" in accepted and getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _tokens(config, (batch, _decoder_length(config, length)))
    labels = _labels(name, config, accepted, inputs, batch)
    if training:
        inputs.update(labels)
    return inputs, bool(labels)


def _features(
    label: str, module: Any, accepted: Set[str], length: int, batch: int
) -> Dict[str, Any]:
    config, name = module.config, type(module).__name__
    kind = getattr(module, "main_input_name", "input_ids")
    found: Dict[str, Any] = {}
    if kind == "input_ids" or ("input_ids" in accepted and "return_loss" in accepted):
        shape = (batch, CHOICES, length) if "ForMultipleChoice" in name else (batch, length)
        tokens = _tokens(config, shape)
        end = getattr(config, "eos_token_id", None)
        if isinstance(end, int) and getattr(config, "is_encoder_decoder", False):
            # Classifiers of this kind read the answer at the end token, one in every row.
            tokens[..., -1] = min(end, _vocabulary(config) - 1)
        found["input_ids"] = tokens
    if kind == "pixel_values" or ("pixel_values" in accepted and "return_loss" in accepted):
        found["pixel_values"] = torch.randn(_image_shape(config, batch))
    if kind == "input_values":
        found[kind] = torch.randn(_sound_shape(config, length, batch))
    if kind == "input_features":
        found[kind] = torch.randn(_spectrum_shape(label, config, length, batch))
    if not found:
        raise CannotBuild(
            f"{label} wants inputs of the kind {kind!r}, which are not known here",
            hint="write a small Python file with the model and its inputs, and use the suite file",
        )
    return found


def _tokens(config: Any, shape: Tuple[int, ...]) -> Any:
    vocabulary = _vocabulary(config)
    text = getattr(config, "text_config", None) or config
    special = {getattr(text, key, None) for key in SPECIAL_TOKENS}
    plain: List[int] = [value for value in range(vocabulary) if value not in special]
    if not plain:
        plain = list(range(vocabulary))
    return torch.tensor(plain)[torch.randint(len(plain), shape)]


def _vocabulary(config: Any) -> int:
    text = getattr(config, "text_config", None) or config
    for part in (text, getattr(config, "decoder", None)):
        size = getattr(part, "vocab_size", None)
        if isinstance(size, int):
            return size
    raise CannotBuild(
        f"{type(config).__name__} says no vocab_size, so no tokens can be drawn",
        hint="write a small Python file with the model and its inputs, and use the suite file",
    )


def _decoder_length(config: Any, length: int) -> int:
    most = getattr(config, "max_target_positions", None)
    return min(length, most) if isinstance(most, int) else length


def _image_shape(config: Any, batch: int) -> Tuple[int, ...]:
    part = getattr(config, "vision_config", None) or config
    size = getattr(part, "image_size", None) or 224
    height, width = (size, size) if isinstance(size, int) else tuple(size)[:2]
    return (batch, getattr(part, "num_channels", 3), height, width)


def _sound_shape(config: Any, length: int, batch: int) -> Tuple[int, ...]:
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return (batch, config.max_length, config.num_mel_bins)
    return (batch, length)


def _spectrum_shape(label: str, config: Any, length: int, batch: int) -> Tuple[int, ...]:
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        return (batch, config.num_mel_bins, 2 * config.max_source_positions)
    if hasattr(config, "input_feat_per_channel"):
        return (batch, length, config.input_feat_per_channel * config.input_channels)
    raise CannotBuild(
        f"{label}: the shape of its input_features is not known here",
        hint="write a small Python file with the model and its inputs, and use the suite file",
    )


def _labels(
    name: str, config: Any, accepted: Set[str], inputs: Dict[str, Any], batch: int
) -> Dict[str, Any]:
    """What the task in the class's name is trained with; empty: the model computes no loss."""
    main = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    length = main.shape[-1] if main is not None else 1
    found: Dict[str, Any] = {}
    if "QuestionAnswering" in name:
        for key in ("start_positions", "end_positions"):
            found[key] = torch.randint(length, (batch,))
    elif "return_loss" in accepted:
        found["return_loss"] = True
    elif "ForMultipleChoice" in name:
        found["labels"] = torch.randint(CHOICES, (batch,))
    elif "NextSentencePrediction" in name:
        found["labels"] = torch.randint(2, (batch,))
    elif "ForTokenClassification" in name:
        found["labels"] = torch.randint(config.num_labels, (batch, length))
    elif name.endswith(("SequenceClassification", "ImageClassification", "AudioClassification")):
        found["labels"] = torch.randint(config.num_labels, (batch,))
    elif "ForCTC" in name:
        found["labels"] = _tokens(config, (batch, 4))
    elif main is not None and name.endswith(
        ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "WithLMHead", "ForConditionalGeneration")
    ):
        found["labels"] = _tokens(config, tuple(main.shape))
    elif main is not None and "ForPreTraining" in name:
        high = 2 if name.startswith("Electra") else _vocabulary(config)
        found["labels"] = torch.randint(high, tuple(main.shape))
        for key in ("next_sentence_label", "sentence_order_label"):
            if key in accepted:
                found[key] = torch.randint(2, (batch,))
    return found if all(key in accepted for key in found) else {}
