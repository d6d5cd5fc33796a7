"""Graphs that dynamo captured and where it broke. Runs inside the target."""

from typing import Any, Dict


def clear_counters() -> None:
    """Start counting anew, before a side is compiled."""
    try:
        from torch._dynamo.utils import counters
    except ImportError:
        return
    counters.clear()


def read_counters() -> Dict[str, Any]:
    """Unique graphs and breaks with their reasons since the counters were cleared."""
    try:
        from torch._dynamo.utils import counters
    except ImportError:
        return {"graphs": None, "graph_breaks": []}
    breaks = [[str(reason), int(count)] for reason, count in counters["graph_break"].items()]
    graphs = counters["stats"].get("unique_graphs")
    return {"graphs": graphs if graphs is None else int(graphs), "graph_breaks": breaks}
