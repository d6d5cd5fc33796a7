"""The module that variants of one process share: its structure and its weights. Runs inside the target.

A variant that converts, fuses or patches the module in place changes what the baseline runs. Nothing
can put that back, so it is detected and reported.
"""

from typing import Any, Dict, List, Tuple

import torch

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_CHUNK = 4096


class ModuleState:
    """Structure of a module and its optimiser at one moment; `changes` compares it with now."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before = self._read()

    def changes(self) -> List[str]:
        """What is different now, in words, at most three."""
        now = self._read()
        found = []
        for name, facts in self._before.items():
            if name not in now:
                found.append("%s is gone" % name)
                continue
            for label, before, after in zip(facts[::2], facts[1::2], now[name][1::2]):
                if before != after:
                    found.append("%s of %s" % (label, name))
        found += ["%s was added" % name for name in now if name not in self._before]
        return found[:3]

    def _read(self) -> Dict[str, Tuple[Any, ...]]:
        found: Dict[str, Tuple[Any, ...]] = {}
        for name, part in self._model.module.named_modules():
            own = vars(part)
            found["module %s" % (name or "(root)")] = (
                "identity",
                id(part),
                "type",
                type(part),
                "training mode",
                part.training,
                "forward",
                (own.get("forward"), getattr(type(part), "forward", None)),
                "call",
                (own.get("__call__"), type(part).__call__, own.get("_compiled_call_impl")),
                "hooks",
                tuple(tuple(own.get(hooks) or ()) for hooks in _HOOKS),
            )
        for name, parameter in self._model.module.named_parameters():
            found["parameter " + name] = (
                "identity",
                id(parameter),
                "data type",
                parameter.dtype,
                "shape",
                tuple(parameter.shape),
                "device",
                parameter.device,
                "memory layout",
                parameter.stride() if parameter.layout is torch.strided else (),
                "requires_grad",
                parameter.requires_grad,
            )
        optimizer = self._model.optimizer
        if optimizer is not None:
            kind = type(optimizer)
            found["the optimizer"] = (
                "type",
                kind,
                "step",
                (vars(optimizer).get("step"), vars(kind).get("step")),
                "learning rate",
                tuple(group.get("lr") for group in optimizer.param_groups),
            )
        return found


def checksums(module: Any) -> Dict[str, Tuple[Any, ...]]:
    """A checksum of each parameter's bits: equal for equal weights, without a copy of them."""
    return {name: checksum(parameter) for name, parameter in module.named_parameters()}


def checksum(tensor: Any) -> Tuple[Any, ...]:
    """Of the bits of a strided tensor; other layouts have none."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return ()
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        if flat.is_complex():
            flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
        widths = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        bits = flat.view(widths[flat.element_size()]) if flat.dtype is not torch.bool else flat
        whole = bits.numel() // _CHUNK * _CHUNK
        sums = bits[:whole].view(-1, _CHUNK).sum(dim=1, dtype=torch.int64)
        rest = bits[whole:].sum(dtype=torch.int64)
        weights = torch.arange(1, sums.numel() + 1, device=sums.device)
        return int((sums * weights).sum()), int(sums.sum() + rest), int(tensor.numel())
