"""Graphs, graph breaks and recompilations of dynamo. Runs inside the target.

Dynamo is read only if it is imported already: the import takes seconds, which a backend that does not
use it must not pay at every launch.
"""

import os
import re
import sys
from typing import Any, Dict, List, Optional

LONGEST_REASON = 200


def clear_counters() -> None:
    """Reset the counters, before a variant is compiled."""
    counters = _counters()
    if counters is not None:
        counters.clear()
        del _reasons()[:]


def raise_cache_limits(variants: int) -> None:
    """Raise dynamo's cache limits: they count compilations over all variants, and beyond them code runs eagerly."""
    config = getattr(sys.modules.get("torch._dynamo"), "config", None)
    for name in ("cache_size_limit", "accumulated_cache_size_limit"):
        limit = getattr(config, name, None)
        if variants > 1 and isinstance(limit, int) and config is not None:
            _limits.setdefault(name, limit)
            setattr(config, name, variants * _limits[name])


_limits: Dict[str, int] = {}


def forget_sizes() -> None:
    """Reset dynamo's record of dynamic sizes, which all variants share; a torch without `pgo` has no reset."""
    reset = getattr(sys.modules.get("torch._dynamo.pgo"), "reset_code_state", None)
    if reset is not None:
        reset()


def compiled_frames() -> int:
    """Return the number of frames compiled so far, including recompilations."""
    counters = _counters()
    return 0 if counters is None else int(counters["frames"].get("ok", 0))


def cached_graphs() -> int:
    """Return how many graphs were taken from the caches on disk since the counters were reset."""
    counters = _counters()
    return 0 if counters is None else int(counters["inductor"].get("fxgraph_cache_hit", 0))


def take_failures() -> List[str]:
    """Return the guard failures since the last call."""
    all_failures = getattr(sys.modules.get("torch._dynamo.utils"), "guard_failures", {})
    reasons: List[str] = []
    for code, failures in all_failures.items():
        returned = min(_returned.get(code, 0), len(failures))
        reasons += [_first_line(_guard(failure)) for failure in failures[returned:]]
        _returned[code] = len(failures)
    return reasons


_returned: Dict[Any, int] = {}
"""Number of guard failures of each code object that were returned before."""


def read_counters() -> Dict[str, Any]:
    """Return the unique graphs, and the graph breaks with reasons, since the counters were reset."""
    counters = _counters()
    if counters is None:
        return {"graphs": None, "graph_breaks": []}
    breaks: Dict[str, int] = {}
    for reason in _reasons():
        text = _first_line(str(reason.reason)) + _where(reason)
        breaks[text] = breaks.get(text, 0) + 1
    if not breaks:
        # torch 2.0 has only these, without data-dependent branches.
        breaks = {_first_line(str(reason)): int(n) for reason, n in counters["graph_break"].items()}
    graphs = counters["stats"].get("unique_graphs")
    return {
        "graphs": graphs if graphs is None else int(graphs),
        "graph_breaks": [[reason, count] for reason, count in breaks.items()],
    }


def _counters() -> Optional[Any]:
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)


def _reasons() -> List[Any]:
    reasons: List[Any] = getattr(sys.modules.get("torch._dynamo.utils"), "graph_break_reasons", [])
    return reasons


def _first_line(reason: str) -> str:
    """Return the first line of a reason; newer torch adds a page of explanations and hints."""
    if reason.startswith("generic_jump"):
        return "data-dependent branch"
    lines = reason.strip().splitlines() or ["no reason given"]
    return lines[0][:LONGEST_REASON]


def _guard(failure: Any) -> str:
    """Return the failed guard: newer torch has a string `0/0: reason`, older a record."""
    text = str(getattr(failure, "reason", failure)).strip()
    return re.sub(r"^(- )?\d+/\d+: ", "", text)


def _where(reason: Any) -> str:
    try:
        frame = reason.user_stack[-1]
        return " (%s:%d)" % (os.path.basename(frame.filename), frame.lineno)
    except (AttributeError, IndexError, TypeError):
        return ""
