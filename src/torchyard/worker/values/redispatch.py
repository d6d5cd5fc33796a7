"""Helpers of the dispatch mode: detach it, call kernels below it, record native events.

Deep profiles restore the mode inside `__torch_dispatch__` and redispatch the operator to its kernel, so that operators
called by the kernel are observed, but not vendor libraries or loops inside a kernel. A dispatch mode makes torch take
different code paths in some cases, so an observed operator must also occur in native events (torch's own record).
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from torchyard.worker.values.operators import operator_of


def topmost_mode() -> Optional[Any]:
    """Return the innermost dispatch mode."""
    return _python_dispatch._get_current_dispatch_mode()


class TransparentMode(TorchDispatchMode):
    """Dispatch mode that leaves the program as it is."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled functions run compiled; otherwise a profile would show a different program."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # By default torch wraps `__torch_dispatch__` to disable the compiler, which costs about 10 us
        # per operator. `never_compile` costs nothing.
        return False


def never_compile(*functions: Any) -> None:
    """Let the compiler skip these functions and all that they call, where torch can do that."""
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # torch before 2.8
        return
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for function in functions:
        set_code_exec_strategy(function.__code__, skip)


class DetachableMode(TransparentMode):
    """Dispatch mode that can leave the mode stack temporarily."""

    def __init__(self) -> None:
        super().__init__()
        self._detached = False

    @property
    def can_detach(self) -> bool:
        """Whether no mode of the program is above it."""
        return self._detached or topmost_mode() is self

    def set_detached(self, aside: bool) -> None:
        """Leave or re-enter the mode stack."""
        if aside and not self._detached:
            super().__exit__(None, None, None)
        elif self._detached and not aside:
            _put_below(super().__enter__)
        self._detached = aside

    def pause(self) -> None:
        """Observe nothing until `resume`."""
        if not self._detached:
            super().__exit__(None, None, None)

    def resume(self) -> None:
        """Resume after `pause`."""
        if not self._detached:
            super().__enter__()

    def leave_stack(self) -> None:
        """Leave the stack of this thread permanently, wherever the mode is in it, or not at all."""
        others: List[Any] = []
        while topmost_mode() not in (None, self):
            others.append(_python_dispatch._pop_mode())
        if topmost_mode() is self:
            super().__exit__(None, None, None)
        self._detached = False
        for mode in reversed(others):
            _python_dispatch._push_mode(mode)

    def is_in_stack(self) -> bool:
        """Return whether the mode is in the stack of this thread."""
        count = torch._C._len_torch_dispatch_stack()
        return any(torch._C._get_dispatch_stack_at(number) is self for number in range(count))

    def __exit__(self, *about: Any) -> None:
        """Leave the stack permanently, unless detached."""
        if self._detached:
            self._detached = False
        else:
            super().__exit__(*about)


def _put_below(enter: Callable[[], Any]) -> None:
    """Enter a mode below all current modes."""
    others: List[Any] = []
    while topmost_mode() is not None:
        others.append(_python_dispatch._pop_mode())
    try:
        enter()
    finally:
        for mode in reversed(others):
            _python_dispatch._push_mode(mode)


_KEYS: Dict[str, Any] = {
    "cpu": torch._C.DispatchKeySet(torch._C.DispatchKey.CPU),
    "cuda": torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA),
}

NEVER = frozenset({"aten::detach", "aten::alias", "aten::lift_fresh", "aten::_local_scalar_dense"})
"""Operators that call themselves, or no other operators."""


def call_inside(
    mode: Any, path: List[str], func: Any, args: Any, keywords: Any
) -> Tuple[Any, bool]:
    """Call an operator so that `mode` observes the operators inside it (in `path`); return whether that worked."""
    name = operator_of(func).name
    key = key_for(func, args, keywords) if name not in path else None
    if key is None:
        return call_plainly(func, args, keywords), True
    path.append(name)
    try:
        # As `with mode`, without the bookkeeping of nested modes: this one is active already.
        _python_dispatch._push_mode(mode)
        try:
            return func.redispatch(key, *args, **keywords), True
        finally:
            _python_dispatch._pop_mode()
    except NotImplementedError:
        return call_plainly(func, args, keywords), False
    finally:
        path.pop()


def call_plainly(func: Any, args: Any, keywords: Any) -> Any:
    """Call an operator with arguments that come from inside another operator.

    There a scalar tensor arrives as a Python number, which many operators do not accept from Python.
    Torch raises before anything has run.
    """
    try:
        return func(*args, **keywords)
    except RuntimeError as error:
        if "Unable to cast" not in str(error):
            raise
        return func(*_numbers_as_tensors(func, args), **keywords)


def _numbers_as_tensors(func: Any, args: Any) -> List[Any]:
    tensor = next(value for value in args if isinstance(value, torch.Tensor))
    arguments: List[Any] = list(args)
    for place, argument in enumerate(func._schema.arguments[: len(arguments)]):
        if isinstance(arguments[place], (bool, int, float)) and "Tensor" in str(argument.type):
            arguments[place] = torch.tensor(
                arguments[place], dtype=_dtype_beside(tensor, arguments[place])
            )
    return arguments


def _dtype_beside(tensor: torch.Tensor, number: Any) -> Optional[torch.dtype]:
    """Return a dtype that does not affect type promotion, like a Python number."""
    if isinstance(number, float) and tensor.is_floating_point():
        return tensor.dtype if tensor.dim() == 0 else torch.float64
    if isinstance(number, int) and not isinstance(number, bool) and tensor.dim() == 0:
        return None if tensor.dtype is torch.bool else tensor.dtype
    return None


def _needs_more(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a lazy view (negated, conjugated, zero), which torch materializes first."""
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def key_for(func: Any, args: Any, kwargs: Any) -> Optional[Any]:
    """Return the dispatch keys that run only the kernel; None if the operator must be called normally."""
    operator = operator_of(func)
    if operator.name in NEVER:
        return None
    accepts_tensor = operator.accepts_tensor
    device = None
    for value, tensor in zip(args, accepts_tensor):
        if not tensor or value is None:
            continue
        # With redispatch, a Python number is not converted to a tensor.
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                if item.layout is not torch.strided or item.is_quantized or _needs_more(item):
                    return None
                # As in torch: in `pow(2, x)` a scalar CPU tensor comes before a GPU tensor, and the
                # GPU kernel is used.
                device = item.device.type if device in (None, "cpu") else device
            elif item is not None:
                return None
    if device is None:
        requested = kwargs.get("device")
        device = requested.type if isinstance(requested, torch.device) else "cpu"
    return _KEYS.get(device)


Chain = Tuple[str, ...]
"""Names of nested operators, outermost first."""
Chains = Dict[Chain, int]


def why_unavailable() -> Optional[str]:
    """Return why events cannot be recorded now; None if they can."""
    try:
        from torch.autograd import profiler_legacy
    except ImportError:
        return "this torch has no profiler_legacy"
    if torch.autograd._profiler_enabled():
        return "another profiler is on"
    return None if hasattr(profiler_legacy, "profile") else "this torch has no profiler_legacy"


class NativeEvents:
    """Counts chains of nested operators between `start` and `stop`."""

    def __init__(self) -> None:
        self.chains: Chains = {}
        self.on = False

    def start(self) -> None:
        """Start recording; raise RuntimeError if another profiler is active."""
        from torch.autograd import profiler_legacy

        config = profiler_legacy.profile(enabled=True).config()
        torch.autograd._enable_profiler_legacy(config)
        self.on = True

    def stop(self) -> None:
        """Stop and add the recorded events."""
        if not self.on:
            return
        self.on = False
        for events in torch.autograd._disable_profiler_legacy():
            self._add(events)

    def __enter__(self) -> "NativeEvents":
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _add(self, events: Any) -> None:
        """Add the events of one thread: push and pop delimit an operator."""
        chain: List[str] = []
        for event in events:
            kind = event.kind()
            if kind == "push":
                chain.append(event.name())
                key = tuple(chain)
                self.chains[key] = self.chains.get(key, 0) + 1
            elif kind == "pop" and chain:
                chain.pop()


def count_chain(chains: Chains, suffix: Chain) -> int:
    """Return how often a chain occurred, possibly inside autograd nodes and wrappers."""
    return sum(count for chain, count in chains.items() if chain[-len(suffix) :] == suffix)
