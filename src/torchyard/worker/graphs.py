"""Graphs that dynamo captured and where it broke. Runs inside the target.

Looks at dynamo only if something has imported it: importing it takes seconds, which a backend that
does not use it shall not pay at every launch.
"""

import os
import sys
from typing import Any, Dict, List, Optional

LONGEST_REASON = 200


def clear_counters() -> None:
    """Start counting anew, before a side is compiled."""
    counters = _counters()
    if counters is not None:
        counters.clear()
        del _reasons()[:]


def read_counters() -> Dict[str, Any]:
    """Unique graphs and breaks with their reasons since the counters were cleared."""
    counters = _counters()
    if counters is None:
        return {"graphs": None, "graph_breaks": []}
    breaks: Dict[str, int] = {}
    for reason in _reasons():
        said = _say(str(reason.reason)) + _where(reason)
        breaks[said] = breaks.get(said, 0) + 1
    if not breaks:
        # torch 2.0 has only these, and they leave out branches that depend on data.
        breaks = {_say(str(reason)): int(n) for reason, n in counters["graph_break"].items()}
    graphs = counters["stats"].get("unique_graphs")
    return {
        "graphs": graphs if graphs is None else int(graphs),
        "graph_breaks": [[reason, count] for reason, count in breaks.items()],
    }


def _counters() -> Optional[Any]:
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)


def _reasons() -> List[Any]:
    found: List[Any] = getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", [])
    return found


def _say(reason: str) -> str:
    """The first line; newer torch adds explanations and hints of a page."""
    if reason.startswith("generic_jump"):
        return "data-dependent branch"
    lines = reason.strip().splitlines() or ["no reason given"]
    return lines[0][:LONGEST_REASON]


def _where(reason: Any) -> str:
    try:
        frame = reason.user_stack[-1]
        return " (%s:%d)" % (os.path.basename(frame.filename), frame.lineno)
    except (AttributeError, IndexError, TypeError):
        return ""
