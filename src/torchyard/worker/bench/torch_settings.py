"""Options as settings of torch: set around the calls of a variant and restored after them."""

import contextlib
import difflib
import importlib
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from torchyard.worker.bench import options as known
from torchyard.worker.bench.options import Scalar
from torchyard.worker.workload import CannotBuild

Options = Dict[str, Scalar]
Setting = Tuple[Callable[[], Any], Callable[[Any], None], Any]
"""How it is read, how it is written, and what is written."""

_CONFIGS = {"inductor": "torch._inductor.config", "dynamo": "torch._dynamo.config"}
_ATTENTION = {"math": "math", "flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn"}


def check(options: Options, backend: str, training: bool) -> None:
    """CannotBuild where an option means nothing to this side, or nothing to this torch."""
    for name, value in options.items():
        reason = known.why_not(name, backend, training)
        if reason:
            raise CannotBuild(reason, hint="leave the option out, or change the backend or mode")
        if name.partition(".")[0] in _CONFIGS and "." in name:
            _check_setting(name, value)
        else:
            _settings(name, value)


@contextlib.contextmanager
def applied(options: Options) -> Iterator[None]:
    """Set what belongs around calls; everything is as before when it ends."""
    with contextlib.ExitStack() as stack:
        for name, value in options.items():
            head, dot, setting = name.partition(".")
            if dot and head in _CONFIGS:
                config = importlib.import_module(_CONFIGS[head])
                stack.enter_context(config.patch({setting: value}))
                continue
            for read, write, wanted in _settings(name, value):
                with warnings.catch_warnings():
                    # The flags for TF32 warn of a newer way to say the same, which older torch lacks.
                    warnings.simplefilter("ignore")
                    before = read()
                    stack.callback(write, before)
                    write(wanted)
        yield


class OwnOnednn:
    """Keeps whether oneDNN is on apart for each side.

    Torch turns it off by itself, for the whole process, after a product that oneDNN refuses: bfloat16
    on a processor without it. The other sides of the process must not be slower for that, and a side
    that lost it must not try again in every block.
    """

    def __init__(self) -> None:
        self._read = getattr(torch._C, "_get_mkldnn_enabled", None)
        self._write = getattr(torch._C, "_set_mkldnn_enabled", None)
        self._own: Optional[bool] = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """As this side left it, and afterwards as the others had it."""
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
    """What the option writes to; CannotBuild where this torch has no such thing."""
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
        return [(torch.are_deterministic_algorithms_enabled, _set_deterministic, True)]
    if name == "attention":
        return _attention(str(value))
    return []


def _pair(option: str, name: str, wanted: bool) -> Setting:
    read = getattr(torch._C, "_get_" + name, None)
    write = getattr(torch._C, "_set_" + name, None)
    if read is None or write is None:
        raise CannotBuild(
            "torch " + torch.__version__ + " cannot set " + option, hint="leave the option out"
        )
    return read, write, wanted


def _set_deterministic(on: bool) -> None:
    torch.use_deterministic_algorithms(on)


def _attention(wanted: str) -> List[Setting]:
    found: List[Setting] = []
    for name, inner in _ATTENTION.items():
        read = getattr(torch.backends.cuda, inner + "_sdp_enabled", None)
        write = getattr(torch.backends.cuda, "enable_" + inner + "_sdp", None)
        if read is not None and write is not None:
            found.append((read, write, name == wanted))
        elif name == wanted:
            raise CannotBuild(
                "torch " + torch.__version__ + " has no attention kernel " + repr(wanted),
                hint="choose another: " + ", ".join(n for n in _ATTENTION if n != wanted),
            )
    return found


def _check_setting(name: str, value: Scalar) -> None:
    """A setting of the compiler's that exists, with a value of its kind."""
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
    wanted = type(current)
    fits = current is None or wanted is type(value) or (wanted is float and type(value) is int)
    if not fits:
        raise CannotBuild(
            "%s is %r in this torch, and %r is of another kind" % (name, current, value),
            hint="give a value of the kind " + wanted.__name__,
        )


def _names(config: Any) -> List[str]:
    copied = getattr(config, "get_config_copy", None) or getattr(config, "to_dict", None)
    return list(copied()) if copied is not None else dir(config)
