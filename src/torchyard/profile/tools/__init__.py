"""Supported profilers: sibling modules whose tools are listed in `TOOLS`."""

from __future__ import annotations

from typing import Final

from torchyard.profile.tools import callgrind, gvprof, nsight, perf, rocprof, torch_profiler
from torchyard.profile.tools.interface import Tool

_ALL: Final[tuple[Tool, ...]] = (
    torch_profiler.TOOL,
    perf.TOOL,
    callgrind.TOOL,
    nsight.NSYS,
    nsight.NCU,
    rocprof.TOOL,
    gvprof.TOOL,
)
TOOLS: Final[dict[str, Tool]] = {tool.name: tool for tool in _ALL}
"""Name -> tool, in the order of the help text."""
