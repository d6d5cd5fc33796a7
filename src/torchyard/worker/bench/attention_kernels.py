"""The option `attention=KERNEL`: which kernel scaled dot-product attention runs, checked by what ran.

Torch chooses among the enabled kernels. With one enabled, it raises where that does not support the operands. Compiled
code and models with attention of their own may run another one, so the operators of a call are recorded.
"""

import importlib
from typing import Any, Set

import torch

from torchyard.worker.bench.backend_names import uses_inductor
from torchyard.worker.bench.options import FLEX
from torchyard.worker.workload import CannotBuild

_OPERATORS = {
    "aten::_scaled_dot_product_attention_math": "math",
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_fused_attention_overrideable": "the device's own",
}
_NO_KERNEL = ("No available kernel", "No viable backend", "Invalid backend")


def kernels_of(function: Any, args: Any, kwargs: Any) -> Set[str]:
    """Return the attention kernels that a call runs; those in replayed CUDA graphs are not seen."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        function(*args, **kwargs)
    names = {event.key for event in profiler.key_averages()}
    return {_OPERATORS[name] for name in names if name in _OPERATORS}


def require_kernel(kernel: str, module: Any, args: Any, kwargs: Any, device: str) -> None:
    """Raise CannotBuild unless the uncompiled module runs this kernel, and no other one."""
    if kernel == FLEX:
        return  # the module itself was changed
    try:
        kernels = kernels_of(module, args, kwargs)
    except RuntimeError as error:
        if not any(text in str(error) for text in _NO_KERNEL):
            raise
        raise CannotBuild(
            "torch %s has no attention kernel %r for this workload on %s"
            % (torch.__version__, kernel, device),
            hint="use another kernel or precision; attention=math supports all operands",
        ) from error
    if not kernels:
        raise CannotBuild(
            "attention=%s has no effect: the workload does not call scaled_dot_product_attention"
            % kernel,
            hint="remove the option for this workload",
        )
    _refuse_others(kernel, kernels, "the workload", "choose attention=%s" % min(kernels))


def require_no_other(kernel: str, function: Any, args: Any, kwargs: Any) -> None:
    """Raise CannotBuild if the compiled code runs another fused kernel; `math` is compiled into other operators."""
    if kernel != FLEX:
        kernels = kernels_of(function, args, kwargs) - {"math"}
        hint = "use another backend, or eager"
        _refuse_others(kernel, kernels, "the compiled code", hint)


def _refuse_others(kernel: str, kernels: Set[str], what: str, hint: str) -> None:
    others = sorted(kernels - {kernel})
    if others:
        raise CannotBuild(
            "attention=%s, but %s runs the kernel %s" % (kernel, what, " and ".join(others)),
            hint=hint,
        )


def use_flex(module: Any, backend: str, device: str) -> None:
    """Make the module use flex_attention; raise CannotBuild where it or the backend cannot."""
    try:
        importlib.import_module("torch.nn.attention.flex_attention")
    except ImportError as error:
        raise CannotBuild(
            "torch " + torch.__version__ + " has no flex_attention", hint="use torch 2.5 or newer"
        ) from error
    changed = 0
    for part in module.modules():
        if hasattr(part, "attention_kernel"):
            if uses_inductor(backend):
                _require_compiler(device)
            part.attention_kernel = FLEX
            changed += 1
        elif hasattr(part, "set_attn_implementation"):
            _require_compiler(device)  # transformers compiles it also in eager code
            changed += _use_flex_of_transformers(part)
    if not changed:
        raise CannotBuild(
            "attention=flex has no effect: the model has no attention that can be replaced",
            hint="use models/gpt, another model of the suite models with attention, or a model of transformers",
        )


def _require_compiler(device: str) -> None:
    supported = getattr(torch.cpu, "_is_avx2_supported", lambda: True)
    if torch.device(device).type == "cpu" and not supported():
        raise CannotBuild(
            "Inductor cannot compile flex_attention for this CPU: it requires AVX2",
            hint="use --device cuda; models of the suite models also run it uncompiled, with eager",
        )


def _use_flex_of_transformers(model: Any) -> int:
    try:
        model.set_attn_implementation("flex_attention")
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise CannotBuild(
            "transformers cannot use flex_attention in %s: %s"
            % (type(model).__name__, lines[0][:200]),
            hint="choose another attention kernel",
        ) from error
    return 1
