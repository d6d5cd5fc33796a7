"""The options of a variant inside its process, as data. No torch.

An option applies to the `model` (once, on a copy), to each `call` (set for a block and restored after it), or to the
`compile`. `changes_results` marks options that reduce precision by design: never chosen automatically.
"""

import difflib
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from torchyard.worker.bench import backend_names

Scalar = Union[bool, int, float, str]
EAGER_KERNEL = "eager-kernel"
COMPILERS = ("inductor", "dynamo")
"""`inductor.NAME=VALUE` is a setting of `torch._inductor.config`, `dynamo.NAME` of dynamo's."""
DDP = "ddp"
FSDP2 = "fsdp2"
WRAPPERS: Dict[str, Dict[str, str]] = {
    DDP: {
        "bucket_cap_mb": "number",
        "broadcast_buffers": "switch",
        "find_unused_parameters": "switch",
        "gradient_as_bucket_view": "switch",
        "static_graph": "switch",
    },
    FSDP2: {"reshard_after_forward": "switch"},
}
"""Modules around a training workload with several ranks, and their settings: `ddp.NAME=VALUE`."""
SAME_BATCH = "same-batch"
ATTENTION = "attention"
FLEX = "flex"
WEIGHTS = "weights"
PREFIXES = (*COMPILERS, *WRAPPERS)


class Option(NamedTuple):
    """One option: name, description, where it is applied, and its values."""

    name: str
    what: str
    applied: str
    """`model`, `call` or `compile`."""
    choices: Tuple[str, ...] = ()
    """Valid values; empty for a switch."""
    example: str = ""
    """An example of a value that can be any text."""
    changes_results: bool = False
    needs_compiler: bool = False
    inference_only: bool = False
    training_only: bool = False


OPTIONS: Tuple[Option, ...] = (
    Option(
        "channels-last",
        "channels-last memory format of images, volumes and convolution weights",
        "model",
    ),
    Option(
        "inference-mode",
        "torch.inference_mode instead of torch.no_grad",
        "call",
        inference_only=True,
    ),
    Option(
        "matmul-precision",
        "torch.set_float32_matmul_precision: `high` and `medium` round operands to TF32 or bfloat16 where the hardware supports it",
        "call",
        choices=("highest", "high", "medium"),
        changes_results=True,
    ),
    Option(
        "tf32",
        "TF32 in float32 matrix products and convolutions on NVIDIA GPUs",
        "call",
        changes_results=True,
    ),
    Option(
        "cudnn-benchmark",
        "torch.backends.cudnn.benchmark",
        "call",
    ),
    Option(
        "deterministic",
        "torch.use_deterministic_algorithms; an operator without a deterministic algorithm fails",
        "call",
    ),
    Option(
        ATTENTION,
        "the only kernel that scaled dot-product attention may use; `flex` replaces it by flex_attention in models of "
        "the suite `models` and of transformers. A kernel that the workload does not run is an error",
        "call",
        choices=("math", "flash", "efficient", "cudnn", FLEX),
    ),
    Option(
        WEIGHTS,
        "quantised weights of linear layers: `int8` with a scale for each output, dequantised in the product; `int8-packed` with torch's product for int8 weights; `torchao-...` by torchao, if the target has it",
        "model",
        choices=("int8", "int8-packed", "torchao-int8", "torchao-int4", "torchao-float8"),
        changes_results=True,
        inference_only=True,
    ),
    Option("no-onednn", "disable oneDNN on the CPU", "call"),
    Option(
        "dynamic",
        "torch.compile with dynamic=True; counts recompilations for two other batch sizes",
        "compile",
        needs_compiler=True,
    ),
    Option(
        EAGER_KERNEL,
        "operators for which Inductor calls the eager kernel instead of generating code, separated by "
        "commas",
        "compile",
        example="native_layer_norm",
        needs_compiler=True,
    ),
    Option(
        "other-batch",
        "count the recompilations for two other batch sizes",
        "compile",
        needs_compiler=True,
    ),
    Option(
        DDP,
        "DistributedDataParallel over the ranks of the workload (`--ranks`); settings such as "
        "`ddp.gradient_as_bucket_view=true` include it",
        "model",
        training_only=True,
    ),
    Option(
        FSDP2,
        "FSDP2 (`fully_shard`) over the ranks of the workload, one unit per layer; its setting "
        "`fsdp2.reshard_after_forward=false` includes it",
        "model",
        training_only=True,
    ),
    Option(
        SAME_BATCH,
        "all ranks of the workload (`--ranks`) get the batch of rank 0, as tensor parallelism needs",
        "model",
    ),
)

_PRECISION_SETTINGS = (
    "inductor.cpp.enable_unsafe_math_opt_flag",
    "inductor.cpp.enable_floating_point_contract_flag",
    "inductor.cuda.use_fast_math",
)
"""Compiler flags that allow rounding that deviates from IEEE 754."""
_SWITCH = {"true": True, "on": True, "false": False, "off": False}


class BadOption(ValueError):
    """An invalid option; `hint` describes the valid ones."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def names() -> List[str]:
    """Return every option in the form `NAME` or `NAME=VALUE`."""
    texts: List[str] = []
    for option in OPTIONS:
        values = option.choices or ((option.example,) if option.example else ())
        texts += ["%s=%s" % (option.name, value) for value in values] or [option.name]
    return texts


def find(name: str) -> Optional[Option]:
    """Return the option of that name, including settings of the compiler."""
    for option in OPTIONS:
        if option.name == name:
            return option
    head, _, setting = name.partition(".")
    if head in WRAPPERS and setting:
        if setting not in WRAPPERS[head]:
            return None
        return Option(name, "a setting of " + head, "model", training_only=True)
    if _is_setting(name):
        return Option(
            name,
            "a setting of the compiler",
            "compile",
            changes_results=name in _PRECISION_SETTINGS,
            needs_compiler=True,
        )
    return None


def looks_like_one(word: str) -> bool:
    """Whether the word can only be an option."""
    name, equals, _ = word.partition("=")
    return bool(equals) or find(name) is not None


def parse(word: str) -> Tuple[str, Scalar]:
    """Return name and value of `NAME` or `NAME=VALUE`; raise BadOption when it is invalid."""
    name, equals, text = word.partition("=")
    option = find(name)
    if option is None:
        raise BadOption("there is no option %r" % name, _nearest(name))
    if _is_setting(name):
        if not equals or not text:
            raise BadOption("%r has no value" % word, "write %s=VALUE, such as true or 4" % name)
        head, _, setting = name.partition(".")
        if head in WRAPPERS:
            return name, _wrapper_value(name, WRAPPERS[head][setting], text)
        return name, _read_scalar(text)
    if option.example:
        if not text:
            raise BadOption("%s has no value" % name, "write %s=%s" % (name, option.example))
        return name, text
    if option.choices:
        if text not in option.choices:
            problem = (
                "%r is not a valid value of %s" % (text, name)
                if equals
                else "%s has no value" % name
            )
            raise BadOption(problem, "write %s=%s" % (name, " or ".join(option.choices)))
        return name, text
    if not equals:
        return name, True
    if text.lower() not in _SWITCH:
        raise BadOption("%s is on or off, not %r" % (name, text), "write %s alone" % name)
    return name, _SWITCH[text.lower()]


def why_not(name: str, backend: str, training: Optional[bool] = None) -> str:
    """Return why the option does not apply to the backend or the mode; empty when it does."""
    option = find(name)
    if option is None:
        return "there is no option %r" % name
    if option.needs_compiler and _is_setting(name):
        head = name.partition(".")[0]
        fits = backend_names.uses_inductor(backend) or (
            head == "dynamo" and backend_names.uses_dynamo(backend)
        )
        if not fits:
            return "%s is a setting of %s, which %s does not use" % (name, head, backend)
    elif name == EAGER_KERNEL and not backend_names.uses_inductor(backend):
        return "%s requires Inductor, which %s does not use" % (name, backend)
    elif option.needs_compiler and not backend_names.uses_dynamo(backend):
        return "%s requires a torch.compile backend, which %s is not" % (name, backend)
    if option.inference_only and training:
        return "%s supports inference only" % name
    if option.training_only and training is False:
        return "%s supports training only" % name
    return ""


def settings_of(options: Dict[str, Scalar], wrapper: str) -> Optional[Dict[str, Scalar]]:
    """Return the settings of a wrapper by name; None if the options do not include it."""
    prefix = wrapper + "."
    settings = {
        name[len(prefix) :]: value for name, value in options.items() if name.startswith(prefix)
    }
    return settings if settings or options.get(wrapper) else None


def wrappers_of(options: Dict[str, Scalar]) -> List[str]:
    """Return the wrappers that the options include; at most one is valid."""
    return [wrapper for wrapper in WRAPPERS if settings_of(options, wrapper) is not None]


def changes_module(name: str, value: Scalar) -> bool:
    """Whether the variant runs a changed copy of the module, so that its eager reference has no such option."""
    return (name == WEIGHTS and bool(value)) or (name == ATTENTION and value == FLEX)


def as_text(options: Dict[str, Scalar]) -> str:
    """Return the options as text: `channels-last+matmul-precision=high`."""
    return "+".join(
        name if value is True and not _is_setting(name) else "%s=%s" % (name, _write_scalar(value))
        for name, value in sorted(options.items())
    )


def that_change_results(options: Dict[str, Scalar]) -> List[str]:
    """Return the names of options that reduce precision by design."""
    names = []
    for name, value in sorted(options.items()):
        option = find(name)
        if option is not None and option.changes_results and value not in (False, "highest"):
            names.append(name)
    return names


def _is_setting(name: str) -> bool:
    head, dot, rest = name.partition(".")
    return head in PREFIXES and bool(dot) and bool(rest)


def _wrapper_value(name: str, kind: str, text: str) -> Scalar:
    value = _read_scalar(text)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "number" and number and 0 < float(value) < 1e6:
        return value
    if kind == "switch" and isinstance(value, bool):
        return value
    example = "25" if kind == "number" else "true"
    raise BadOption("%r is not a valid value of %s" % (text, name), "write %s=%s" % (name, example))


def _nearest(name: str) -> str:
    head = name.partition(".")[0]
    if head in WRAPPERS and "." in name:
        return "settings: " + ", ".join("%s.%s" % (head, one) for one in WRAPPERS[head])
    valid = [option.name for option in OPTIONS]
    close = difflib.get_close_matches(name, valid + ["threads"], n=1)
    if close:
        return "did you mean %r?" % close[0]
    return "options: " + ", ".join(valid) + ", inductor.NAME, dynamo.NAME, threads"


def _read_scalar(text: str) -> Scalar:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _write_scalar(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
