"""Torchyard: take PyTorch from source to a number you can trust, and find out why it is that number."""

from __future__ import annotations

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`torchyard.values` on first use: importing Torchyard alone loads nothing."""
    if name == "values":
        from importlib import import_module

        return import_module("torchyard.values")
    raise AttributeError(f"module 'torchyard' has no attribute {name!r}")
