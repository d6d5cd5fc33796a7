"""Lay out one graph in a separate process: edges as JSON on stdin, positions as JSON on stdout.

Separate, because fast-sugiyama aborts the process on some graphs (0.5.3: an edge from a node to
itself) and may take long; neither may affect the report. Run by path, so it imports nothing of
Torchyard.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

__all__ = ["main"]


def main() -> None:
    """Read, lay out, write: a list of components, each with its nodes as (node, x, layer)."""
    from fast_sugiyama import from_edges

    edges = [(int(writer), int(reader)) for writer, reader in json.load(sys.stdin)]
    # "up" is the quickest way to find layers: 0.1 to 3.5 s for six forms of 10,000 nodes, of which
    # the default did not end for two in 40 s. Without dummy vertices the places are the same, less
    # those that only edges pass through.
    found = from_edges(edges, vertex_spacing=1, ranking_type="up", dummy_vertices=False)
    json.dump([_component(placed) for placed, *_ in found], sys.stdout)


def _component(placed: Iterable[Any]) -> list[tuple[int, float, float]]:
    """From the left and from the top, where the first layer is 0."""
    spots = sorted((node, x, y) for node, (x, y) in placed)
    top = max(y for _, _, y in spots)
    left = min(x for _, x, _ in spots)
    return [(node, x - left, top - y) for node, x, y in spots]


if __name__ == "__main__":
    main()
