"""Build models of the target's transformers with random weights and random inputs.

Inputs follow from the model's main input and from the task in the class's name.
"""

import inspect
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from torchyard.worker.catalog.entry import PHASES
from torchyard.worker.catalog.huggingface_models import BY_NAME, HuggingFaceModel
from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import (
    batch_size_for,
    import_package,
    nearest,
    version_of,
)
from torchyard.worker.suites.generation import (
    Lengths,
    TransformersPhase,
    build_phase,
    refuse_generation,
)
from torchyard.worker.suites.huggingface_config import (
    AUTO,
    CONFIG,
    architecture_in,
    check_kind,
    check_known,
    make_config,
    read_config_file,
    sizes_in,
)
from torchyard.worker.workload import BuiltWorkload, CannotBuild, map_tensors

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
    """Return keyword inputs, and whether the model accepts labels for training."""
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
    inputs: Dict[str, Any] = {}
    if kind == "input_ids" or ("input_ids" in accepted and "return_loss" in accepted):
        shape = (batch, CHOICES, length) if "ForMultipleChoice" in name else (batch, length)
        tokens = _tokens(config, shape)
        end = getattr(config, "eos_token_id", None)
        if isinstance(end, int) and getattr(config, "is_encoder_decoder", False):
            # Sequence classifiers of this kind need an end token in every row.
            tokens[..., -1] = min(end, _vocabulary(config) - 1)
        inputs["input_ids"] = tokens
    if kind == "pixel_values" or ("pixel_values" in accepted and "return_loss" in accepted):
        inputs["pixel_values"] = torch.randn(_image_shape(config, batch))
    if kind == "input_values":
        inputs[kind] = torch.randn(_sound_shape(config, length, batch))
    if kind == "input_features":
        inputs[kind] = torch.randn(_spectrum_shape(label, config, length, batch))
    if not inputs:
        raise CannotBuild(
            f"{label} has inputs of the unsupported kind {kind!r}",
            hint="write a Python file with the model and its inputs, and use the suite file",
        )
    return inputs


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
        f"{type(config).__name__} has no vocab_size, so no tokens can be generated",
        hint="write a Python file with the model and its inputs, and use the suite file",
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
        f"{label}: the shape of its input_features is unknown",
        hint="write a Python file with the model and its inputs, and use the suite file",
    )


def _labels(
    name: str, config: Any, accepted: Set[str], inputs: Dict[str, Any], batch: int
) -> Dict[str, Any]:
    """Return labels for the task in the class's name; empty: the model computes no loss."""
    main = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    length = main.shape[-1] if main is not None else 1
    labels: Dict[str, Any] = {}
    if "QuestionAnswering" in name:
        for key in ("start_positions", "end_positions"):
            labels[key] = torch.randint(length, (batch,))
    elif "return_loss" in accepted:
        labels["return_loss"] = True
    elif "ForMultipleChoice" in name:
        labels["labels"] = torch.randint(CHOICES, (batch,))
    elif "NextSentencePrediction" in name:
        labels["labels"] = torch.randint(2, (batch,))
    elif "ForTokenClassification" in name:
        labels["labels"] = torch.randint(config.num_labels, (batch, length))
    elif name.endswith(("SequenceClassification", "ImageClassification", "AudioClassification")):
        labels["labels"] = torch.randint(config.num_labels, (batch,))
    elif "ForCTC" in name:
        labels["labels"] = _tokens(config, (batch, 4))
    elif main is not None and name.endswith(
        ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "WithLMHead", "ForConditionalGeneration")
    ):
        labels["labels"] = _tokens(config, tuple(main.shape))
    elif main is not None and "ForPreTraining" in name:
        high = 2 if name.startswith("Electra") else _vocabulary(config)
        labels["labels"] = torch.randint(high, tuple(main.shape))
        for key in ("next_sentence_label", "sentence_order_label"):
            if key in accepted:
                labels[key] = torch.randint(2, (batch,))
    return labels if all(key in accepted for key in labels) else {}


# Classes that are not PyTorch models: other frameworks, base classes and auto classes.
_NOT_MODELS = ("TF", "Flax", "Auto", "DataCollator")
_MODEL_MARKS = ("LMHead", "Model")
# From this size on, weights are generated on the device: 7 billion on a CPU take minutes.
DRAWN_ON_DEVICE = 1_000_000_000


class ModelChoice(NamedTuple):
    """Model class, sizes and input length. `length` None: that of the model family."""

    model_class: Any
    sizes: Dict[str, Any]
    length: Optional[int]


def names() -> List[str]:
    """Return the listed models, then all other model classes of the installed transformers."""
    package = _transformers()
    classes = sorted(name for name in dir(package) if _looks_like_a_model(name))
    return list(BY_NAME) + [name for name in classes if name not in BY_NAME]


def build(
    name: str, mode: str, batch_size: Optional[int], parameters: Dict[str, Any], device: Any
) -> BuiltWorkload:
    """Build one model with inputs for its task; the loss is the model's own, if any."""
    label = "huggingface/" + name
    options = dict(parameters)
    refuse_generation(label, options, mode)
    lengths = Lengths(label, options) if mode in PHASES else None
    listed = BY_NAME.get(name)
    choice = _choose_model(label, name, listed, options.pop(CONFIG, None))
    config, length = make_config(label, choice.model_class, choice.sizes, options, choice.length)
    rows = batch_size or batch_size_for(listed.listed if listed else None, device, 1)
    module = _make(label, choice.model_class, config, device)
    if lengths is not None:
        _check_capacity(label, config, lengths)
        phase = TransformersPhase(module, lengths, label)
        return build_phase(phase, mode, lengths, rows, _vocabulary(config), device)
    training = mode == "training"
    inputs, labelled = make_inputs(label, module, length, rows, training)
    if training and not labelled:
        raise CannotBuild(
            f"{label} does not support training: the model computes no known loss",
            hint="use mode inference, or a class with a task, such as BertForMaskedLM",
        )
    return BuiltWorkload(
        module.to(device),
        kwargs=map_tensors(inputs, lambda tensor: tensor.to(device)),
        loss=_own_loss if labelled else None,
        loss_name="the model's own" if labelled else "",
        optimizer=losses.sgd(1e-4),
        batch_size=rows,
    )


def _check_capacity(label: str, config: Any, lengths: Lengths) -> None:
    """Raise CannotBuild when the model has too few positions for prompt and generated text."""
    positions = getattr(config, "max_position_embeddings", None) or lengths.capacity
    if lengths.capacity > positions:
        raise CannotBuild(
            f"{label}: prompt and generated text have {lengths.capacity} tokens, and the model has "
            f"{positions} positions",
            hint="give a smaller prompt or generate, or max_position_embeddings=N",
        )


def _choose_model(
    label: str, name: str, listed: Optional[HuggingFaceModel], path: Any
) -> ModelChoice:
    class_name = listed.model_class if listed else name
    since = listed.since if listed else ""
    if path is None:
        if name == AUTO:
            raise CannotBuild(
                f"{label} requires a configuration file",
                hint=f"write huggingface/{name}:{CONFIG}=FILE.json",
            )
        model_class = _model_class(class_name, label, since)
        return ModelChoice(
            model_class, listed.sizes if listed else {}, listed.length if listed else None
        )
    values = read_config_file(label, path)
    check_known(label, _transformers(), values)
    if name == AUTO:
        class_name = architecture_in(label, values, path)
    model_class = _model_class(class_name, label, since)
    check_kind(label, model_class, values, path)
    return ModelChoice(model_class, sizes_in(values), listed.length if listed else None)


def _make(label: str, model_class: Any, config: Any, device: Any) -> Any:
    """Create the model with random weights; those of very large models are generated on the GPU."""
    try:
        if torch.device(device).type == "cpu" or _weights(model_class, config) < DRAWN_ON_DEVICE:
            return model_class(config)
        with torch.device(device):
            return model_class(config)
    except ImportError as error:
        raise CannotBuild(
            f"{label} requires a package that is missing in the target: {error}",
            hint="install it into the target",
        ) from error
    except (MemoryError, torch.cuda.OutOfMemoryError):
        raise
    except Exception as error:
        if "memory" in str(error):  # the CPU allocator raises a plain RuntimeError
            raise
        raise CannotBuild(
            f"{label} does not accept this configuration: {type(error).__name__}: {error}",
            hint="change or remove the parameters",
        ) from error


def _weights(model_class: Any, config: Any) -> int:
    """Return the number of weights, from a model on the meta device; 0 where that fails."""
    try:
        with torch.device("meta"):
            return sum(each.numel() for each in model_class(config).parameters())
    except Exception:  # some models read values during construction
        return 0


def _own_loss(output: Any) -> Any:
    """Return the loss that the model computed from the labels: the first output."""
    loss = getattr(output, "loss", None)
    return output[0] if loss is None else loss


def _transformers() -> Any:
    return import_package("transformers", "install transformers into the target")


def _model_class(name: str, label: str, since: str) -> Any:
    package = _transformers()
    model_class = None
    if _looks_like_a_model(name):
        try:
            model_class = getattr(package, name, None)
        except (ImportError, RuntimeError) as error:
            raise CannotBuild(
                f"transformers cannot load {name}: {error}",
                hint="the target's transformers may not support its version of torch",
            ) from error
    if getattr(model_class, "config_class", None) is not None:
        return model_class
    version = version_of(package)
    if since:
        raise CannotBuild(
            f"{label} requires the class {name}, which transformers {version} does not have",
            hint=f"install transformers {since} or newer into the target",
        )
    raise CannotBuild(
        f"transformers {version} has no model class {name!r}{nearest(name, names())}",
        hint="give the name of a model class, such as BertForMaskedLM",
    )


def _looks_like_a_model(name: str) -> bool:
    if name.startswith(_NOT_MODELS) or name.endswith(("PreTrainedModel", "Config", "Output")):
        return False
    if not name[:1].isupper():
        return False
    return any(mark in name for mark in _MODEL_MARKS) or "For" in name[1:]
