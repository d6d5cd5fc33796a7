"""Below an operator: its kernel is called with the watch on, so that what it calls is seen, too.

Inside `__torch_dispatch__` the mode is off. Here it is put back and the operator is sent straight to
its kernel; operators that the kernel calls then come back to the watch, with values. What skips the
dispatcher stays unseen: vendor libraries, loops inside a kernel, memset.
"""

from typing import Any, Dict, Optional

import torch

_KEYS: Dict[str, Any] = {
    "cpu": torch._C.DispatchKeySet(torch._C.DispatchKey.CPU),
    "cuda": torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA),
}

NEVER = frozenset({"aten::detach", "aten::alias", "aten::lift_fresh", "aten::_local_scalar_dense"})
"""Operators that call themselves, or nothing worth seeing."""

_takes_tensors: Dict[Any, Any] = {}


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
                if item.layout is not torch.strided or item.is_quantized:
                    return None
                device = device or item.device.type
            elif item is not None:
                return None
    if device is None:
        given = kwargs.get("device")
        device = given.type if isinstance(given, torch.device) else "cpu"
    return _KEYS.get(device)
