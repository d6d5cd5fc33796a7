"""Build models of the target's transformers with random weights and random inputs.

Inputs follow from the model's main input and from the task in the class's name.
"""

import inspect
import json
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from torchyard.worker.catalog.entry import PHASES
from torchyard.worker.catalog.huggingface_models import BY_NAME, HuggingFaceModel
from torchyard.worker.suites import training as losses
from torchyard.worker.suites.choices import (
    batch_size_for,
    import_package,
    nearest,
    require_whole,
    unknown_parameter,
    version_of,
)
from torchyard.worker.suites.generation import (
    Lengths,
    TransformersPhase,
    build_phase,
    refuse_generation,
)
from torchyard.worker.workload import BuiltWorkload, CannotBuild, map_tensors

CONFIG = "config"
# Name of a workload that is defined by its configuration file alone.
AUTO = "auto"
# Keys about the file or the stored weights, not about the model.
NOT_SIZES = (
    "architectures",
    "auto_map",
    "model_type",
    "transformers_version",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "quantization_config",
)


def read_config_file(label: str, path: Any) -> Dict[str, Any]:
    """Return the content of the file: a JSON object with a `model_type`."""
    if not isinstance(path, str):
        raise CannotBuild(
            f"invalid parameter {CONFIG} of {label}: {path!r}", hint="give the path of a JSON file"
        )
    try:
        with open(path, encoding="utf-8") as file:
            values = json.load(file)
    except (OSError, ValueError) as error:
        raise CannotBuild(
            f"{label}: the configuration file {path} cannot be read: {error}",
            hint="give the path of a config.json",
        ) from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise CannotBuild(
            f"{label}: the configuration file {path} has no model_type",
            hint='a config.json is an object with "model_type", such as "bert"',
        )
    return values


def sizes_in(values: Dict[str, Any]) -> Dict[str, Any]:
    """Return the values for the model's configuration class."""
    return {key: value for key, value in values.items() if key not in NOT_SIZES}


def architecture_in(label: str, values: Dict[str, Any], path: str) -> str:
    """Return the name of the model class in the file."""
    named = values.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str):
        return named[0]
    raise CannotBuild(
        f"{label}: {path} has no architectures, so the model class is unknown",
        hint="give the class: huggingface/BertForMaskedLM:config=FILE.json",
    )


def check_kind(label: str, model_class: Any, values: Dict[str, Any], path: str) -> None:
    """Raise CannotBuild when class and file have different model types."""
    expected = getattr(model_class.config_class, "model_type", "")
    if expected != values["model_type"]:
        raise CannotBuild(
            f"{label} has model type {expected!r}, and {path} has {values['model_type']!r}",
            hint=f"use huggingface/{AUTO}:{CONFIG}={path} to let the file choose the class",
        )


def check_known(label: str, package: Any, values: Dict[str, Any]) -> None:
    """Raise CannotBuild when this transformers does not have the model type."""
    mapping = getattr(package, "CONFIG_MAPPING", None)
    available, version = (list(mapping.keys()) if mapping is not None else []), version_of(package)
    kind = values["model_type"]
    if available and kind not in available:
        own_code = " (code that comes with a model is not run)" if "auto_map" in values else ""
        raise CannotBuild(
            f"{label}: transformers {version} does not have the model type {kind!r}"
            f"{nearest(kind, available)}{own_code}",
            hint="use a newer transformers, or a Python file with the suite file",
        )


LENGTH = "length"
DEFAULT_LENGTH = 128
# The lengths of PyTorch's benchmark harness, so that results can be compared.
FAMILY_LENGTHS: Tuple[Tuple[Tuple[str, ...], int], ...] = (
    (("Blenderbot", "MobileBert"), 128),
    (("TrOCR",), 256),
    (("Albert", "Deberta", "LayoutLM", "Electra", "XLNet", "MegatronBert"), 512),
    (("Bert", "Roberta", "Camembert", "FNet", "ConvBert"), 512),
    (("GPT2", "Bart", "T5", "MT5", "PLBart", "MBart", "Longformer"), 1024),
    (("OPT",), 2048),
    (("Reformer",), 4096),
    (("Wav2Vec2", "Hubert", "WavLM", "UniSpeech", "SEW"), 10000),
)
# Position ids of these start after the padding id, so fewer positions are available.
OFFSET_POSITIONS = ("Roberta", "XLMRoberta", "Camembert", "Longformer", "MPNet", "Data2VecText")
# Further random numbers at run time, which differ between backends: masks of audio in training, and
# the hashes of a Reformer.
DRAWN = {
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
    "hash_seed": 0,
}
# Keys of every configuration that change no size: accepted, but not shown in hints.
BOOKKEEPING = (
    "_",
    "architectures",
    "chunk_size",
    "dtype",
    "id2label",
    "label2id",
    "model_type",
    "output_",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers_version",
)


def make_config(
    label: str,
    model_class: Any,
    sizes: Dict[str, Any],
    parameters: Dict[str, Any],
    usual_length: Optional[int] = None,
) -> Tuple[Any, int]:
    """Return the configuration with the user's changes, and the length (or the usual one)."""
    config_class = model_class.config_class
    options = dict(parameters)
    length = options.pop(LENGTH, None)
    try:
        default = config_class(**sizes)
    except Exception as error:
        raise CannotBuild(
            f"{label}: {config_class.__name__} cannot be created: {error}",
            hint="give its configuration as a file: config=FILE.json",
        ) from error
    settings = _joined(sizes, _steady_settings(default))
    for key, value in options.items():
        _put(label, settings, default, key, value)
    name = model_class.__name__
    if name.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead")) and (
        getattr(default, "is_decoder", None) is False and not _is_pair(default)
    ):
        settings.setdefault("is_decoder", True)
    if "num_layers" in options and hasattr(default, "attention_types"):
        layers = options["num_layers"]
        kinds: List[Any] = [[["global", "local"], layers // 2]] if layers > 1 else []
        settings["attention_types"] = kinds + ([[["global"], 1]] if layers % 2 else [])
    config = _construct(label, config_class, settings)
    if _needs_pad_token(name, config):
        settings["pad_token_id"] = 0
        config = _construct(label, config_class, settings)
    return config, _length(label, name, config, length, usual_length)


def _joined(base: Dict[str, Any], overrides: Dict[str, Any]) -> Dict[str, Any]:
    """Merge two nested configurations; `overrides` takes precedence."""
    merged = dict(base)
    for key, value in overrides.items():
        part = merged.get(key)
        parts = isinstance(part, dict) and isinstance(value, dict)
        merged[key] = _joined(part or {}, value) if parts else value
    return merged


def _construct(label: str, config_class: Any, settings: Dict[str, Any]) -> Any:
    try:
        return config_class(**settings)
    except Exception as error:
        raise CannotBuild(
            f"{label}: {config_class.__name__} does not accept these values: {error}",
            hint="change or remove the parameters",
        ) from error


def _steady_settings(config: Any) -> Dict[str, Any]:
    """Return the settings that make runs reproducible, including sub-configurations."""
    settings: Dict[str, Any] = {}
    for key, value in config.to_dict().items():
        part: Any = getattr(config, key, None)
        if hasattr(part, "to_dict"):
            inner = _steady_settings(part)
            if inner:
                # Sub-configurations of variable type need their model type again.
                settings[key] = dict(inner, model_type=part.model_type)
        elif "drop" in key and isinstance(value, float):
            settings[key] = 0.0
        elif key in DRAWN:
            settings[key] = DRAWN[key]
    if hasattr(config, "use_cache"):
        settings["use_cache"] = False
    return settings


def _put(label: str, settings: Dict[str, Any], default: Any, key: str, value: Any) -> None:
    """Set one value; `part.key` goes into a sub-configuration."""
    head, dot, rest = key.partition(".")
    part = getattr(default, head, None)
    if dot and hasattr(part, "to_dict"):
        inner = settings.setdefault(head, {"model_type": getattr(part, "model_type", "")})
        _put(label, inner, part, rest, value)
        return
    translated = getattr(default, "attribute_map", {}).get(key, key)
    valid = [LENGTH, "num_labels"] + sorted(
        name for name in default.to_dict() if not hasattr(getattr(default, name, None), "to_dict")
    )
    if translated not in valid:
        aliases = sorted(getattr(default, "attribute_map", {}))
        suggested = [name for name in valid + aliases if not name.startswith(BOOKKEEPING)]
        raise unknown_parameter(label, key, suggested)
    before = getattr(default, translated, None)
    if not _same_kind(before, value):
        raise CannotBuild(
            f"invalid parameter {key} of {label}: {value!r}",
            hint=f"its default is {before!r}; give a value of the same type",
        )
    settings[translated] = value


def _same_kind(before: Any, value: Any) -> bool:
    if isinstance(before, bool):
        return isinstance(value, bool)
    if isinstance(before, int):
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(before, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(before, str):
        return isinstance(value, str)
    return True


def _is_pair(config: Any) -> bool:
    return bool(getattr(config, "is_encoder_decoder", False))


def _needs_pad_token(name: str, config: Any) -> bool:
    """Whether a pad token must be set: classifiers search for it, and the embedding must contain it."""
    pad = getattr(config, "pad_token_id", None)
    vocabulary = getattr(config, "vocab_size", None)
    if pad is None:
        return name.endswith("ForSequenceClassification")
    return isinstance(pad, int) and isinstance(vocabulary, int) and pad >= vocabulary


def _length(label: str, name: str, config: Any, requested: Any, default: Optional[int]) -> int:
    """Return the requested or default length, at most the number of positions."""
    require_whole(label, LENGTH, requested)
    text = getattr(config, "text_config", None) or config
    most: Any = getattr(text, "max_position_embeddings", None)
    if isinstance(most, int) and name.startswith(OFFSET_POSITIONS):
        most -= (getattr(text, "pad_token_id", None) or 0) + 1
    audio = getattr(config, "conv_stride", None) is not None
    bounded = isinstance(most, int) and most > 0 and not audio
    if requested is not None:
        if bounded and requested > most:
            raise CannotBuild(
                f"{label} has fewer positions than a length of {requested} needs",
                hint=f"give a length of at most {most}, or increase max_position_embeddings",
            )
        return int(requested)
    chosen = default or _family_length(name)
    return min(chosen, most) if bounded else chosen


def _family_length(name: str) -> int:
    for prefixes, value in FAMILY_LENGTHS:
        if name.startswith(prefixes):
            return value
    return DEFAULT_LENGTH


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
