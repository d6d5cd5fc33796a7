"""Heavy type: values that a narrower dtype represents exactly.

Either the memory is read repeatedly; then explicit conversions (except of a mask to floats), indices returned by
operators, gradients, and results of inputs that are equally narrow are excluded. Or the dtype is wider than that of
the inputs (a conversion, or an operator that chooses int64 by itself) and every reader accepts the narrower one: then
one read suffices. Readers that accept only int64 indices, such as `gather`, rule the second case out.
"""

from collections import OrderedDict
from functools import partial
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from torchyard.worker.values.observation import Observation, Reader
from torchyard.worker.values.operators import aten
from torchyard.worker.values.patterns import (
    Pattern,
    StorageNotes,
    evidence_of,
)
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS, Layout, Scan

LEAST_INTEGER_BYTES = 64 << 10
LEAST_INDEX_BYTES = 1 << 20
"""Integers of more than eight bits are mostly indices: small compared with the indexed tensor, and
not every operator accepts narrower ones."""
LEAST_USES = 2
LEAST_DISTINCT = 3
"""Fewer distinct values are an additive mask, such as 0 and -10000."""
LEAST_DISTINCT_FRACTIONS = 16
CHOSEN_INTEGERS = aten(
    "add sub rsub mul div floor_divide remainder neg abs where masked_fill clamp minimum "
    "maximum bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift cumsum "
    "_to_copy"
)
"""Operators that keep the dtype of integer inputs: the program chose it."""
OWN_DTYPE = aten("arange cumsum cumprod sum prod searchsorted bucketize")
"""Operators that return int64 unless another dtype is requested."""
COUNTS = aten("bincount")
"""Operators that always return int64: a narrower copy pays off from the second read on."""
INDEXED = aten("embedding _embedding_bag embedding_bag index index_select")
"""Operators that accept int32 indices."""
INT64_ONLY = aten(
    "gather scatter scatter_add scatter_reduce index_put _index_put_impl index_add index_copy index_fill take "
    "nll_loss_forward nll_loss2d_forward"
)
"""Operators that accept only int64 indices."""
_EIGHT_BIT_SHARE = 0.8
"""Of the bytes of int64 numbers that fit eight bits, seven eighths are wasted."""
ARITHMETIC = aten("add sub rsub mul div floor_divide remainder pow minimum maximum")
COMPARISONS = aten("eq ne lt le gt ge")
MOVES = aten("roll flip repeat clone constant_pad_nd")
"""Operators that move values: a narrower dtype suffices if it does for the readers of their results."""
REDUCTIONS = aten("sum mean std var prod norm linalg_vector_norm")
"""Operators that accept the dtype of their result as an argument, or are as exact without."""
SELECTIONS = aten("max min amax amin aminmax argmax argmin sort argsort topk _unique2 isin")
"""Operators that return some of the values, or where they are."""
SUMS = aten("sum prod")
FLOATS_ONLY = aten(
    "binary_cross_entropy binary_cross_entropy_with_logits mm bmm mv dot addmm baddbmm convolution"
)
"""Operators that do not accept a mask instead of floating-point numbers."""
_HALVES = (torch.float16, torch.bfloat16)
_SMALL = (torch.bool, torch.uint8, torch.int8, torch.int16)
_INTEGERS = ((torch.uint8, 0, 255), (torch.int8, -128, 127), (torch.int16, -32768, 32767))
_MOST_WAITING = 1024


class _Kept:
    """A narrow tensor that is pending: its reads are still being counted."""

    __slots__ = (
        "cause",
        "detail",
        "evidence",
        "moved",
        "observation",
        "repeatedly",
        "reported",
        "share",
        "version",
        "widened",
    )

    def __init__(
        self,
        observation: Observation,
        detail: str,
        share: float,
        evidence: Any,
        repeatedly: bool,
        widened: Optional["Widened"],
    ) -> None:
        self.repeatedly = repeatedly
        self.widened = widened
        self.cause: Optional["_Kept"] = None
        """An equally narrow input, which is reported instead if it is wasted, too."""
        self.moved: List["_Kept"] = []
        """Results of operators that only moved its values."""
        self.reported = False
        self.observation = observation
        self.version = observation.state.version
        self.detail = detail
        self.share = share
        self.evidence = evidence

    @property
    def alive(self) -> bool:
        """Whether it, or a result with its values, may get another reader."""
        return self.observation.state.alive or any(one.alive for one in self.moved)

    @property
    def is_accepted(self) -> bool:
        """Whether the narrower dtype gives every reader the same result."""
        state, wide = self.observation.state, self.widened
        if wide is None or state.version != self.version or not state.readers:
            return False
        readers = {one for one in state.readers if one.operator not in MOVES}
        moved = all(one.is_accepted for one in self.moved)
        if len(readers) < len(state.readers) and not (self.moved and moved):
            return False
        return moved and (not readers or wide.accepted_by(readers))


class Widened:
    """A result that is wider than its inputs, and what its readers must accept."""

    __slots__ = ("least_uses", "narrow", "to", "unconditional")

    def __init__(
        self,
        to: torch.dtype,
        narrow: Optional[torch.dtype] = None,
        *,
        unconditional: bool = False,
        least_uses: int = 1,
    ) -> None:
        self.to = to
        self.narrow = narrow
        self.unconditional = unconditional
        self.least_uses = least_uses

    def accepted_by(self, readers: Set[Reader]) -> bool:
        """Return whether the narrower dtype gives every reader the same result."""
        if self.narrow is torch.float32 and all(one.operator in REDUCTIONS for one in readers):
            return False  # a sum in double precision
        return self.unconditional or all(self._accepted(reader) for reader in readers)

    def _accepted(self, reader: Reader) -> bool:
        name = reader.operator
        if not self.to.is_floating_point and name in INDEXED | SELECTIONS:
            return True
        if name in REDUCTIONS:
            # Sums of integers are int64 by default.
            sums = name in SUMS and self.to is torch.int64
            return sums or self.to is torch.float64 or self.least_uses > 1
        if name in COMPARISONS:
            # A number is rounded to the dtype of the tensor that it is compared with.
            rounded = reader.float_scalar and self.narrow is torch.float32
            return self.narrow is not None and not rounded
        if name not in ARITHMETIC:
            return False
        # The result keeps its dtype because of another operand, or by true division.
        others = {dtype for dtype, numel in reader.others if numel > 1}
        if any(dtype.is_floating_point for dtype in others):
            return not self.to.is_floating_point or self.to in others
        if self.to is torch.float64:
            return False  # the operator computes in double precision only because of this operand
        if self.to.is_floating_point:
            return False  # the usual way to scale pixels: x.float() / 255
        return name == "aten::div" or reader.float_scalar or self.narrow is torch.bool


def widened(observation: Observation) -> Optional[Widened]:
    """Return how an operator widened its inputs; None if it did not."""
    name, dtype, size = observation.operator.name, observation.dtype, observation.size_bytes
    if observation.operator.copies:
        source = observation.inputs[0][0].dtype
        if not observation.converted or source not in LAYOUTS or source in _HALVES:
            return None
        if LAYOUTS[source].per_number != 1 or LAYOUTS[source].bits >= LAYOUTS[dtype].bits:
            return None
        return Widened(dtype, source, unconditional=dtype is torch.float64 and source in _SMALL)
    if dtype is not torch.int64:
        return None
    if name in COUNTS:
        return Widened(dtype, least_uses=LEAST_USES)
    if name in OWN_DTYPE:
        if observation.generated:
            return Widened(dtype) if size >= LEAST_INTEGER_BYTES else None
        source = observation.inputs[0][0].dtype
        return Widened(dtype, source) if source in _SMALL else None
    return None


class HeavyType(Pattern):
    """Tensors with a wider dtype than their values need."""

    name = "heavy type"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._waiting: "OrderedDict[int, _Kept]" = OrderedDict()
        self._integers = StorageNotes()
        """Narrow integers (`_Kept`) by their memory."""
        self._evidence: Dict[int, Any] = {}
        self._over = False

    def observe(self, observation: Observation) -> None:
        """Store a computed tensor whose dtype is too wide."""
        layout = observation.layout
        if layout.bits == 8 or layout.per_number != 1 or observation.single:
            return
        if not self.concerns(observation) and not (
            observation.generated and observation.size_bytes >= LEAST_INTEGER_BYTES
        ):
            return
        if observation.operator.name in MOVES and self._moved(observation):
            return
        wide = widened(observation)
        repeatedly = bool(observation.inputs) and self._chosen(observation)
        if not repeatedly and wide is None:
            return
        if not self._plausible(observation.tensor, observation.scan, layout):
            return
        narrow = self._narrowest(observation, any_width=wide is not None)
        if narrow is None:
            return
        if repeatedly:
            repeatedly = layout.is_float or _is_worthwhile(narrow, observation)
            if repeatedly and layout.is_float:
                repeatedly = not self._follows(observation)
        if not repeatedly and wide is None:
            return
        if wide is not None or not layout.is_float:
            observation.state.readers = set()
        detail = "%s that is exactly %s" % (_name(observation.dtype), narrow[0])
        evidence = self._evidence.get(observation.node)
        if evidence is None:
            evidence = evidence_of(observation, fits=narrow[0])
            if len(self._evidence) < _MOST_WAITING:
                self._evidence[observation.node] = evidence
        share = 1 - narrow[1] / layout.bits
        candidate = _Kept(observation, detail, share, evidence, repeatedly, wide)
        self._waiting[observation.state.key] = candidate
        if repeatedly and not layout.is_float:
            candidate.cause = self._integers.any_of(observation)
            self._integers.put(observation.state, candidate)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)

    def end_step(self) -> None:
        """Report tensors that were read often enough; live ones may be read in the next step."""
        for key, candidate in list(self._waiting.items()):
            state = candidate.observation.state
            written = state.version != candidate.version
            if not written and self._is_wasted(candidate):
                candidate.reported = True
                if candidate.cause is None or not candidate.cause.reported:
                    self.report(
                        candidate.observation,
                        candidate.detail,
                        candidate.share,
                        partial(dict, candidate.evidence),
                        persistent=True,
                    )
            elif not written and candidate.alive:
                continue
            del self._waiting[key]

    def pause(self) -> None:
        """Drop pending tensors: reads are not observed in the following steps."""
        self._waiting.clear()

    def finish(self) -> None:
        """Handle the end of the last step."""
        self._over = True
        self.end_step()
        self._waiting.clear()

    def _is_wasted(self, kept: _Kept) -> bool:
        state, wide = kept.observation.state, kept.widened
        if kept.repeatedly and state.uses >= LEAST_USES:
            readers = state.readers or set()
            if kept.observation.layout.is_float:
                # The readers of a conversion are known.
                return not any(one.operator in FLOATS_ONLY for one in readers)
            indices = INT64_ONLY if kept.share < _EIGHT_BIT_SHARE else INT64_ONLY | INDEXED
            return not any(one.operator in indices for one in readers)
        # A tensor that still exists may get another reader.
        if wide is None or state.uses < wide.least_uses or (kept.alive and not self._over):
            return False
        return kept.is_accepted

    def _moved(self, observation: Observation) -> bool:
        """Follow the values of a pending tensor into the result of an operator that moves them."""
        state = observation.inputs[0][1]
        source = self._waiting.get(state.key)
        if source is None or source.observation.state is not state or source.widened is None:
            return False
        observation.state.readers = set()
        candidate = _Kept(observation, "", 0.0, None, repeatedly=False, widened=source.widened)
        source.moved.append(candidate)
        return True

    def _plausible(self, tensor: torch.Tensor, scan: Scan, layout: Layout) -> bool:
        """Reject quickly if the bits in use rule out every narrower dtype."""
        any_bits, first_bits = scan.any_bits, scan.first_bits
        if not layout.is_float:
            return any_bits >> layout.bits // 2 == 0 or any_bits >> layout.bits - 1 == 1
        spare = _SPARE.get(layout.bits)
        if spare is not None and any_bits & ((1 << spare) - 1) == 0:
            return True
        if _has_fraction(first_bits, layout):
            return False
        return self.scanner.whole_numbers(tensor, layout)

    def _chosen(self, observation: Observation) -> bool:
        """Return whether the program chose the dtype."""
        if observation.operator.copies:
            return observation.inputs[0][0].dtype is torch.bool and observation.layout.is_float
        if observation.layout.is_float:
            return True
        return (
            observation.size_bytes >= LEAST_INTEGER_BYTES
            and observation.operator.name in CHOSEN_INTEGERS
        )

    def _narrowest(
        self, observation: Observation, any_width: bool = False
    ) -> Optional[Tuple[str, int]]:
        """Return name and bits of the narrowest dtype that represents all values exactly."""
        tensor, layout = observation.tensor, observation.layout
        if not layout.is_float:
            low, high = self.scanner.number_range(tensor, layout)
            fits = _integer_for(low, high)
            if fits is None or fits[1] >= layout.bits:
                return None
            return fits if any_width or _is_worthwhile(fits, observation) else None
        if self.scanner.whole_numbers(tensor, layout):
            low, high = self.scanner.number_range(tensor, layout)
            if low >= 0 and high <= 1:
                return "bool", 8
            fits = _integer_for(low, high)
            if (
                fits is not None
                and fits[1] < layout.bits
                and _distinct(observation) >= LEAST_DISTINCT
            ):
                return fits
        if layout.bits == 16 or _distinct(observation) < LEAST_DISTINCT_FRACTIONS:
            return None
        candidates = (torch.bfloat16, torch.float16) if layout.bits == 32 else (torch.float32,)
        for dtype in candidates:
            if bool(torch.isfinite(tensor).all()) and torch.equal(
                tensor.to(dtype).to(tensor.dtype), tensor
            ):
                return _name(dtype), LAYOUTS[dtype].bits
        return None

    def _follows(self, observation: Observation) -> bool:
        """Return whether an equally narrow floating-point input is the cause."""
        for tensor, state in observation.inputs:
            if tensor.dtype != observation.dtype or 2 * tensor.numel() < observation.tensor.numel():
                continue
            if state.fill is not None or not self.scanner.can_scan(tensor):
                continue
            scan = self.scanner.scan(tensor, observation.layout)
            if scan.like_first == scan.count:
                continue
            if self._plausible(tensor, scan, observation.layout):
                return True
        return False


_SPARE = {64: 29, 32: 13}
"""Low mantissa bits that the next narrower floating-point dtype lacks: float64 has 52 and float32 23,
float32 has 23 and float16 10."""


def _has_fraction(bits: int, layout: Layout) -> bool:
    """Return whether the floating-point number has a fraction or is not finite."""
    mantissa = layout.mantissa
    magnitude = bits & ((1 << (layout.bits - 1)) - 1)
    exponent = (magnitude >> mantissa) - layout.bias
    if exponent < 0:
        return magnitude != 0
    if exponent > layout.bias:
        return True
    return exponent < mantissa and bits & ((1 << (mantissa - exponent)) - 1) != 0


def _is_worthwhile(fits: Tuple[str, int], observation: Observation) -> bool:
    """Return whether a narrower integer dtype is worth a conversion."""
    return fits[1] == 8 or observation.size_bytes >= LEAST_INDEX_BYTES


def _integer_for(low: float, high: float) -> Optional[Tuple[str, int]]:
    for dtype, least, most in _INTEGERS:
        if least <= low and high <= most:
            return _name(dtype), LAYOUTS[dtype].bits
    if low >= -(1 << 31) and high < 1 << 31:
        return "int32", 32
    return None


def _distinct(observation: Observation) -> int:
    return int(torch.unique(observation.values()).numel())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")
