"""Source operators and lines of the buffers in generated code.

While Inductor compiles a graph, each buffer knows the FX nodes that it was made of. These facts are kept in a file beside
other compiled files of Torchyard, because Inductor takes later runs from its cache, without the FX nodes. Without both,
the name of the kernel and the line of the compiled function remain.
"""

import json
import linecache
import os
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import torch

from torchyard.worker.values.exchange import KERNEL_PREFIX
from torchyard.worker.values.operators import COPIES, FILLS, Operator
from torchyard.worker.values.patterns.wasted_writes import GUARDS
from torchyard.worker.why.sources import is_view, operator_name, place_of_trace

_FOLDER = "inductor-sources"
_CONVERSIONS = frozenset({"aten::_to_copy", "aten::convert_element_type"})
_MOST_NAMED = 6


class BufferSource(NamedTuple):
    """Where a buffer comes from."""

    operators: Tuple[str, ...] = ()
    """Names in the order of the graph, without views; the last one returns the buffer."""
    file: str = ""
    line: int = 0
    text: str = ""
    """Text of the source line, to notice that the file has changed."""
    folded: bool = False
    """Whether Inductor replaced a computation by a constant."""
    random: bool = False
    reads: Optional[Tuple[str, ...]] = None
    """Arguments of the kernel that the buffer depends on; None if unknown."""


Sources = Dict[str, BufferSource]


class KernelOperator(Operator):
    """A buffer that a generated kernel writes, as the operator of an observation."""

    is_kernel = True

    def __init__(self, kernel: str, source: BufferSource) -> None:
        names = source.operators
        shown = ", ".join(names[-_MOST_NAMED:])
        self.name = KERNEL_PREFIX + kernel + (" (%s)" % shown if shown else "")
        self.writes = ()
        self.fresh = True
        self.many_results = self.returns_written = self.many = False
        self.inert = self.undefined = self.escapes = self.hidden_effects = False
        self.view_with_writing_backward = False
        of_aten = {"aten::" + name for name in names}
        self.folded = source.folded
        self.fills = bool(of_aten) and of_aten <= FILLS and not source.folded
        self.copies = bool(of_aten) and of_aten <= COPIES
        self.converts = bool(of_aten & _CONVERSIONS)
        self.guards = any(name in GUARDS for name in of_aten)
        self.random = source.random
        self.overwrites = False
        """Set for each call: whether a trial showed that every element is written and none is read."""


def sources_of_graph(graph: Any, calls: Iterable[Tuple[str, ...]]) -> Sources:
    """Return the sources of all buffers that are arguments of kernels, from the graph that is being compiled."""
    buffers: Dict[str, Any] = dict(getattr(graph, "name_to_buffer", {}))
    for buffer in list(buffers.values()):
        for mutated in _mutated(buffer):
            buffers[mutated] = buffer
    sources: Sources = {}
    for arguments in calls:
        for name in arguments:
            if name in buffers and name not in sources:
                sources[name] = _source(buffers[name], buffers, set(arguments))
    return sources


def _mutated(buffer: Any) -> List[str]:
    try:
        return list(buffer.get_mutation_names())
    except Exception:  # not every kind of buffer has them
        return []


def _source(buffer: Any, buffers: Dict[str, Any], arguments: Set[str]) -> BufferSource:
    origins = [node for node in buffer.origins if node.op == "call_function"]
    order = {node: place for place, node in enumerate(origins[0].graph.nodes)} if origins else {}
    origins.sort(key=lambda node: order.get(node, 0))
    last = getattr(buffer, "origin_node", None) or (origins[-1] if origins else None)
    if last is None or last.op != "call_function":
        return BufferSource()
    names = [_operator(node) for node in origins if node is not last] + [_operator(last)]
    computing = [name for name in names if not is_view(name)] or names[-1:]
    traces = [str(node.meta.get("stack_trace") or "") for node in [last, *reversed(origins)]]
    file, line = next((place for place in map(place_of_trace, traces) if place[0]), ("", 0))
    own = _operator(last)
    made = operator_name(last.target)
    return BufferSource(
        operators=tuple(dict.fromkeys(computing)),
        file=file,
        line=line,
        text=linecache.getline(file, line).strip() if file else "",
        folded=made == "full" and "aten::" + own not in FILLS,
        random=any("random" in str(node.target) or "rand" in _operator(node) for node in origins),
        reads=tuple(sorted(_reads(buffer, buffers, arguments, set()))),
    )


def _operator(node: Any) -> str:
    return operator_name(node.meta.get("original_aten") or node.target)


def _reads(buffer: Any, buffers: Dict[str, Any], arguments: Set[str], seen: Set[str]) -> Set[str]:
    """Return the arguments of the kernel that a buffer depends on, also through values inside the kernel."""
    reads: Set[str] = set()
    for name in buffer.get_read_names():
        if name in arguments:
            reads.add(name)
        if name in buffers and name not in seen:
            seen.add(name)
            if name not in arguments:
                reads |= _reads(buffers[name], buffers, arguments, seen)
    return reads


class KeptSources:
    """Sources of earlier compilations, in files named like the generated modules."""

    def __init__(self, cache: Optional[str]) -> None:
        self._folder = None if cache is None else os.path.join(cache, _FOLDER)

    def put(self, module: str, sources: Sources) -> None:
        """Store the sources of a module; a folder that cannot be written is ignored."""
        if self._folder is None:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            part = "%s.%d" % (self._path(module), os.getpid())
            with open(part, "w", encoding="utf-8") as file:
                json.dump([torch.__version__, sources], file)
            os.replace(part, self._path(module))
        except OSError:
            pass

    def get(self, module: str) -> Optional[Sources]:
        """Return the sources of a module; None if they are unknown or damaged."""
        if self._folder is None:
            return None
        try:
            with open(self._path(module), encoding="utf-8") as file:
                version, fields_by_name = json.load(file)
            if version != torch.__version__:
                return None
            return {name: _current(fields) for name, fields in fields_by_name.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def _path(self, module: str) -> str:
        return os.path.join(self._folder or "", module + ".json")


def _current(fields: List[Any]) -> BufferSource:
    """Return a source as stored; without its line if the file has changed."""
    values: List[Any] = [tuple(one) if isinstance(one, list) else one for one in fields]
    source = BufferSource._make(values)
    if source.file and linecache.getline(source.file, source.line).strip() != source.text:
        return source._replace(file="", line=0)
    return source
