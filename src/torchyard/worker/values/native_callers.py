"""Find the C++ functions of torch that issue a write inside an operator.

A dispatch mode observes the write; the native call stack at that moment names the functions that lead
to it. Functions that the compiler has inlined are missing.
"""

import re
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Set, Tuple

from torch.multiprocessing.reductions import StorageWeakRef

from torchyard.worker.values.redispatch import TransparentMode, call_inside

FILLING = frozenset(
    {
        "fill_",
        "full",
        "full_like",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "zero_",
        "zeros",
        "zeros_like",
    }
)
"""Operators that fill memory with one value."""
_IN_PLACE = frozenset({"copy_", "fill_", "zero_"})
_FRAMES = 200
_FRAME = re.compile(r"^frame #\d+: (.*) \+ (0x[0-9a-f]+) \(0x[0-9a-f]+ in (.*)\)$", re.MULTILINE)
_UNKNOWN = "<unknown function>"
_DISPATCHER = "at::_ops::"
_BINDINGS = "libtorch_python"
"""Library through which the dispatch mode is called, once for each operator on the stack."""

Chain = Tuple[str, ...]
Write = Tuple[Chain, int]
"""The chain of operators of a write, and the number of its elements."""


class NativeCall(NamedTuple):
    """A write inside an operator, as native code issues it."""

    called: str
    """The operator that is called, such as `zeros_like` for `zeros_like > zero_ > fill_`."""
    functions: Sequence[str]
    """Native functions around the call, innermost first, with their arguments."""
    number: int
    callers: List[str]
    """The innermost functions of all calls of the operator in the run, in order; `number` is the index of this one."""

    def as_dict(self) -> Dict[str, Any]:
        """For JSON."""
        return {
            "called": self.called,
            "functions": list(self.functions),
            "number": self.number,
            "callers": list(self.callers),
        }


class _Write(NamedTuple):
    elements: int
    calls: List[NativeCall]
    """Who issues it and, if there was one, who issued the write to the same memory before."""


class CallerMode(TransparentMode):
    """Dispatch mode that records who issues the writes of some chains of operators."""

    def __init__(self, chains: Set[Chain]) -> None:
        super().__init__()
        self._writes = {_write_of(chain) for chain in chains}
        self._path: List[str] = []
        self._last: Dict[int, Tuple[Any, NativeCall]] = {}
        """The last write to an address, with a weak reference to the memory: addresses are used again."""
        self._callers: Dict[str, List[str]] = {}
        self._found: Dict[Chain, List[_Write]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record the call stack of writes; run the operator."""
        name = short_name(func._schema.name)
        path = [short_name(one) for one in self._path]
        # A write inside another one, such as `fill_` inside `zero_`, is the same write.
        if name in _IN_PLACE and not _IN_PLACE.intersection(path):
            chain = (*path, name)
            called = _called(chain)
            functions = native_functions(len(chain) - 1 - called)
            callers = self._callers.setdefault(chain[called], [])
            call = NativeCall(chain[called], functions, len(callers), callers)
            callers.append(functions[0] if functions else "")
            memory = args[0].data_ptr()
            if chain in self._writes:
                storage, earlier = self._last.get(memory, (None, call))
                same = storage is not None and not storage.expired()
                calls = [call, earlier] if same else [call]
                self._found.setdefault(chain, []).append(_Write(args[0].numel(), calls))
            self._last[memory] = (StorageWeakRef(args[0].untyped_storage()), call)
        return call_inside(self, self._path, func, args, kwargs or {})[0]

    def calls(self, chain: Chain, elements: int) -> List[NativeCall]:
        """Return who issues the write of a chain, and who wrote to the same memory before.

        Empty if several calls issue writes of this size.
        """
        matches = [one for one in self._found.get(_write_of(chain), ()) if one.elements == elements]
        if len({tuple(one.calls[0].functions) for one in matches}) != 1:
            return []
        return max((one.calls for one in matches), key=len)


def calls_of(run: Callable[[], Any], writes: Set[Write]) -> Dict[Write, List[NativeCall]]:
    """Run a function; return who issued each write, and the write before it."""
    mode = CallerMode({chain for chain, _ in writes})
    with mode:
        run()
    return {write: mode.calls(*write) for write in writes}


def _called(chain: Chain) -> int:
    """Return the index of the operator that native code calls to have the write of a chain done."""
    first = len(chain) - 1
    while first > 0 and chain[first - 1] in FILLING:
        first -= 1
    return first


def native_functions(level: int) -> List[str]:
    """Return the functions on the call stack that called an operator, innermost first.

    Level 0 is the operator that is being dispatched, level 1 the operator around it. A function without
    an exported symbol is `LIBRARY+0xOFFSET`, which a library with a symbol table resolves.
    """
    try:
        from torch.utils.cpp_backtrace import get_cpp_backtrace

        frames = _FRAME.findall(get_cpp_backtrace(0, _FRAMES))
    except (ImportError, RuntimeError):
        return []
    levels: List[List[str]] = []
    dispatched = False
    for function, offset, library in frames:
        if _BINDINGS in library:
            dispatched = False
        elif function.startswith(_DISPATCHER):
            if not dispatched:
                levels.append([])
            dispatched = True
        elif dispatched:
            has_symbol = function != _UNKNOWN
            levels[-1].append(function if has_symbol else "%s+%s" % (library, offset))
    return levels[level] if level < len(levels) else []


def short_name(name: str) -> str:
    """Return `zero_` for `aten::zero_`."""
    return name.partition("::")[2] or name


def _write_of(chain: Chain) -> Chain:
    """Return the chain up to its first write."""
    for number, name in enumerate(chain):
        if name in _IN_PLACE:
            return chain[: number + 1]
    return chain
