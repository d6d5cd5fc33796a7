"""Small programs that use torch.compile: with one planted waste each, clean ones, and waste that Inductor removes."""

from tests.values.compiled_corpus.clean import CLEAN
from tests.values.compiled_corpus.planted import PLANTED
from tests.values.compiled_corpus.removed import REMOVED

__all__ = ["CLEAN", "PLANTED", "REMOVED"]
