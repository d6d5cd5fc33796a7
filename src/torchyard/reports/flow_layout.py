"""Places for the nodes of a graph: a layered layout by fast-sugiyama (`torchyard[graph]`).

What is ours is which edges it sees and how unconnected parts are set side by side. It never sees
all edges: a layered layout adds a node for each layer that an edge crosses, and in a training step
activations go from the first layers to the last. With all edges 358 nodes of a transformer took 26 s
of processor time; with those of `layout_edges`, less than 0.1 s, and graphs of 10,000 nodes and
20,000 edges between 0.1 and 3.5 s, depending on their form.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

__all__ = ["MISSING", "LayoutFailed", "layout_available", "layout_edges", "place_nodes"]

MISSING: Final = (
    "The picture needs fast-sugiyama: `pip install 'torchyard[graph]'`, then make the page again "
    "with `torchyard values show --format html`. The list of operators below works without it."
)
LIMIT_S: Final = 60.0
_CHILD: Final = Path(__file__).with_name("flow_layout_child.py")
_SHORT: Final = 3
_ROW_SHAPE: Final = 3.0
"""Rows of unconnected parts grow to about three times as wide as all are high."""

Edge = tuple[int, int]
Spot = tuple[float, float]


class LayoutFailed(Exception):
    """Why there is no layout; the page says it and goes on without the picture."""


def layout_available() -> bool:
    """Whether the layout library is installed beside us."""
    return find_spec("fast_sugiyama") is not None


def layout_edges(count: int, edges: Iterable[Edge]) -> list[Edge]:
    """The edges that give a graph its form, without cycles.

    Nodes are numbered in the order of their first call, so an edge to a smaller number is data of
    the step before. From each node's latest writer its depth follows; besides those edges only the
    ones that cross few layers are kept.
    """
    forward = sorted({(writer, reader) for writer, reader in edges if writer < reader})
    latest: dict[int, int] = {}
    for writer, reader in forward:
        latest[reader] = max(latest.get(reader, -1), writer)
    depth = [0] * count
    for node in range(count):
        if node in latest:
            depth[node] = depth[latest[node]] + 1
    return [
        (writer, reader)
        for writer, reader in forward
        if latest[reader] == writer or 0 < depth[reader] - depth[writer] <= _SHORT
    ]


def place_nodes(count: int, edges: Sequence[Edge], *, limit_s: float = LIMIT_S) -> list[Spot]:
    """Column and layer of nodes 0 to `count` - 1; raises LayoutFailed."""
    parts = _laid_out(layout_edges(count, edges), limit_s)
    connected = {node for part in parts for node, _, _ in part}
    parts += [[(node, 0.0, 0.0)] for node in range(count) if node not in connected]
    spots: list[Spot] = [(0.0, 0.0)] * count
    for part, (left, top) in zip(parts, _shelves(parts), strict=True):
        for node, x, y in part:
            spots[node] = (x + left, y + top)
    return spots


_Part = list[tuple[int, float, float]]


def _laid_out(edges: list[Edge], limit_s: float) -> list[_Part]:
    if not edges:
        return []
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_CHILD)],
            input=json.dumps(edges).encode(),
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LayoutFailed(f"the layout took longer than {limit_s:.0f} s") from None
    except OSError as error:
        raise LayoutFailed(f"the layout could not be started: {error}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise LayoutFailed(f"the layout failed: {said[-1] if said else done.returncode}")
    try:
        parts: list[_Part] = [
            [(int(node), float(x), float(y)) for node, x, y in part]
            for part in json.loads(done.stdout)
        ]
    except (ValueError, TypeError) as error:
        raise LayoutFailed(f"the layout gave no places: {error}") from error
    # The largest part first; the library's own order changes from run to run.
    return sorted(parts, key=lambda part: (-len(part), part[0]))


def _shelves(parts: Sequence[_Part]) -> list[Spot]:
    """Top left corner of each part, in rows of about the width of the widest."""
    sizes = [(max(x for _, x, _ in part) + 1, max(y for *_, y in part) + 1) for part in parts]
    area = sum(width * height for width, height in sizes)
    row_width = max([math.sqrt(area * _ROW_SHAPE), *(width for width, _ in sizes)], default=0)
    corners: list[Spot] = []
    left = top = row_height = 0.0
    for width, height in sizes:
        if left and left + width > row_width:
            left, top, row_height = 0.0, top + row_height + 1, 0.0
        corners.append((left, top))
        left += width
        row_height = max(row_height, height)
    return corners
