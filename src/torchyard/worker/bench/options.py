"""What can be set for one variant inside its process: every option, as data. No torch.

An option is applied in one of three places:

model      once, when the side is built, on a copy of the model that only sides with it share
call       around every call: set when a block of the side begins and put back when it ends, so that
           sides of one process do not see each other's settings
compile    when the compiler is asked for the side's code, which happens in the same block

`changes_results` marks what computes in less precision by design. Such an option is never chosen
without being asked for, and its error is reported. What merely adds in another order is not marked.
"""

import difflib
from typing import Dict, List, NamedTuple, Optional, Tuple, Union

from torchyard.worker.bench import backend_names

Scalar = Union[bool, int, float, str]
PREFIXES = ("inductor", "dynamo")
"""`inductor.NAME=VALUE` is a setting of `torch._inductor.config`, `dynamo.NAME` of dynamo's."""


class Option(NamedTuple):
    """One option: what it is called, what it may be, what it does, and where."""

    name: str
    what: str
    applied: str
    """`model`, `call` or `compile`."""
    choices: Tuple[str, ...] = ()
    """Values that it takes; none for a switch."""
    changes_results: bool = False
    needs_compiler: bool = False
    inference_only: bool = False


OPTIONS: Tuple[Option, ...] = (
    Option(
        "channels-last",
        "store images, volumes and the weights of convolutions with the channels last",
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
        "torch.set_float32_matmul_precision: `high` and `medium` round the operands of float32 "
        "products to TF32 or bfloat16 where the hardware can",
        "call",
        choices=("highest", "high", "medium"),
        changes_results=True,
    ),
    Option(
        "tf32",
        "TF32 in float32 products and convolutions on NVIDIA GPUs",
        "call",
        changes_results=True,
    ),
    Option(
        "cudnn-benchmark",
        "cuDNN times its algorithms for each shape and keeps the fastest",
        "call",
    ),
    Option(
        "deterministic",
        "only algorithms that give the same bits in every run; an operator without one fails",
        "call",
    ),
    Option(
        "attention",
        "the only kind of kernel that scaled dot-product attention may use",
        "call",
        choices=("math", "flash", "efficient", "cudnn"),
    ),
    Option("no-onednn", "leave oneDNN out on the CPU", "call"),
    Option(
        "dynamic",
        "compile for any size (torch.compile with dynamic=True); the metrics then try two other "
        "batch sizes and count what is compiled again",
        "compile",
        needs_compiler=True,
    ),
    Option(
        "other-batch",
        "try two other batch sizes after the first and count what is compiled again",
        "compile",
        needs_compiler=True,
    ),
)

_PRECISION_SETTINGS = (
    "inductor.cpp.enable_unsafe_math_opt_flag",
    "inductor.cpp.enable_floating_point_contract_flag",
    "inductor.cuda.use_fast_math",
)
"""Compiler flags that let products and sums be rounded otherwise than IEEE 754 says."""
_SWITCH = {"true": True, "on": True, "false": False, "off": False}


class BadOption(ValueError):
    """A word that looks like an option and is none; `hint` says what would be."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def names() -> List[str]:
    """Every option as it is written, with the values it takes."""
    found: List[str] = []
    for option in OPTIONS:
        found += ["%s=%s" % (option.name, choice) for choice in option.choices] or [option.name]
    return found


def find(name: str) -> Optional[Option]:
    """The option of that name; a compiler's own setting is one, too."""
    for option in OPTIONS:
        if option.name == name:
            return option
    if _is_setting(name):
        return Option(
            name,
            "a setting of the compiler's own",
            "compile",
            changes_results=name in _PRECISION_SETTINGS,
            needs_compiler=True,
        )
    return None


def looks_like_one(word: str) -> bool:
    """Whether the word can only be meant as an option."""
    name, equals, _ = word.partition("=")
    return bool(equals) or find(name) is not None


def parse(word: str) -> Tuple[str, Scalar]:
    """Name and value of `NAME` or `NAME=VALUE`; BadOption says what is wrong with it."""
    name, equals, text = word.partition("=")
    option = find(name)
    if option is None:
        raise BadOption("there is no option %r" % name, _nearest(name))
    if _is_setting(name):
        if not equals or not text:
            raise BadOption("%r has no value" % word, "write %s=VALUE, such as true or 4" % name)
        return name, _read_scalar(text)
    if option.choices:
        if text not in option.choices:
            said = "%r is no value of %s" % (text, name) if equals else "%s has no value" % name
            raise BadOption(said, "write %s=%s" % (name, " or ".join(option.choices)))
        return name, text
    if not equals:
        return name, True
    if text.lower() not in _SWITCH:
        raise BadOption("%s is on or off, not %r" % (name, text), "write %s alone" % name)
    return name, _SWITCH[text.lower()]


def why_not(name: str, backend: str, training: Optional[bool] = None) -> str:
    """Why the option means nothing to the backend or the mode; empty when it does."""
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
    elif option.needs_compiler and not backend_names.uses_dynamo(backend):
        return "%s needs a backend of torch.compile, and %s is none" % (name, backend)
    if option.inference_only and training:
        return "%s is for inference: it keeps nothing that a gradient needs" % name
    return ""


def as_text(options: Dict[str, Scalar]) -> str:
    """As they are written: `channels-last+matmul-precision=high`."""
    return "+".join(
        name if value is True and not _is_setting(name) else "%s=%s" % (name, _write_scalar(value))
        for name, value in sorted(options.items())
    )


def that_change_results(options: Dict[str, Scalar]) -> List[str]:
    """Names of those that compute in less precision by design."""
    found = []
    for name, value in sorted(options.items()):
        option = find(name)
        if option is not None and option.changes_results and value not in (False, "highest"):
            found.append(name)
    return found


def _is_setting(name: str) -> bool:
    head, dot, rest = name.partition(".")
    return head in PREFIXES and bool(dot) and bool(rest)


def _nearest(name: str) -> str:
    known = [option.name for option in OPTIONS]
    close = difflib.get_close_matches(name, known + ["threads"], n=1)
    if close:
        return "did you mean %r?" % close[0]
    return "options: " + ", ".join(known) + ", inductor.NAME, dynamo.NAME, threads"


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
