"""The flow graph: operators at places, and the data between them. Bounded by places, not by calls."""

from typing import Any, Dict, List, Tuple

from torchyard.worker.values.places import Place

_Key = Tuple[str, Place, Tuple[str, ...]]
OUTSIDE = -1
"""Memory that was there before anything was watched."""


class Flow:
    """Nodes and edges, counted."""

    def __init__(self) -> None:
        self._ids: Dict[_Key, int] = {}
        self._keys: List[_Key] = []
        self._calls: List[int] = []
        self._written: List[int] = []
        self._edges: Dict[Tuple[int, int], List[int]] = {}

    def node(self, operator: str, place: Place, path: Tuple[str, ...]) -> int:
        """The node of an operator at a place; counts a call."""
        key = (operator, place, path)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._keys)
            self._keys.append(key)
            self._calls.append(0)
            self._written.append(0)
        self._calls[found] += 1
        return found

    def place(self, node: int) -> Place:
        """Where a node is."""
        return self._keys[node][1]

    def wrote(self, node: int, size_bytes: int) -> None:
        """The node wrote so much."""
        self._written[node] += size_bytes

    def read(self, writer: int, reader: int, size_bytes: int) -> None:
        """Data went from its last writer to a reader."""
        edge = self._edges.get((writer, reader))
        if edge is None:
            self._edges[writer, reader] = [1, size_bytes]
        else:
            edge[0] += 1
            edge[1] += size_bytes

    def as_dict(self) -> Dict[str, Any]:
        """For JSON."""
        nodes = [
            {
                "id": number,
                "operator": operator,
                "place": place._asdict(),
                "path": list(path),
                "calls": self._calls[number],
                "written_bytes": self._written[number],
            }
            for number, (operator, place, path) in enumerate(self._keys)
        ]
        edges = [
            {"writer": writer, "reader": reader, "count": count, "bytes": size}
            for (writer, reader), (count, size) in self._edges.items()
        ]
        return {"nodes": nodes, "edges": edges}
