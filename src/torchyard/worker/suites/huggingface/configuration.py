"""Configurations of transformers models: defaults, `config.json` files from disk, and changes by the user."""

import json
from typing import Any, Dict, List, Optional, Tuple

from torchyard.worker.suites.choices import is_whole, nearest, unknown_parameter
from torchyard.worker.workload import CannotBuild

CONFIG = "config"
# The name of a workload that is nothing but its file.
AUTO = "auto"
# About the file or the stored weights, not about the model.
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
    """What is in the file: a JSON object with a `model_type`."""
    if not isinstance(path, str):
        raise CannotBuild(
            f"the parameter {CONFIG} of {label} is {path!r}", hint="give the path of a JSON file"
        )
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise CannotBuild(
            f"{label}: the configuration file {path} cannot be read: {error}",
            hint="give the path of a config.json",
        ) from error
    if not isinstance(found, dict) or not isinstance(found.get("model_type"), str):
        raise CannotBuild(
            f"{label}: the configuration file {path} has no model_type",
            hint='a config.json is an object with "model_type", such as "bert"',
        )
    return found


def sizes_in(values: Dict[str, Any]) -> Dict[str, Any]:
    """The values that the model's configuration class takes."""
    return {key: value for key, value in values.items() if key not in NOT_SIZES}


def architecture_in(label: str, values: Dict[str, Any], path: str) -> str:
    """The name of the model class that the file says."""
    named = values.get("architectures")
    if isinstance(named, list) and named and isinstance(named[0], str):
        return named[0]
    raise CannotBuild(
        f"{label}: {path} names no architectures, so the model class is not known",
        hint="name the class: huggingface/BertForMaskedLM:config=FILE.json",
    )


def check_kind(label: str, model_class: Any, values: Dict[str, Any], path: str) -> None:
    """Refuse a file of another kind of model than the class is."""
    wanted = getattr(model_class.config_class, "model_type", "")
    if wanted != values["model_type"]:
        raise CannotBuild(
            f"{label} is of the kind {wanted!r}, and {path} of the kind {values['model_type']!r}",
            hint=f"use huggingface/{AUTO}:{CONFIG}={path} to let the file choose the class",
        )


def check_known(label: str, package: Any, values: Dict[str, Any]) -> None:
    """Refuse a kind of model that this transformers does not have."""
    known, version = _kinds(package)
    kind = values["model_type"]
    if known and kind not in known:
        own_code = " (code that comes with a model is not run)" if "auto_map" in values else ""
        raise CannotBuild(
            f"{label}: transformers {version} has no models of the kind {kind!r}"
            f"{nearest(kind, known)}{own_code}",
            hint="use a newer transformers, or a Python file of your own with the suite file",
        )


def _kinds(package: Any) -> Tuple[List[str], str]:
    mapping = getattr(package, "CONFIG_MAPPING", None)
    version = str(getattr(package, "__version__", "of unknown version"))
    return (list(mapping.keys()) if mapping is not None else []), version


LENGTH = "length"
DEFAULT_LENGTH = 128
# What the benchmark harness of PyTorch itself uses, so that numbers can be held side by side.
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
# These count positions from behind the padding token, so the table of positions holds fewer.
OFFSET_POSITIONS = ("Roberta", "XLMRoberta", "Camembert", "Longformer", "MPNet", "Data2VecText")
# What else a model draws at random while it runs, which no two backends do alike: masks over
# sound in training, and the hashes of a Reformer.
DRAWN = {
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,
    "mask_feature_prob": 0.0,
    "hash_seed": 0,
}
# Keys that every configuration has and that change no size: taken, but not worth a place in a hint.
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
    """The configuration of these sizes with the user's changes in it, and the inputs' length.

    `usual_length` is the one to take where the user wishes none; without it, the family's.
    """
    config_class = model_class.config_class
    wishes = dict(parameters)
    length = wishes.pop(LENGTH, None)
    try:
        default = config_class(**sizes)
    except Exception as error:
        raise CannotBuild(
            f"{label}: {config_class.__name__} cannot be made: {error}",
            hint="give a file with its configuration: config=FILE.json",
        ) from error
    settings = _joined(sizes, _steady_settings(default))
    for key, value in wishes.items():
        _put(label, settings, default, key, value)
    name = model_class.__name__
    if name.endswith(("ForCausalLM", "LMHeadModel", "ModelWithLMHead")) and (
        getattr(default, "is_decoder", None) is False and not _is_pair(default)
    ):
        settings.setdefault("is_decoder", True)
    if "num_layers" in wishes and hasattr(default, "attention_types"):
        settings["attention_types"] = _alternating(wishes["num_layers"])
    config = _construct(label, config_class, settings)
    if _needs_pad_token(name, config):
        settings["pad_token_id"] = 0
        config = _construct(label, config_class, settings)
    return config, _length(label, name, config, length, usual_length)


def _joined(below: Dict[str, Any], above: Dict[str, Any]) -> Dict[str, Any]:
    """Both, parts included; where they differ, what is above."""
    found = dict(below)
    for key, value in above.items():
        part = found.get(key)
        parts = isinstance(part, dict) and isinstance(value, dict)
        found[key] = _joined(part or {}, value) if parts else value
    return found


def _alternating(layers: int) -> List[Any]:
    """The kinds of a GPT-Neo's layers, by turns global and local, said in its own way."""
    kinds: List[Any] = [[["global", "local"], layers // 2]] if layers > 1 else []
    return kinds + ([[["global"], 1]] if layers % 2 else [])


def _construct(label: str, config_class: Any, settings: Dict[str, Any]) -> Any:
    try:
        return config_class(**settings)
    except Exception as error:
        raise CannotBuild(
            f"{label}: {config_class.__name__} refuses these values: {error}",
            hint="change the parameters, or leave them out",
        ) from error


def _steady_settings(config: Any) -> Dict[str, Any]:
    """Everything that makes two runs of the model alike, sub-configurations included."""
    settings: Dict[str, Any] = {}
    for key, value in config.to_dict().items():
        part: Any = getattr(config, key, None)
        if hasattr(part, "to_dict"):
            inner = _steady_settings(part)
            if inner:
                # Configurations of free choice need to be told again which kind they are.
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
    known = [LENGTH, "num_labels"] + sorted(
        name for name in default.to_dict() if not hasattr(getattr(default, name, None), "to_dict")
    )
    if translated not in known:
        aliases = sorted(getattr(default, "attribute_map", {}))
        said = [name for name in known + aliases if not name.startswith(BOOKKEEPING)]
        raise unknown_parameter(label, key, said)
    before = getattr(default, translated, None)
    if not _same_kind(before, value):
        raise CannotBuild(
            f"the parameter {key} of {label} is {value!r}",
            hint=f"its default is {before!r}; give it a value of the same kind",
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
    """Classifiers look for the last token before the padding; an embedding must hold the token."""
    pad = getattr(config, "pad_token_id", None)
    vocabulary = getattr(config, "vocab_size", None)
    if pad is None:
        return name.endswith("ForSequenceClassification")
    return isinstance(pad, int) and isinstance(vocabulary, int) and pad >= vocabulary


def _length(label: str, name: str, config: Any, wished: Any, usual: Optional[int]) -> int:
    """The wished length, or the usual one, never more than the model has positions for."""
    if wished is not None and not is_whole(wished):
        raise CannotBuild(
            f"the parameter {LENGTH} of {label} is {wished!r}",
            hint="give a whole number from 1 up",
        )
    text = getattr(config, "text_config", None) or config
    most: Any = getattr(text, "max_position_embeddings", None)
    if isinstance(most, int) and name.startswith(OFFSET_POSITIONS):
        most -= (getattr(text, "pad_token_id", None) or 0) + 1
    audio = getattr(config, "conv_stride", None) is not None
    bounded = isinstance(most, int) and most > 0 and not audio
    if wished is not None:
        if bounded and wished > most:
            raise CannotBuild(
                f"{label} has no positions for a length of {wished}",
                hint=f"give length at most {most}, or raise max_position_embeddings",
            )
        return int(wished)
    chosen = usual or _family_length(name)
    return min(chosen, most) if bounded else chosen


def _family_length(name: str) -> int:
    for prefixes, value in FAMILY_LENGTHS:
        if name.startswith(prefixes):
            return value
    return DEFAULT_LENGTH
