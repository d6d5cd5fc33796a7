"""Configurations of transformers models: a file, parameters of the workload, and the input length."""

import json
from typing import Any, Dict, List, Optional, Tuple

from torchyard.worker.suites.choices import (
    nearest,
    require_whole,
    unknown_parameter,
    version_of,
)
from torchyard.worker.workload import CannotBuild

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
