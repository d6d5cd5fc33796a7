"""Graphs that dynamo captured and where it broke. Runs inside the target.

Looks at dynamo only if something has imported it: importing it takes seconds, which a backend that
does not use it shall not pay at every launch.
"""

import os
import re
import sys
from typing import Any, Dict, List, Optional

LONGEST_REASON = 200


def clear_counters() -> None:
    """Start counting anew, before a side is compiled."""
    counters = _counters()
    if counters is not None:
        counters.clear()
        del _reasons()[:]


def make_room(sides: int) -> None:
    """Let each side be compiled as often as it could alone.

    Dynamo counts what it compiled from one piece of source over all sides together, and runs the
    rest uncompiled once there are 8: that many variants on one model would be timed as eager code.
    """
    config = getattr(sys.modules.get("torch._dynamo"), "config", None)
    for name in ("cache_size_limit", "accumulated_cache_size_limit"):
        limit = getattr(config, name, None)
        if sides > 1 and isinstance(limit, int) and config is not None:
            _limits.setdefault(name, limit)
            setattr(config, name, sides * _limits[name])


_limits: Dict[str, int] = {}


def forget_sizes() -> None:
    """Let dynamo forget which sizes changed: what is compiled next is compiled as if for the first.

    It remembers them by source, for all sides together. A torch without `pgo` cannot be told to.
    """
    forget = getattr(sys.modules.get("torch._dynamo.pgo"), "reset_code_state", None)
    if forget is not None:
        forget()


def compiled_frames() -> int:
    """How many pieces of Python were compiled so far, again or for the first time."""
    counters = _counters()
    return 0 if counters is None else int(counters["frames"].get("ok", 0))


def take_failures() -> List[str]:
    """Why compiled code did not fit a call, since this was asked last."""
    failures = getattr(sys.modules.get("torch._dynamo.utils"), "guard_failures", {})
    found: List[str] = []
    for code, said in failures.items():
        taken = min(_taken.get(code, 0), len(said))
        found += [_say(_reason(one)) for one in said[taken:]]
        _taken[code] = len(said)
    return found


_taken: Dict[Any, int] = {}


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


def _reason(failure: Any) -> str:
    """The guard that failed: newer torch has a text `0/0: reason`, older a record."""
    text = str(getattr(failure, "reason", failure)).strip()
    return re.sub(r"^(- )?\d+/\d+: ", "", text)


def _where(reason: Any) -> str:
    try:
        frame = reason.user_stack[-1]
        return " (%s:%d)" % (os.path.basename(frame.filename), frame.lineno)
    except (AttributeError, IndexError, TypeError):
        return ""
