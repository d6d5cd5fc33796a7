"""Torchyard: take PyTorch from source to a number you can trust."""

__version__ = "0.1.0"
