"""Apply a variant to the modules that a script calls, without a change of the script.

The first step of each run is eager: it shows which modules the script calls. They are compiled, or run in
autocast, from the second step on. Settings of torch hold for the whole script.
"""

import functools
from typing import Any, Dict, List

import torch

from torchyard.worker.bench import options as option_table
from torchyard.worker.bench import torch_settings
from torchyard.worker.bench.backend_names import INDUCTOR_MODES, uses_dynamo
from torchyard.worker.bench.backends import check_compile, check_mode, registered_name
from torchyard.worker.workload import CannotBuild, map_tensors

_WITHOUT_EFFECT = ("channels-last", "inference-mode", "other-batch")
_PRECISIONS = ("float32", "amp")


class CalledModules:
    """Records the outermost modules that are called, while it is installed."""

    def __init__(self) -> None:
        self._depth = 0
        self._called: Dict[int, Any] = {}
        self._handles: List[Any] = []

    def install(self) -> None:
        """Start recording."""
        hooks = torch.nn.modules.module
        self._depth = 0
        self._called.clear()
        self._handles.append(hooks.register_module_forward_pre_hook(self._before))
        try:
            after = hooks.register_module_forward_hook(self._after, always_call=True)
        except TypeError:  # older torch
            after = hooks.register_module_forward_hook(self._after)
        self._handles.append(after)

    def take(self) -> List[Any]:
        """Stop recording; return the modules with trainable parameters, or all with parameters."""
        while self._handles:
            self._handles.pop().remove()
        called = [one for one in self._called.values() if any(True for _ in one.parameters())]
        self._called.clear()
        trained = [one for one in called if any(p.requires_grad for p in one.parameters())]
        chosen = trained or called
        # Recomputed activations call submodules during the backward pass.
        inner = {id(one) for module in chosen for one in list(module.modules())[1:]}
        return [module for module in chosen if id(module) not in inner]

    def _before(self, module: Any, _inputs: Any) -> None:
        if self._depth == 0:
            self._called.setdefault(id(module), module)
        self._depth += 1

    def _after(self, _module: Any, _inputs: Any, _output: Any) -> None:
        self._depth -= 1


class AppliedVariant:
    """Backend, precision and options of a variant, applied to the modules of a script."""

    def __init__(self, variant: Dict[str, Any]) -> None:
        """Raise CannotBuild where the variant does not apply to scripts."""
        self.backend = str(variant["backend"])
        self.precision = str(variant["precision"])
        self.options: torch_settings.Options = dict(variant.get("options", ()))
        self.applied_to: List[str] = []
        """Descriptions of what was changed in the modules, for notes."""
        if self.precision not in _PRECISIONS:
            raise CannotBuild(
                "a script creates its own tensors, so " + self.precision + " cannot be applied",
                hint="use amp, which runs the modules of the script in autocast",
            )
        for name, value in self.options.items():
            if (name in _WITHOUT_EFFECT and value) or option_table.changes_module(name, value):
                raise CannotBuild(
                    "the option " + name + " does not apply to a script", hint="remove the option"
                )
        if self.compiles and not uses_dynamo(self.backend):
            raise CannotBuild(
                "a script can be compiled by backends of torch.compile only, not by "
                + self.backend,
                hint="use inductor, or another backend of `torchyard explain backend`",
            )
        torch_settings.check(self.options, self.backend, True)

    @property
    def compiles(self) -> bool:
        """Whether it compiles the modules."""
        return self.backend != "eager"

    @property
    def lower_precision(self) -> List[str]:
        """What reduces precision by design."""
        reducing = option_table.that_change_results(self.options)
        return [*(["amp"] if self.precision == "amp" else []), *reducing]

    def settings(self) -> Any:
        """Return the context of the whole script: settings of torch and of the compiler."""
        return torch_settings.applied(self.options, self.backend)

    def apply(self, modules: List[Any]) -> None:
        """Change the modules in place."""
        if not self.compiles and self.precision == "float32":
            return
        if not modules:
            raise CannotBuild(
                "the first step of the script calls no torch.nn.Module with parameters, so there is nothing to which "
                + "+".join([self.backend] * self.compiles + self.lower_precision)
                + " can be applied",
                hint="compare settings of the process, such as --env, or name the step with --step",
            )
        for module in modules:
            if hasattr(module, "_orig_mod"):
                raise CannotBuild(
                    "the script compiles " + type(module._orig_mod).__name__ + " itself",
                    hint="remove torch.compile from the script: the variants compile it",
                )
        self.applied_to = sorted({type(module).__name__ for module in modules})
        for module in modules:
            if self.precision == "amp":
                module.forward = _in_autocast(module)
            if self.compiles:
                self._compile(module)

    def _compile(self, module: Any) -> None:
        check_compile()
        name, _, way = self.backend.partition(":")
        arguments: Dict[str, Any] = {"dynamic": True if self.options.get("dynamic") else None}
        if name == "inductor":
            check_mode(name, way, INDUCTOR_MODES)
            arguments.update(backend="inductor", mode=way or None)
        else:
            arguments.update(backend=registered_name(self.backend))
        # Not Module.compile: it compiles nothing, silently, if the module is one of torch's own classes.
        module.forward = torch.compile(module.forward, **arguments)


def _in_autocast(module: Any) -> Any:
    """Return the forward function in autocast, with outputs in float32, as `accelerate` wraps it."""
    kind = next(module.parameters()).device.type
    dtype = torch.bfloat16
    if kind == "cuda" and not torch.cuda.is_bf16_supported():
        dtype = torch.float16
    forward = module.forward

    def as_float32(tensor: Any) -> Any:
        return tensor.float() if tensor.dtype is dtype else tensor

    @functools.wraps(forward)
    def in_autocast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type=kind, dtype=dtype):
            output = forward(*args, **kwargs)
        return map_tensors(output, as_float32)

    return in_autocast
