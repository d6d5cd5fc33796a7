"""A stand-in for timm.data."""

from typing import Any


def resolve_data_config(args: dict[str, Any], model: Any = None) -> dict[str, Any]:
    return {"input_size": model.default_cfg["input_size"], "interpolation": "bicubic"}
