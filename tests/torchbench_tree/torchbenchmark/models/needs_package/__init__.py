"""Needs what nobody has."""

import torchyard_package_that_is_not_there

from torchbenchmark.util.model import BenchmarkModel


class Model(BenchmarkModel):
    """Never made."""
