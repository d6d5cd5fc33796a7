"""Raises when it is imported."""

WIDTHS = {"small": 4}
WIDTH = WIDTHS["large"]
