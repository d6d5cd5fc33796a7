"""All there is in the package."""

WIDTH = 8
