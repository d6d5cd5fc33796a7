"""Below an operator: its kernel is called with the watch on, so that what it calls is seen, too.

Inside `__torch_dispatch__` the mode is off. Here it is put back and the operator is sent straight to
its kernel; operators that the kernel calls then come back to the watch, with values. What skips the
dispatcher stays unseen: vendor libraries, loops inside a kernel, memset.
"""

from typing import Any, Dict, List, Optional

import torch

_KEYS: Dict[str, Any] = {
    "cpu": torch._C.DispatchKeySet(torch._C.DispatchKey.CPU),
    "cuda": torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA),
}

NEVER = frozenset({"aten::detach", "aten::alias", "aten::lift_fresh", "aten::_local_scalar_dense"})
"""Operators that call themselves, or nothing worth seeing."""

_takes_tensors: Dict[Any, Any] = {}


def call_plainly(func: Any, args: Any, keywords: Any) -> Any:
    """Call an operator with the arguments that another operator gave it.

    Inside of operators a number that stands for a tensor comes as a Python number, which many
    operators do not take from Python. Torch says so before anything ran.
    """
    try:
        return func(*args, **keywords)
    except RuntimeError as error:
        if "Unable to cast" not in str(error):
            raise
        return func(*_numbers_as_tensors(func, args), **keywords)


def _numbers_as_tensors(func: Any, args: Any) -> List[Any]:
    tensor = next(value for value in args if isinstance(value, torch.Tensor))
    made: List[Any] = list(args)
    for place, argument in enumerate(func._schema.arguments[: len(made)]):
        if isinstance(made[place], (bool, int, float)) and "Tensor" in str(argument.type):
            made[place] = torch.tensor(made[place], dtype=_dtype_beside(tensor, made[place]))
    return made


def _dtype_beside(tensor: torch.Tensor, number: Any) -> Optional[torch.dtype]:
    """One that leaves the dtype of the result to the tensor, as a number does."""
    if isinstance(number, float) and tensor.is_floating_point():
        return tensor.dtype if tensor.dim() == 0 else torch.float64
    if isinstance(number, int) and not isinstance(number, bool) and tensor.dim() == 0:
        return None if tensor.dtype is torch.bool else tensor.dtype
    return None


def _needs_more(tensor: torch.Tensor) -> bool:
    """Whether torch makes another tensor of it before any kernel gets it.

    Views that only say "negate", "conjugate" or "all zeros": a kernel would read what is not there.
    """
    return tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor()


def key_for(func: Any, args: Any, kwargs: Any) -> Optional[Any]:
    """Where to send the operator so that only its kernel runs; None when it must be called plainly."""
    if func._schema.name in NEVER:
        return None
    wanted = _takes_tensors.get(func)
    if wanted is None:
        wanted = _takes_tensors[func] = tuple(
            "Tensor" in str(argument.type) for argument in func._schema.arguments
        )
    device = None
    for value, tensor in zip(args, wanted):
        if not tensor or value is None:
            continue
        # Sent straight to the kernel, a Python number is not made a tensor on the way.
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, torch.Tensor):
                if item.layout is not torch.strided or item.is_quantized or _needs_more(item):
                    return None
                # As torch does: a number that was made a tensor on the CPU stands before a tensor
                # of the GPU in `pow(2, x)`, and the kernel is the GPU's.
                device = item.device.type if device in (None, "cpu") else device
            elif item is not None:
                return None
    if device is None:
        given = kwargs.get("device")
        device = given.type if isinstance(given, torch.device) else "cpu"
    return _KEYS.get(device)
