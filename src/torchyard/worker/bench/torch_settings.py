"""Options as settings of torch: set around the calls of a variant and restored after them.

`attention=KERNEL` is checked by what ran: torch chooses among the enabled kernels, and with one enabled it raises
where that does not support the operands, but compiled code and models with attention of their own may run another
one. So the operators of a call are recorded.
"""

import contextlib
import difflib
import importlib
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

import torch

from torchyard.worker.bench import backend_names
from torchyard.worker.bench import options as option_table
from torchyard.worker.bench.backend_names import uses_inductor
from torchyard.worker.bench.options import FLEX, Scalar
from torchyard.worker.workload import CannotBuild, first_line


def overloads_of(names: str) -> List[Any]:
    """Return all overloads of operators such as `native_layer_norm,gelu`; raise CannotBuild."""
    overloads: List[Any] = []
    for name in names.split(","):
        packet = getattr(torch.ops.aten, name.strip(), None)
        if packet is None:
            raise CannotBuild(
                "torch " + torch.__version__ + " has no operator aten::" + name.strip(),
                hint="use names of ATen operators, such as native_layer_norm",
            )
        overloads += [getattr(packet, overload) for overload in packet.overloads()]
    return overloads


@contextlib.contextmanager
def separate_caches(tag: str) -> Iterator[None]:
    """Share no compiled code with variants of another tag, for options that are not in the keys of the caches.

    Graphs before lowering are the same with and without such an option.
    """
    from torch._inductor import config

    with contextlib.ExitStack() as stack:
        if hasattr(config, "cache_key_tag"):
            stack.enter_context(config.patch(cache_key_tag=tag))
        else:
            stack.enter_context(config.patch(fx_graph_cache=False))
        functorch = torch._functorch.config
        if hasattr(functorch, "enable_autograd_cache"):
            stack.enter_context(functorch.patch(enable_autograd_cache=False))
        yield


@contextlib.contextmanager
def eager_kernels(names: str) -> Iterator[None]:
    """Remove decompositions and lowerings of the operators while this variant compiles and runs."""
    from torch._inductor import decomposition, lowering

    overloads = overloads_of(names)
    tables: List[Dict[Any, Any]] = [decomposition.decompositions]
    select = getattr(decomposition, "select_decomp_table", None)
    if select is not None and select() is not decomposition.decompositions:
        tables.append(select())
    saved: List[Tuple[Dict[Any, Any], Any, Any]] = []
    with separate_caches("eager kernels: " + names):
        try:
            for overload in overloads:
                saved += [
                    (table, overload, table.pop(overload, None))
                    for table in (*tables, lowering.lowerings)
                ]
                lowering.lowerings[overload] = lowering.fallback_handler(overload)
            yield
        finally:
            for overload in overloads:
                lowering.fallbacks.discard(overload)
            for table, overload, value in saved:
                if value is None:
                    table.pop(overload, None)
                else:
                    table[overload] = value


Options = Dict[str, Scalar]
Setting = Tuple[Callable[[], Any], Callable[[Any], None], Any]
"""Getter, setter and new value."""

_CONFIGS = {"inductor": "torch._inductor.config", "dynamo": "torch._dynamo.config"}
_ATTENTION = {"math": "math", "flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn"}


def check(options: Options, backend: str, training: bool) -> None:
    """Raise CannotBuild when an option does not apply to this variant or this torch."""
    for name, value in options.items():
        reason = option_table.why_not(name, backend, training)
        if reason:
            raise CannotBuild(reason, hint="remove the option, or change the backend or mode")
        if name.partition(".")[0] in _CONFIGS and "." in name:
            _check_setting(name, value)
        elif name == option_table.EAGER_KERNEL:
            overloads_of(str(value))
        else:
            _settings(name, value)


@contextlib.contextmanager
def applied(options: Options, backend: str = "eager") -> Iterator[None]:
    """Apply the options around calls, and restore the settings afterwards."""
    with contextlib.ExitStack() as stack:
        for name, value in options.items():
            head, dot, setting = name.partition(".")
            if dot and head in _CONFIGS:
                config = importlib.import_module(_CONFIGS[head])
                stack.enter_context(config.patch({setting: value}))
                continue
            if name == option_table.EAGER_KERNEL:
                stack.enter_context(eager_kernels(str(value)))
                continue
            if name == option_table.ATTENTION and backend_names.uses_inductor(backend):
                stack.enter_context(separate_caches("attention: " + str(value)))
            for read, write, new in _settings(name, value):
                with warnings.catch_warnings():
                    # The TF32 flags warn about a newer API, which older torch lacks.
                    warnings.simplefilter("ignore")
                    before = read()
                    stack.callback(write, before)
                    write(new)
        yield


class OwnOnednn:
    """Keeps the oneDNN flag separate for each variant.

    Torch disables oneDNN for the whole process after a product that it does not support, such as bfloat16 on some CPUs.
    """

    def __init__(self) -> None:
        self._read = getattr(torch._C, "_get_mkldnn_enabled", None)
        self._write = getattr(torch._C, "_set_mkldnn_enabled", None)
        self._own: Optional[bool] = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Apply this variant's flag, and restore that of the others afterwards."""
        if self._read is None or self._write is None:
            yield
            return
        before = self._read()
        if self._own is not None:
            self._write(self._own)
        try:
            yield
        finally:
            self._own = self._read()
            self._write(before)


def _settings(name: str, value: Scalar) -> List[Setting]:
    """Return the settings of an option; raise CannotBuild when this torch does not have them."""
    if value is False:
        return []
    if name == "matmul-precision":
        return [(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, value)]
    if name == "tf32":
        return [_pair(name, "cublas_allow_tf32", True), _pair(name, "cudnn_allow_tf32", True)]
    if name == "cudnn-benchmark":
        return [_pair(name, "cudnn_benchmark", True)]
    if name == "no-onednn":
        return [_pair(name, "mkldnn_enabled", False)]
    if name == "deterministic":
        return [
            (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)
        ]
    if name == "attention":
        return _attention(str(value))
    return []


def _pair(option: str, name: str, new: bool) -> Setting:
    read = getattr(torch._C, "_get_" + name, None)
    write = getattr(torch._C, "_set_" + name, None)
    if read is None or write is None:
        raise CannotBuild(
            "torch " + torch.__version__ + " does not support " + option, hint="remove the option"
        )
    return read, write, new


def _attention(kernel: str) -> List[Setting]:
    settings: List[Setting] = []
    if kernel == option_table.FLEX:
        return settings  # a change of the module, not a setting
    for name, inner in _ATTENTION.items():
        read = getattr(torch.backends.cuda, inner + "_sdp_enabled", None)
        write = getattr(torch.backends.cuda, "enable_" + inner + "_sdp", None)
        if read is not None and write is not None:
            settings.append((read, write, name == kernel))
        elif name == kernel:
            raise CannotBuild(
                "torch " + torch.__version__ + " has no attention kernel " + repr(kernel),
                hint="choose another: " + ", ".join(n for n in _ATTENTION if n != kernel),
            )
    return settings


def _check_setting(name: str, value: Scalar) -> None:
    """Raise CannotBuild unless the compiler setting exists and the value has its type."""
    head, _, path = name.partition(".")
    config: Any = importlib.import_module(_CONFIGS[head])
    current = config
    try:
        for part in path.split("."):
            current = getattr(current, part)
    except AttributeError:
        close = difflib.get_close_matches(path, _names(config), n=1)
        raise CannotBuild(
            "%s of torch %s has no setting %r" % (head, torch.__version__, path),
            hint="did you mean %s.%s?" % (head, close[0]) if close else "see " + _CONFIGS[head],
        ) from None
    expected = type(current)
    fits = current is None or expected is type(value) or (expected is float and type(value) is int)
    if not fits:
        raise CannotBuild(
            "%s is %r in this torch, and %r has another type" % (name, current, value),
            hint="give a value of type " + expected.__name__,
        )


def _names(config: Any) -> List[str]:
    copied = getattr(config, "get_config_copy", None) or getattr(config, "to_dict", None)
    return list(copied()) if copied is not None else dir(config)


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
        raise CannotBuild(
            "transformers cannot use flex_attention in %s: %s"
            % (type(model).__name__, first_line(error)),
            hint="choose another attention kernel",
        ) from error
    return 1
