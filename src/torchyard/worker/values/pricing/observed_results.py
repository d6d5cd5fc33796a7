"""What a program shows of its results: text that it prints, values that it reads, parameters.

Two runs of a program are compared by these. Bits are compared by a digest. Numbers are kept beside it,
because reusing a result in training adds gradients in another order, which changes their rounding.
"""

import contextlib
import ctypes
import hashlib
import math
import re
import sys
from typing import Any, Dict, List

import torch

READING = frozenset(
    {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "__array__"}
)
"""Methods of a tensor that hand its values to Python."""
PRINTED = "printed text"
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")
_MOST_TEXT = 100_000
_MOST_NUMBERS = 10_000
_MOST_TENSORS = 2000


class ObservedResults:
    """Collects what a run shows."""

    def __init__(self) -> None:
        self._text_digest = hashlib.sha256()
        self._text: List[str] = []
        self._text_size = 0
        self._read_digest = hashlib.sha256()
        self._numbers: List[float] = []
        self._reads = 0
        self._optimizers: Dict[int, Any] = {}
        self._output: Any = None
        self._hooks: List[Any] = []

    def start(self) -> None:
        """Start observing standard output and optimizers."""
        from torch.optim import optimizer

        write = sys.stdout.write

        def written(text: str) -> int:
            self._printed(text)
            return write(text)

        with contextlib.suppress(AttributeError):  # a stream of the program's own
            setattr(sys.stdout, "write", written)  # noqa: B010
        self._hooks.append(optimizer.register_optimizer_step_post_hook(self._stepped))

    def stop(self) -> None:
        """Stop observing."""
        for hook in self._hooks:
            hook.remove()
        with contextlib.suppress(AttributeError):
            delattr(sys.stdout, "write")

    def read(self, name: str, result: Any) -> None:
        """Note a value that Python got from a tensor."""
        self._reads += 1
        if name in ("numpy", "__array__"):
            self._read_digest.update(result.tobytes())
            return
        self._read_digest.update(repr(result).encode())
        numbers = result if isinstance(result, list) else [result]
        for number in numbers:
            if len(self._numbers) >= _MOST_NUMBERS:
                break
            if isinstance(number, (int, float)) and math.isfinite(number):
                self._numbers.append(float(number))

    def output(self, value: Any) -> None:
        """Note what an iteration of a workload returned; the last one counts."""
        self._output = value

    def as_dict(self) -> Dict[str, Any]:
        """For JSON: of each kind of result a digest, and numbers for a comparison up to rounding."""
        results: Dict[str, Any] = {}
        if self._text_size:
            text = "".join(self._text)[:_MOST_TEXT]
            results[PRINTED] = {
                "digest": self._text_digest.hexdigest(),
                "form": hashlib.sha256(_NUMBER.sub("#", text).encode()).hexdigest(),
                "numbers": [float(number) for number in _NUMBER.findall(text)][:_MOST_NUMBERS],
            }
        if self._reads:
            results["values read by Python"] = {
                "digest": self._read_digest.hexdigest(),
                "numbers": self._numbers,
                "count": self._reads,
            }
        parameters = [
            value
            for one in self._optimizers.values()
            for group in one.param_groups
            for value in group["params"]
        ]
        if parameters:
            results["parameters"] = digest_of(parameters)
        outputs = _tensors_of(self._output)
        if outputs:
            results["output"] = digest_of(outputs)
        return results

    def _printed(self, text: str) -> None:
        self._text_digest.update(text.encode("utf-8", "replace"))
        if self._text_size < _MOST_TEXT:
            self._text.append(text)
        self._text_size += len(text)

    def _stepped(self, of: Any, *_: Any) -> None:
        self._optimizers[id(of)] = of


def digest_of(tensors: List[torch.Tensor]) -> Dict[str, Any]:
    """Return a digest of all bits, and of each tensor the sum and the sum of magnitudes."""
    digest = hashlib.sha256()
    sums: List[float] = []
    scales: List[float] = []
    with torch.no_grad():
        for tensor in tensors[:_MOST_TENSORS]:
            own = tensor.detach().cpu().contiguous()
            size = own.numel() * own.element_size()
            digest.update(("%s%s" % (own.dtype, list(own.shape))).encode())
            if not size:
                continue
            digest.update((ctypes.c_char * size).from_address(own.data_ptr()))
            if own.is_complex():
                own = torch.view_as_real(own)
            numbers = own.double().reshape(-1)
            # Signs by position: a permutation of the elements has another sum.
            places = torch.arange(numbers.numel(), device="cpu")
            signs = ((places * 7919) % 4 - 1.5).to(torch.float64)
            sums.append(float((numbers * signs).sum()))
            scales.append(float((numbers * signs).abs().sum()))
    return {"digest": digest.hexdigest(), "numbers": sums, "scales": scales}


def _tensors_of(value: Any) -> List[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value] if value.layout is torch.strided else []
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors_of(item)]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _tensors_of(item)]
    return []
