"""Single value, frequent values, structured, approximate: tensors that a few numbers describe.

Single zero and single value: all elements of a computed tensor are equal. Excluded are fills (`filled_operands`, `wasted_writes`),
results computed from scalars, masks, and results of a tensor that already belongs to a finding.

Frequent values: most elements are zero, or almost all have another value. Activations and masks, which produce such
values by design, need a larger share. Gradients belong to `sparse_gradient`.

Structured: constant along a dimension (`expand`) or linear (`arange`); not masks, gradients, or requested as such.

Approximate: elements or rows are equal at the precision of bfloat16. Optional and never proven.
"""

import math
from functools import partial
from typing import Any, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values.findings import LEAST_SHARE, Finding
from torchyard.worker.values.observation import Observation, StorageState
from torchyard.worker.values.operators import aten
from torchyard.worker.values.patterns import LEAST_FINDING_BYTES, Pattern, StorageNotes, evidence_of
from torchyard.worker.values.places import called_by_torch, is_of_torch
from torchyard.worker.values.scanning.cpu_scan import bits_to_number
from torchyard.worker.values.scanning.scanners import PROBES, Scanners, first_three


def only_zeros(observation: Observation) -> bool:
    """Return whether all elements are zero, of either sign: `x * 0` has the sign of x."""
    layout = observation.layout
    sign = 1 << (layout.bits - 1) if layout.is_float else 0
    return bool(observation.scan.any_bits & ~sign == 0)


class SingleValue(Pattern):
    """Computed tensors in which all elements are equal."""

    name = "single value"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._reported = StorageNotes()
        self._of_fills: List[Finding] = []
        """Findings whose first result was computed from a fill, such as an initial guess."""

    def finish(self) -> None:
        """Drop what an initial value gave once, in a program without steps that iterates."""
        for finding in self._of_fills:
            if self.findings.is_start(finding):
                self.findings.drop(finding)

    def observe(self, observation: Observation) -> None:
        """Report a computed tensor that is constant."""
        scan, kind = observation.scan, observation.operator
        zero = only_zeros(observation)
        if (scan.like_first != scan.count and not zero) or scan.count < 2:
            return
        if observation.path or observation.dtype is torch.bool or _is_index(observation):
            return
        if not observation.inputs and not kind.folded:
            return
        if observation.packed:
            return
        if kind.fills or kind.random or kind.many or kind.copies:
            return
        # An accumulator that was just filled, or a write that changed nothing.
        if not observation.fresh and (
            observation.was_fill is not None or scan.unchanged == scan.count
        ):
            return
        one_number = observation.layout.bits // 8
        follows = self._reported.any_of(observation) is not None or (
            not kind.folded
            and all(state.size_bytes <= one_number for _, state in observation.inputs)
        )
        self._reported.put(observation.state)
        if follows or (not zero and self.in_formula(observation)):
            return
        # Initial states, and checks of torch's own distributions, are not the program's.
        if (zero and _is_initial_state(observation)) or called_by_torch("distributions"):
            return
        if zero:
            name, detail = "single zero", "every element is zero"
            if scan.any_bits:
                detail += ", of either sign" if scan.zeros else ", of negative sign"
        else:
            number = bits_to_number(scan.first_bits, observation.layout)
            name, detail = self.name, "every element is %g" % number
        finding = self.report(observation, detail, name=name)
        if finding is not None and finding.count == 1 and _reads_fill(observation):
            self._of_fills.append(finding)


def _reads_fill(observation: Observation) -> bool:
    return any(state.fill is not None for _, state in observation.inputs)


def _is_initial_state(observation: Observation) -> bool:
    """Return whether an operator reads zeros that torch's own Python code made, as a cell without a state does."""
    fills: List[Optional[Observation]] = [state.fill for _, state in observation.inputs]
    return any(
        fill is not None
        and fill.single_zero
        and fill.site is not None
        and is_of_torch(fill.site.code)
        for fill in fills
    )


LEAST_BYTES = LEAST_FINDING_BYTES
SHARE = 0.9
"""Minimum share of one value; sparse kernels need about this share to outperform dense ones."""
ROW_SHARE = 0.75
"""Minimum share of zeros in whole rows or columns: padding and dead neurons, which can be left out. Scattered zeros
of activations, dropout and distances cannot."""
ORDINARY_SHARE = 0.99
ORDINARY = aten(
    "relu threshold hardtanh hardshrink softshrink clamp clamp_min clamp_max masked_fill where tril triu "
    "_softmax _safe_softmax constant_pad_nd"
)
"""Activations and masks produce such values by design."""
SELECTIONS = aten("argmax argmin argsort sort topk max min mode median kthvalue")
MASKING = aten("masked_fill where tril triu _softmax _safe_softmax constant_pad_nd")
"""Zero columns, and fewer than `SHARE` zero rows, of masks and padding serve another purpose."""
SCATTERS = aten(
    "scatter scatter_add scatter_reduce index_put _index_put_impl index_add index_copy one_hot"
)
"""Operators that write selected elements, without the underscore of in-place operators."""
SCATTERED_SHARE = 0.8
"""Minimum share of zeros that remain of a fill after a scatter: the program has the indices of all other elements."""
_MOST_WAITING = 256
_LEAST_GROWING = 4
_LEAST_ROW = 16
USUAL_SHARE = 0.75
"""Minimum share of the calls, if fewer than `SHARE` of the elements are equal."""
_LEAST_ZEROS = 0.2
"""If zeros have both signs, at least this share is positive."""


class FrequentValues(Pattern):
    """Computed tensors in which almost all elements are equal."""

    name = "frequent values"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._derived = StorageNotes()
        """Gradients and reported tensors; results computed from them are not reported."""
        self._scattered: Dict[int, Tuple[Observation, int, float, Dict[str, Any]]] = {}
        """Zeros into which elements were scattered; further writes may follow."""
        self._grown: Dict[int, Tuple[Finding, int, int]] = {}
        """Finding, and first and last number of other elements, by operator, while that number only grows."""

    def observe(self, observation: Observation) -> None:
        """Report a computed tensor that is almost constant."""
        scan = observation.scan
        if self._scattered and not observation.fresh:
            self._settle(observation)
        if (
            observation.size_bytes < LEAST_BYTES
            or scan.like_first == scan.count
            or observation.path
        ):
            return
        if (
            observation.dtype is torch.bool
            or observation.layout.per_number != 1
            or only_zeros(observation)
            or _is_index(observation)
        ):
            return
        noted = observation.in_backward or self._derived.any_of(observation)
        if not noted and not observation.computed and not _is_scattered(observation):
            return  # decided without the values
        frequent = _most_frequent(observation, self.scanner)
        if frequent is None:
            return
        bits, count = frequent
        share = count / scan.count
        if share < _least_share(observation) and (bits or not _in_rows(observation, share)):
            return
        if observation.in_backward or self._derived.any_of(observation):
            self._derived.put(observation.state)
            return
        scattered = _is_scattered(observation) and not bits
        if not (observation.computed or scattered):
            return
        if observation.operator.copies and not observation.converted:
            return
        if scattered and not observation.fresh:
            if len(self._scattered) < _MOST_WAITING:
                evidence = evidence_of(observation, share=share)
                state = observation.state
                self._scattered[state.key] = (observation, state.version, share, evidence)
            return
        self._derived.put(observation.state)
        self._report(observation, bits, share, lambda: evidence_of(observation, share=share))

    def end_step(self) -> None:
        """Report scattered elements that were freed without another write."""
        self._settle()

    def pause(self) -> None:
        """Drop pending results: writes are not observed in the following steps."""
        self._scattered.clear()

    def finish(self) -> None:
        """Report the remaining ones, and drop states that fill up, such as a wave that spreads."""
        self._settle(over=True)
        for finding, first, last in self._grown.values():
            if finding.count >= _LEAST_GROWING and last >= 2 * first:
                self.findings.drop(finding)

    def _settle(self, write: Optional[Observation] = None, over: bool = False) -> None:
        written = None if write is None else write.state
        for key, (observation, version, share, evidence) in list(self._scattered.items()):
            state = observation.state
            writes, reads = state.version - version, state.reads
            if write is not None and state is written:
                # It is complete if the next write starts at the beginning.
                writes -= 1
                reads = write.was_reads if write.whole and write.operator.overwrites else 0
            elif not writes and state.alive and not over:
                continue
            del self._scattered[key]
            if not writes and reads:
                self._report(observation, 0, share, partial(dict, evidence))

    def _report(self, observation: Observation, bits: int, share: float, evidence: Any) -> None:
        number = bits_to_number(bits, observation.layout)
        finding = self.report(
            observation,
            "%.3g %% of the elements are %g" % (100 * share, number),
            share,
            evidence,
            least_share=LEAST_SHARE if share >= SHARE else USUAL_SHARE,
            by_rows=share >= SHARE,
        )
        others = round((1 - share) * observation.scan.count)
        if finding is not None and finding.count == 1:
            self._grown[observation.node] = (finding, others, others)
        elif finding is not None and observation.node in self._grown:
            _, first, last = self._grown.pop(observation.node)
            if others >= last:
                self._grown[observation.node] = (finding, first, others)


def _is_index(observation: Observation) -> bool:
    """Return whether it says which of several values was selected, as `argmax` does."""
    if observation.layout.is_float or observation.operator.name not in SELECTIONS:
        return False
    return any(tensor.numel() > observation.tensor.numel() for tensor, _ in observation.inputs)


def _is_scattered(observation: Observation) -> bool:
    """Return whether selected elements of zeros were written."""
    if observation.operator.name.rstrip("_") not in SCATTERS or not observation.whole:
        return False
    base: Optional[StorageState] = observation.inputs[0][1] if observation.inputs else None
    fill = base.fill if observation.fresh and base is not None else observation.was_fill
    return fill is not None and bool(fill.single_zero)


def _least_share(observation: Observation) -> float:
    if _is_scattered(observation):
        return SCATTERED_SHARE
    of_mask = observation.converted and observation.inputs[0][0].dtype is torch.bool
    ordinary = of_mask or observation.operator.name in ORDINARY
    return ORDINARY_SHARE if ordinary else SHARE


def _in_rows(observation: Observation, share: float) -> bool:
    """Whether the zeros fill whole rows (along the last dimension) or whole columns."""
    tensor = observation.tensor
    masking = observation.operator.name in MASKING
    if share < (SHARE if masking else ROW_SHARE) or tensor.dim() < 2:
        return False
    used = tensor != 0
    columns, count = tensor.shape[-1], tensor.numel() // max(1, tensor.shape[-1])
    if columns >= _LEAST_ROW:
        zero_share = 1 - int(used.any(-1).sum()) / count
        if zero_share >= (SHARE if masking else ROW_SHARE):
            return True
    if masking or count < _LEAST_ROW:
        return False
    return int(used.reshape(-1, columns).any(0).sum()) <= (1 - ROW_SHARE) * columns


def _most_frequent(observation: Observation, scanner: Scanners) -> Optional[Tuple[int, int]]:
    """Return the bits and the count of the most frequent value; None if no value is frequent."""
    scan, layout = observation.scan, observation.layout
    least = scan.count * ROW_SHARE
    if scan.zeros >= least:
        return 0, scan.zeros
    if scan.like_first >= scan.count * SHARE:
        return scan.first_bits, scan.like_first
    # The first element is rare, or zeros have both signs, or no value is frequent: a few probes
    # usually decide.
    tensor, count, bits = observation.tensor, scan.count, layout.bits
    first = scanner.element(tensor, int(PROBES[0] * count), bits)
    second = scanner.element(tensor, int(PROBES[1] * count), bits)
    # Zeros may have both signs: x * 0 has that of x.
    if first != second and scan.zeros < count * _LEAST_ZEROS:
        return None
    negative_zero = 1 << (layout.bits - 1) if layout.is_float else 0
    probes: List[int] = []
    for share in PROBES:
        probe = scanner.element(tensor, int(share * count), bits)
        probes.append(0 if probe == negative_zero else probe)
    likely = max(set(probes), key=probes.count)
    if probes.count(likely) < len(probes) // 2:
        return None
    count = _count_of(likely, observation, scanner)
    return (likely, count) if count >= least else None


def _count_of(bits: int, observation: Observation, scanner: Scanners) -> int:
    number = bits_to_number(bits, observation.layout)
    if math.isnan(number):
        return int(torch.isnan(observation.tensor).sum())
    return scanner.count(observation.tensor, observation.layout, bits)


EXCLUDED = aten("cat stack")
PRODUCTS = aten("addmm mm bmm baddbmm convolution")
"""Operators whose result may be large although a constant input is small, and needs no report of its own."""
_LEAST_COPIES = 4
"""Fewer copies of one tensor in a `cat` or `stack` are variants that differ later."""
_MOST_BLOCKS = 4096
"""Maximum number of blocks of an outer dimension that are compared one by one."""


class Structured(Pattern):
    """Results that are an `expand` of a smaller tensor or an arithmetic sequence."""

    name = "structured"

    def observe(self, observation: Observation) -> None:
        """Search for a constant dimension, then for an arithmetic sequence."""
        if not self.concerns(observation):
            return
        if (
            observation.dtype is torch.bool
            or (observation.operator.name in EXCLUDED and not _of_one(observation))
            or observation.single
        ):
            return
        tensor = observation.tensor
        if not tensor.is_contiguous():
            return
        shape = tuple(tensor.shape)
        constant = self._constant_dimensions(observation, shape)
        if constant:
            self._expand(observation, shape, constant)
        elif _is_line(observation) and not any(_line(tensor) for tensor, _ in observation.inputs):
            self.report(observation, "a line: each element is the previous one plus a constant")

    def _expand(
        self, observation: Observation, shape: Tuple[int, ...], constant: List[int]
    ) -> None:
        # Torch's distributions expand their parameters.
        if self._follows(observation, constant) or called_by_torch("distributions"):
            return
        small = tuple(1 if dim in constant else size for dim, size in enumerate(shape))
        copies = 1
        for dim in constant:
            copies *= shape[dim]
        where = ", ".join(str(dim) for dim in constant)
        detail = "constant along dimension %s: an expand of %s" % (where, list(small))
        self.report(observation, detail, 1 - 1 / copies)

    def _constant_dimensions(self, observation: Observation, shape: Tuple[int, ...]) -> List[int]:
        constant: List[int] = []
        first, bits = observation.scan.first_bits, observation.layout.bits
        inner, per_number = 1, observation.layout.per_number
        for dim in range(len(shape) - 1, -1, -1):
            size = shape[dim]
            # Comparing with the next element along this dimension usually decides.
            if (
                size > 1
                and self.scanner.element(observation.tensor, inner * per_number, bits) == first
                and self._constant(observation.tensor, dim)
            ):
                constant.insert(0, dim)
            inner *= size
        return constant

    def _constant(self, tensor: torch.Tensor, dim: int) -> bool:
        """Return whether a contiguous tensor is constant along a dimension."""
        shape, width = tensor.shape, tensor.element_size()
        inner = 1
        for size in shape[dim + 1 :]:
            inner *= size
        block = inner * shape[dim]
        count = tensor.numel()
        if inner == 1:
            return self.scanner.constant_runs(tensor, block)
        # Most tensors already differ in the first block.
        if not self.scanner.repeats(tensor, 0, block * width, inner * width):
            return False
        blocks = count // block
        if blocks > _MOST_BLOCKS:
            rows = tensor.reshape(blocks, shape[dim], inner)
            return torch.equal(rows[:, 1:], rows[:, :1].expand_as(rows[:, 1:]))
        return all(
            self.scanner.repeats(tensor, at * block * width, block * width, inner * width)
            for at in range(1, blocks)
        )

    def _follows(self, observation: Observation, constant: List[int]) -> bool:
        """Return whether an input is constant along the same dimensions."""
        rank = observation.tensor.dim()
        for argument, state in observation.inputs:
            if (
                not self.scanner.can_scan(argument)
                or not argument.is_contiguous()
                or argument.numel() < 2
            ):
                continue
            if (
                self._single(argument, state)
                and argument.numel() * 2 >= observation.tensor.shape[constant[0]]
            ):
                if _is_factor(observation, argument, state):
                    continue
                return True
            if argument.numel() * argument.element_size() < LEAST_FINDING_BYTES:
                continue
            offset = rank - argument.dim()
            if all(
                dim - offset >= 0
                and argument.shape[dim - offset] == observation.tensor.shape[dim]
                and self._constant(argument, dim - offset)
                for dim in constant
            ):
                return True
        return False

    def _single(self, argument: torch.Tensor, state: Any) -> bool:
        if state.fill is not None:
            return True
        return self.scanner.constant_runs(argument, argument.numel())


def _is_factor(observation: Observation, argument: torch.Tensor, state: Any) -> bool:
    """Whether a constant has no finding of its own, and is no initial state: those are zero."""
    size = argument.numel() * argument.element_size()
    unreported = state.fill is not None or size < LEAST_FINDING_BYTES
    factor = observation.operator.name in PRODUCTS and not argument.requires_grad
    return factor and unreported and bool(argument.any())


def _of_one(observation: Observation) -> bool:
    """Return whether all inputs are the same part of one tensor."""
    first = observation.inputs[0][0]
    return len(observation.inputs) >= _LEAST_COPIES and all(
        one.data_ptr() == first.data_ptr() and one.stride() == first.stride()
        for one, _ in observation.inputs
    )


def _is_line(observation: Observation) -> bool:
    return (
        observation.scan.count > 2
        and observation.layout.per_number == 1
        and _line(observation.tensor)
    )


def _line(tensor: torch.Tensor) -> bool:
    """Return whether the tensor equals first + index * step; rejects quickly, accepts exactly."""
    if not tensor.is_contiguous():
        return False
    three = first_three(tensor)
    if three is None:
        return False
    first, step = three[0], three[1] - three[0]
    # NaN does not equal itself and is rejected here, too.
    if not step or three[2] - three[1] != step:
        return False
    flat = tensor.detach().reshape(-1)
    kind = torch.float64 if tensor.is_floating_point() else torch.int64
    line = torch.arange(flat.numel(), dtype=kind, device=flat.device) * step + first
    return torch.equal(line.to(tensor.dtype), flat)


PRECISION = 2.0**-8
"""Relative precision; bfloat16 has eight bits."""
_COLUMNS = 4096
_LEAST_DEVIATION = 1e-30


class Approximate(Pattern):
    """Tensors that are constant, or have equal rows, in bfloat16 precision."""

    name = "approximate"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._reported = StorageNotes()

    def observe(self, observation: Observation) -> None:
        """Compare the range, then the rows."""
        if not self.options.approximate or not self.concerns(observation):
            return
        layout = observation.layout
        if observation.single or not layout.is_float or layout.per_number != 1:
            return
        if self._reported.any_of(observation):
            self._reported.put(observation.state)
            return
        tensor = observation.tensor
        low, high = self.scanner.number_range(tensor, observation.layout)
        if not (math.isfinite(low) and math.isfinite(high)):
            return
        size = max(abs(low), abs(high))
        if high - low <= size * PRECISION:
            self._reported.put(observation.state)
            self.report(observation, "every element is %.3g to within 1/256" % high)
        elif tensor.dim() > 1 and tensor.shape[0] > 1 and _equal_rows(tensor):
            share = 1 - 1 / tensor.shape[0]
            self._reported.put(observation.state)
            self.report(observation, "all rows are equal to within 1/256", share)


def _equal_rows(tensor: torch.Tensor) -> bool:
    """Compare rows with the first one on a sample of columns; bitwise equality is `structured`."""
    rows = tensor.detach().reshape(tensor.shape[0], -1)
    rows = rows[:, :: max(1, rows.shape[1] // _COLUMNS)].double()
    deviation = float((rows - rows[:1]).abs().max())
    return _LEAST_DEVIATION < deviation <= float(rows.abs().max()) * PRECISION
