"""Location of an operator call in the user's program: file and line, module, call site, frame.

The place is the innermost frame outside torch and this package; in a backward pass, that of the forward operator with
the same autograd sequence number. A call site adds the shapes of the tensors, which identify a call of the profiled
run in the timed run. Searching the callers for torch's own code walks all frames, so patterns do it last.
"""

import os
import sys
import warnings
from types import CodeType, FrameType
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_WORKER_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SUITES = os.path.join(_WORKER_FOLDER, "suites") + os.sep
_MOST_FORWARD = 200_000
"""Maximum number of forward operators stored for the backward pass."""


_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
"""Hooks that do something while a module is compiled would be compiled with it, and cause recompilations."""


class Place(NamedTuple):
    """Source location of a call."""

    file: str
    line: int
    function: str
    module: str = ""
    """Path of the innermost nn.Module, such as `layers.3.linear1`."""
    backward: bool = False
    """Called by the backward of the operator at this place."""


NOWHERE = Place("", 0, "")

# By the identity of code objects, because hashing them costs more than the lookup. The code is stored
# beside the answer, so that its identity is not reused.
_foreign: Dict[int, Tuple[bool, CodeType]] = {}


generated_files: Set[str] = set()
"""Modules that the compiler generated: their caller is the compiled function of the program."""


def _is_foreign(code: CodeType) -> bool:
    """Return whether a code object belongs to torch, this package, the compiler or Python's import machinery."""
    name = code.co_filename
    foreign = name.startswith((_TORCH, _WORKER_FOLDER, "<frozen")) or name == "<string>"
    foreign = foreign or name in generated_files
    if name.startswith(_SUITES):
        foreign = False  # models of the built-in suites count as user programs
    _foreign[id(code)] = (foreign, code)
    return foreign


def user_frame() -> Optional[FrameType]:
    """Return the innermost frame outside of torch and this package, if there is one."""
    frame: Optional[FrameType] = sys._getframe(1).f_back
    while frame is not None:
        code = frame.f_code
        cached = _foreign.get(id(code))
        if not (cached[0] if cached is not None else _is_foreign(code)):
            break
        frame = frame.f_back
    return frame


def caller() -> Optional[Dict[str, Any]]:
    """Return the call of the function that called the current operator; None at the top of the program."""
    frame = user_frame()
    if frame is None or frame.f_code.co_name == "<module>":
        return None
    frame = frame.f_back
    while frame is not None and _is_foreign(frame.f_code):
        frame = frame.f_back
    return None if frame is None else {"file": frame.f_code.co_filename, "line": frame.f_lineno}


class Places:
    """Finds the location of the operator that is being dispatched."""

    def __init__(self) -> None:
        self._modules: List[str] = []
        self._names: Dict[int, str] = {}
        self.classes: Dict[str, str] = {}
        """Class names of the called modules, by their path."""
        self._forward: Dict[int, Place] = {}
        self._backward: Dict[Place, Place] = {}
        """The places of operators that the backward of a place calls."""
        self._kept: Dict[Tuple[int, int, str], Place] = {}
        self._views_of_torch: Set[int] = set()
        """Autograd sequence numbers of views that torch's own Python code took."""
        self.view_of_torch = False
        """Whether the last operator belongs to the backward of such a view."""
        self._hooks: List[Any] = []
        self.in_backward = False
        """Whether the last operator was called by a backward pass."""
        self._node = getattr(torch._C, "_current_autograd_node", None)
        autograd = getattr(torch._C, "_autograd", None)
        self._sequence = getattr(autograd, "_get_sequence_nr", None)

    def track_modules(self) -> None:
        """Track calls of nn.Modules."""
        from torch.nn.modules import module

        self._hooks.append(module.register_module_forward_pre_hook(self._enter))
        try:
            leave = module.register_module_forward_hook(self._leave, always_call=True)
        except TypeError:  # torch before 2.2
            leave = module.register_module_forward_hook(self._leave)
        self._hooks.append(leave)
        # The hooks are ours: the program cannot do anything about this warning.
        warnings.filterwarnings(
            "ignore", message=r"Using `torch\.compile\(module\)` when there are"
        )

    @property
    def hooks(self) -> Tuple[Callable[..., None], ...]:
        """The functions that torch calls before and after each module."""
        return (self._enter, self._leave)

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def now(self) -> Place:
        """Return the location of the current operator call."""
        node = self._node() if self._node is not None else None
        self.in_backward = node is not None
        self.view_of_torch = False
        if node is not None:
            number = node._sequence_nr()
            self.view_of_torch = number in self._views_of_torch
            forward = self._forward.get(number)
            if forward is not None:
                place = self._backward.get(forward)
                if place is None:
                    place = self._backward[forward] = forward._replace(backward=True)
                return place
        # A thread of the autograd engine has no frames but ours.
        frame = user_frame()
        if frame is None:
            return NOWHERE
        module = self._modules[-1] if self._modules else ""
        code = frame.f_code
        key = (id(code), frame.f_lineno, module)
        place = self._kept.get(key)
        if place is None:
            place = Place(code.co_filename, frame.f_lineno, code.co_name, module)
            self._kept[key] = place
        if node is None and self._sequence is not None and torch.is_grad_enabled():
            # The autograd node is created before the kernel runs, so it has the last number. Later
            # operators without a node would get the same number and must not replace it.
            if len(self._forward) > _MOST_FORWARD:
                self._forward.clear()
            self._forward.setdefault(self._sequence() - 1, place)
        return place

    def note_view(self, frame: Optional[FrameType]) -> None:
        """Note a view that this frame takes of a tensor, for the backward pass."""
        count_before = len(self._forward)
        self.now()
        if len(self._forward) != count_before and frame is not None and _is_foreign(frame.f_code):
            if len(self._views_of_torch) > _MOST_FORWARD:
                self._views_of_torch.clear()
            self._views_of_torch.add(next(reversed(self._forward)))

    def _enter(self, module: Any, _args: Any) -> None:
        if _is_compiling():
            return
        if not self._modules and id(module) not in self._names:
            self._names = {id(part): name for name, part in module.named_modules()}
        kind = type(module).__name__
        name = self._names.get(id(module)) or kind
        self.classes[name] = kind
        self._modules.append(name)

    def _leave(self, _module: Any, _args: Any, _output: Any) -> None:
        if _is_compiling():
            return
        if self._modules:
            self._modules.pop()


_MOST_IN_LIST = 4
_kinds: Dict[torch.dtype, str] = {}
_shapes: Dict[Any, str] = {}
_MOST_SHAPES = 4096


class Site(NamedTuple):
    """One call site."""

    operator: str
    file: str
    line: int
    backward: bool
    shapes: str
    """Shapes of the tensor arguments; calls with other shapes have another cost."""


def site_of(operator: str, place: Place, args: Any, kwargs: Any) -> Site:
    """Return the site of a call that is being dispatched."""
    return Site(operator, place.file, place.line, place.backward, shapes_of(args, kwargs))


def shapes_of(args: Any, kwargs: Any) -> str:
    """Return dtypes and shapes of the arguments, and sizes that are given as lists."""
    parts: List[str] = []
    for value in args:
        _add(parts, value)
    for value in kwargs.values():
        _add(parts, value)
    return " ".join(parts)


def _add(parts: List[str], value: Any) -> None:
    if isinstance(value, torch.Tensor):
        kind = _kinds.get(value.dtype)
        if kind is None:
            kind = _kinds[value.dtype] = str(value.dtype).replace("torch.", "")
        shape = value.shape
        text = _shapes.get(shape)
        if text is None:
            if len(_shapes) >= _MOST_SHAPES:
                _shapes.clear()
            text = _shapes[shape] = str(list(shape))
        parts.append(kind + text)
    elif isinstance(value, (list, tuple)) and value:
        if isinstance(value[0], torch.Tensor):
            parts.append("%d:" % len(value))
            for item in value[:_MOST_IN_LIST]:
                _add(parts, item)
        else:
            parts.append(str(value))


_VALUES_FOLDER = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OF_DISPATCH = tuple(
    os.path.join(_TORCH, *parts)
    for parts in (("_ops.py",), ("_compile.py",), ("_dynamo", "eval_frame.py"))
)
"""Files of torch that only forward calls to a dispatch mode."""


def called_by_torch(part: str) -> bool:
    """Return whether a function of `torch.<part>`, such as `optim`, calls the operator, and not one of the program."""
    folder = os.path.join(_TORCH, part) + os.sep
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and _is_foreign(frame.f_code):
        if frame.f_code.co_filename.startswith(folder):
            return True
        frame = frame.f_back
    return False


def torch_frame(*functions: str) -> Optional[FrameType]:
    """Return the innermost frame of one of these functions of torch."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name in functions and code.co_filename.startswith(_TORCH):
            return frame
        frame = frame.f_back
    return None


def names_operator(*names: str, in_torch: bool = True) -> bool:
    """Return whether the Python function that called the current operator has one of these names in its code.

    Otherwise a composite operator called it, as `scaled_dot_product_attention` calls `tril`. Without `in_torch`, the
    function must be one of the program.
    """
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and _passes_on(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return True
    if not in_torch and is_of_torch(frame.f_code):
        return False
    return not set(names).isdisjoint(frame.f_code.co_names)


def is_of_torch(code: CodeType) -> bool:
    """Return whether a function belongs to torch."""
    return code.co_filename.startswith(_TORCH)


def collated_by_torch() -> bool:
    """Return whether a DataLoader called the operator, and not a function of the program."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and _passes_on(frame.f_code.co_filename):
        frame = frame.f_back
    folder = os.path.join(_TORCH, "utils", "data") + os.sep
    return frame is not None and frame.f_code.co_filename.startswith(folder)


def calling_frame(dispatch: CodeType) -> Optional[FrameType]:
    """Return the frame that called the outermost operator; `dispatch` is `__torch_dispatch__`."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None and frame.f_code is not dispatch:
        frame = frame.f_back
    while frame is not None and _passes_on(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _passes_on(file: str) -> bool:
    return file.startswith(_VALUES_FOLDER) or file in _OF_DISPATCH
