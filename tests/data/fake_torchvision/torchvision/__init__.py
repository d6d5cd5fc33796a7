"""A stand-in for the torchvision package: a few tiny models behind its register."""

from torchvision import models

__all__ = ["models"]
__version__ = "0.0-fake"
