"""A stand-in for timm.data."""

from typing import Any


def resolve_data_config(args: dict, model: Any = None) -> dict:
    return {"input_size": model.default_cfg["input_size"], "interpolation": "bicubic"}
