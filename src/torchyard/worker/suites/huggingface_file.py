"""Configuration files as model hubs have them (`config.json`), read from the disk.

Nothing is fetched, and no code that a file names is run: the model must be one of transformers.
Knows the file's form, and nothing of inputs.
"""

import json
from typing import Any, Dict, List, Tuple

from torchyard.worker.built import CannotBuild
from torchyard.worker.suites.choices import nearest

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
