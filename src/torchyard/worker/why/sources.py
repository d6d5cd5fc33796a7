"""Where operators come from: phase, module, source line and operator, the same for eager and compiled code.

Eager code is observed once under a dispatch mode. An operator of the backward pass belongs to the
forward operator whose autograd node it evaluates. Compiled code carries the same facts in the
metadata of its FX nodes (`kernels.py`).
"""

import linecache
import os
import re
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchyard.worker.workload import flatten

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_TORCH_FOLDER = os.path.dirname(torch.__file__) + os.sep
_WORKER_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SUITES_FOLDER = os.path.join(_WORKER_FOLDER, "suites") + os.sep
_OPTIMIZER_FOLDER = os.path.join(_TORCH_FOLDER, "optim") + os.sep
_ROOT = re.compile(r"^L\[[^\]]*\]\.?")
_CHILD = re.compile(r"\.?_modules\['([^']*)'\]|\['?([^'\]]*)'?\]")
_INDEX = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_VIEWS = frozenset(
    (
        *(
            "view",
            "_unsafe_view",
            "reshape",
            "_reshape_alias",
            "permute",
            "transpose",
            "t",
            "expand",
        ),
        *("unsqueeze", "squeeze", "slice", "select", "alias", "detach", "split", "chunk", "unbind"),
        *("as_strided", "narrow", "lift_fresh", "empty", "empty_like", "empty_strided"),
    )
)


class Unit(NamedTuple):
    """A source operator. Modules of equal structure are one: `layers.0.norm` is `layers.*.norm`."""

    phase: str
    module: str
    kind: str
    """Class name of the module."""
    file: str
    line: int
    text: str
    """Source text of the line."""
    operator: str


class TracedOperator(NamedTuple):
    """An operator of one iteration, in the order of execution."""

    unit: Unit
    flops: float
    moved_bytes: int
    """Bytes of its inputs and outputs."""


def is_view(operator: str) -> bool:
    """Whether the operator only changes how memory is interpreted, or allocates it."""
    return operator in _VIEWS


def module_pattern(path: str) -> str:
    """Return a module path of dynamo or `named_modules` without root name and indices."""
    path = _ROOT.sub("", path)
    path = _CHILD.sub(lambda match: "." + (match.group(1) or match.group(2)), path)
    return _INDEX.sub("*", path.strip("."))


def place_of_trace(stack_trace: str) -> Tuple[str, int]:
    """Return file and line of the innermost frame outside of torch in a formatted stack."""
    for file, line in reversed(_FRAME.findall(stack_trace or "")):
        if not _is_internal(file):
            return file, int(line)
    return "", 0


def make_unit(phase: str, module: str, kind: str, place: Tuple[str, int], operator: str) -> Unit:
    """Return a unit with the text of its source line."""
    file, line = place
    text = linecache.getline(file, line).strip() if file else ""
    return Unit(phase, module, kind, file, line, text, operator)


def operator_name(function: Any) -> str:
    """Return the name of an operator without namespace and overload: `addmm`."""
    packet = getattr(function, "overloadpacket", function)
    return str(getattr(packet, "__name__", packet)).rpartition(".")[2]


class SourceRecorder(TorchDispatchMode):
    """Records the operators of one iteration of eager code."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.operators: List[TracedOperator] = []
        self._names = {id(one): name for name, one in module.named_modules()}
        self._modules: List[Tuple[str, str]] = []
        self._handles: List[Any] = []
        self._by_sequence: Dict[int, Tuple[str, str, Tuple[str, int]]] = {}
        self._next_sequence = torch._C._autograd._get_sequence_nr()

    def __enter__(self) -> Any:
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter_module),
            hooks.register_module_forward_hook(self._leave_module),
        ]
        return super().__enter__()

    def __exit__(self, *details: Any) -> None:
        for handle in self._handles:
            handle.remove()
        super().__exit__(*details)

    def _enter_module(self, module: Any, _inputs: Any) -> None:
        if not self._modules and id(module) not in self._names:  # a copy of the module
            self._names = {id(one): name for name, one in module.named_modules()}
        name = self._names.get(id(module))
        if name is None:  # not registered: part of the module that calls it
            name = self._modules[-1][0] if self._modules else ""
        self._modules.append((module_pattern(name), type(module).__name__))

    def _leave_module(self, _module: Any, _inputs: Any, _output: Any) -> None:
        if self._modules:
            self._modules.pop()

    def __torch_dispatch__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        unit = self._unit(operator_name(function))
        result = function(*args, **(kwargs or {}))
        tensors = flatten(args) + flatten(kwargs or {}) + flatten(result)
        moved = sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors)
        flops = _flops_of(function, args, kwargs or {}, result)
        self.operators.append(TracedOperator(unit, flops, 0 if is_view(unit.operator) else moved))
        return result

    def _unit(self, operator: str) -> Unit:
        node = torch._C._current_autograd_node()
        if node is not None:
            source = self._by_sequence.get(node._sequence_nr(), ("", "", ("", 0)))
            return make_unit(BACKWARD, *source, operator=operator)
        place, optimizing = _current_place()
        module, kind = self._modules[-1] if self._modules else ("", "")
        created = torch._C._autograd._get_sequence_nr()
        for number in range(self._next_sequence, created):
            self._by_sequence[number] = (module, kind, place)
        self._next_sequence = created
        return make_unit(OPTIMIZER if optimizing else FORWARD, module, kind, place, operator)


def _current_place() -> Tuple[Tuple[str, int], bool]:
    """Return the line that called torch, and whether an optimizer did."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OPTIMIZER_FOLDER):
            return ("", 0), True
        if not _is_internal(file):
            return (file, frame.f_lineno), False
        frame = frame.f_back
    return ("", 0), False


def _is_internal(file: str) -> bool:
    if file.startswith(_WORKER_FOLDER):
        return not file.startswith(_SUITES_FOLDER)
    return file.startswith((_TORCH_FOLDER, "<"))


def _flops_of(function: Any, args: Any, kwargs: Dict[str, Any], result: Any) -> float:
    try:
        from torch.utils.flop_counter import flop_registry

        count = flop_registry.get(getattr(function, "overloadpacket", None))
        return 0.0 if count is None else float(count(*args, **kwargs, out_val=result))
    except Exception:  # an operator that the formula does not fit
        return 0.0
