"""Heavy type: values that a narrower dtype represents exactly, in memory that is read repeatedly.

Excluded are explicit conversions (except of a mask to floats), indices returned by operators, gradients, and results
of inputs that are equally narrow. An intermediate value, read once, is not stored.
"""

from collections import OrderedDict
from functools import partial
from typing import Any, Dict, Optional, Tuple

import torch

from torchyard.worker.values.observation import Observation
from torchyard.worker.values.operators import aten
from torchyard.worker.values.patterns import Pattern, StorageNotes, evidence_of
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
_INTEGERS = ((torch.uint8, 0, 255), (torch.int8, -128, 127), (torch.int16, -32768, 32767))
_MOST_WAITING = 1024


class _Kept:
    """A narrow tensor that is pending: its reads are still being counted."""

    __slots__ = ("detail", "evidence", "observation", "share", "version")

    def __init__(self, observation: Observation, detail: str, share: float, evidence: Any) -> None:
        self.observation = observation
        self.version = observation.state.version
        self.detail = detail
        self.share = share
        self.evidence = evidence


class HeavyType(Pattern):
    """Tensors with a wider dtype than their values need."""

    name = "heavy type"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._waiting: "OrderedDict[int, _Kept]" = OrderedDict()
        self._reported = StorageNotes()
        """Storages with integers that belong to a finding."""
        self._evidence: Dict[int, Any] = {}

    def observe(self, observation: Observation) -> None:
        """Store a computed tensor whose dtype is too wide."""
        layout = observation.layout
        if layout.bits == 8 or layout.per_number != 1 or not self.concerns(observation):
            return
        if observation.single or not self._chosen(observation):
            return
        if not self._plausible(observation.tensor, observation.scan, layout):
            return
        narrow = self._narrowest(observation)
        if narrow is None:
            return
        follows = self._follows(observation)
        self._reported.put(observation.state)
        if follows:
            return
        detail = "%s that is exactly %s" % (_name(observation.dtype), narrow[0])
        evidence = self._evidence.get(observation.node)
        if evidence is None:
            evidence = evidence_of(observation, fits=narrow[0])
            if len(self._evidence) < _MOST_WAITING:
                self._evidence[observation.node] = evidence
        share = 1 - narrow[1] / layout.bits
        self._waiting[observation.state.key] = _Kept(observation, detail, share, evidence)
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)

    def end_step(self) -> None:
        """Report tensors that were read often enough; live ones may be read in the next step."""
        for key, kept in list(self._waiting.items()):
            state = kept.observation.state
            written = state.version != kept.version
            if not written and state.uses >= LEAST_USES:
                self.report(
                    kept.observation,
                    kept.detail,
                    kept.share,
                    partial(dict, kept.evidence),
                    persistent=True,
                )
            elif not written and state.alive:
                continue
            del self._waiting[key]

    def pause(self) -> None:
        """Drop pending tensors: reads are not observed in the following steps."""
        self._waiting.clear()

    def finish(self) -> None:
        """Handle the end of the last step."""
        self.end_step()
        self._waiting.clear()

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

    def _narrowest(self, observation: Observation) -> Optional[Tuple[str, int]]:
        """Return name and bits of the narrowest dtype that represents all values exactly."""
        tensor, layout = observation.tensor, observation.layout
        if not layout.is_float:
            low, high = self.scanner.number_range(tensor, layout)
            fits = _integer_for(low, high)
            if fits is None or fits[1] >= layout.bits:
                return None
            return fits if fits[1] == 8 or observation.size_bytes >= LEAST_INDEX_BYTES else None
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
        """Return whether an equally narrow input is the cause; for integers only one that belongs to a finding."""
        if not observation.layout.is_float:
            return self._reported.any_of(observation) is not None
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
