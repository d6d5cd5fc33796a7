"""Graphs that dynamo captured and where it broke. Runs inside the target.

Reads dynamo's counters only if something has imported dynamo: importing it takes seconds, which a
backend that does not use it shall not pay.
"""

import sys
from typing import Any, Dict, Optional


def _counters() -> Optional[Any]:
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)


def clear_counters() -> None:
    """Start counting anew, before a side is compiled."""
    counters = _counters()
    if counters is not None:
        counters.clear()


def read_counters() -> Dict[str, Any]:
    """Unique graphs and breaks with their reasons since the counters were cleared."""
    counters = _counters()
    if counters is None:
        return {"graphs": None, "graph_breaks": []}
    breaks = [[str(reason), int(count)] for reason, count in counters["graph_break"].items()]
    graphs = counters["stats"].get("unique_graphs")
    return {"graphs": graphs if graphs is None else int(graphs), "graph_breaks": breaks}
