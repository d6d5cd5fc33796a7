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


def main() -> None:
    """Write a list of components, each a list of (node, x, layer)."""
    from fast_sugiyama import from_edges

    edges = [(int(writer), int(reader)) for writer, reader in json.load(sys.stdin)]
    # Ranking "up" is the fastest: 0.1 to 3.5 s for six graphs of 10,000 nodes; the default did not
    # finish two of them in 40 s. dummy_vertices=False only drops the vertices that edges pass through.
    components = from_edges(edges, vertex_spacing=1, ranking_type="up", dummy_vertices=False)
    json.dump([_component(placed) for placed, *_ in components], sys.stdout)


def _component(placed: Iterable[Any]) -> list[tuple[int, float, float]]:
    """Return positions relative to the left and top; the first layer is 0."""
    spots = sorted((node, x, y) for node, (x, y) in placed)
    top = max(y for _, _, y in spots)
    left = min(x for _, x, _ in spots)
    return [(node, x - left, top - y) for node, x, y in spots]


if __name__ == "__main__":
    main()
