"""Redundant write, dead initialisation, guard that never fires.

Redundant write: an operator overwrote values and left (almost) every bit unchanged. Dead initialisation: a fill of a
whole storage that was overwritten before anything read it, or zeros to which one tensor was added (`zero_grad`
without `set_to_none`). Fills that an operator's own loops overwrite are tested by `proofs/proof.py`.

Guard: `where`, `clamp`, `nan_to_num` and similar operators returned their input bit for bit in every call. Other
inputs may need them; so three observations without exception are required, and the finding is at most likely. So is a
mask that only `all` reads and that is true everywhere, or only `any` and false everywhere: a check of the values.
"""

from collections import OrderedDict
from functools import partial
from typing import Any, Dict, List, Optional, Set, Tuple

import torch

from torchyard.worker.values.findings import LEAST_SHARE, Cause, Finding, cause_of
from torchyard.worker.values.observation import Observation, StorageState, covers
from torchyard.worker.values.operators import Operator, aten
from torchyard.worker.values.patterns import (
    LEAST_FINDING_BYTES,
    Pattern,
    evidence_of,
    same_bits,
    where,
)
from torchyard.worker.values.places import Place, called_by_torch, torch_frame

SHARE = 0.99
"""Minimum share of unchanged elements."""

WRITES_SELECTED = (
    "aten::index_",
    "aten::_index_put",
    "aten::scatter",
    "aten::masked_",
    "aten::put_",
)
"""Operators that write selected elements only; all elements must be unchanged."""

MAY_WRITE = ("aten::_fused_", "aten::_native_batch_norm", "aten::_batch_norm_with_update")
"""Operators that do not always write all arguments marked as written in their schema: fused optimizers
write gradients only if they are scaled."""


class RedundantWrite(Pattern):
    """Writes over initialized memory that changed almost nothing."""

    name = "redundant write"

    def observe(self, observation: Observation) -> None:
        """Report a write that changed almost nothing."""
        if (
            observation.fresh
            or not observation.compared
            or observation.scan.unchanged < observation.scan.count * SHARE
        ):
            return
        if (
            not observation.was_defined
            or observation.written_inside
            or (observation.path and observation.given)
        ):
            return
        name, share = observation.operator.name, observation.unchanged_share
        if name.startswith(MAY_WRITE) or (share < 1.0 and name.startswith(WRITES_SELECTED)):
            return
        if self.in_formula(observation):
            return
        if name in GUARDS and (observation.path or not mask_selects_elements(observation)):
            return
        if name == "aten::copy_" and _same_memory(*observation.arguments[:2]):
            return  # torch skips the copy of a tensor to itself, as after `x[2:] *= 2`
        exponent = observation.arguments[1] if name == "aten::pow_" else None
        if not isinstance(exponent, torch.Tensor) and exponent == 1:
            return  # implemented as such a copy
        # Memory that was just filled is an accumulator; zero times anything stays zero.
        if observation.was_fill is not None and not observation.operator.overwrites:
            return
        scaled = _scaled_by_tensor(observation)
        if scaled and not _clips_far_above():
            return
        detail = "%.3g %% of the elements had the same bits before" % (100 * share)
        evidence = partial(evidence_of, observation, unchanged_share=share)
        least_share = 1.0 if scaled else LEAST_SHARE
        self.report(observation, detail, share, evidence, least_share=least_share)


PUTS = aten("index_put_ _index_put_impl_")
SCALINGS = aten("mul_ div_ _foreach_mul_ _foreach_div_")
INDEXED_WRITES = PUTS | aten("index_copy_ scatter_")


_FAR = 10.0
"""Minimum ratio of the limit to the norm of the gradients."""


def _scaled_by_tensor(observation: Observation) -> bool:
    """Return whether a factor that the program computed happens to be one, as in gradient clipping."""
    if observation.operator.name not in SCALINGS or len(observation.arguments) < 2:
        return False
    factor = observation.arguments[1]
    return isinstance(factor, torch.Tensor) and factor.numel() == 1


def _clips_far_above() -> bool:
    """Return whether `clip_grad_norm_` is clipping, and its limit is far above the norm."""
    frame = torch_frame("_clip_grads_with_norm_", "clip_grad_norm_")
    ratio = None if frame is None else frame.f_locals.get("clip_coef")
    return isinstance(ratio, torch.Tensor) and float(ratio) >= _FAR


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
    )


ADDITIONS = aten("add_ _foreach_add_")
INDEXED_SHARE = 0.9
"""Minimum share of the calls whose indices reach every element: a permutation always does."""
_MOST_WAITING = 1024

ADDED = "zeroed only to be added to: the result is the addend"
ADDED_TO_GRADIENT = "gradient zeroed only to be added to: the result is the new gradient"


class _Sum:
    """Zeros to which one tensor was added; another addition may follow."""

    __slots__ = ("evidence", "fill", "state", "version")

    def __init__(self, fill: Observation, state: StorageState, evidence: Any) -> None:
        self.fill = fill
        self.state = state
        self.version = state.version
        self.evidence = evidence


class DeadInitialisation(Pattern):
    """Fills whose values are never used."""

    name = "dead initialisation"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._sums: "OrderedDict[int, _Sum]" = OrderedDict()
        self._kernel_writes: Dict[Tuple[Cause, int], Tuple[StorageState, int]] = {}
        """The last write of each generated kernel and its version."""
        self._used_causes: Set[Cause] = set()
        """Kernels whose result was read at least once."""
        self._reads: Dict[Cause, int] = {}
        """Number of fills whose values were read."""

    def observe(self, observation: Observation) -> None:
        """Examine a write over a fill, or over what a generated kernel wrote."""
        written = observation.was_kernel_write
        if written is not None and (written is not observation.was_fill or observation.fresh):
            self._over_kernel_write(written, observation)
        if observation.operator.is_kernel and observation.whole:
            self._note_kernel_write(observation)
        if observation.fresh:
            return
        if observation.operator.fills and observation.state.key in self._sums:
            self._settle(self._sums.pop(observation.state.key), refilled=observation.state)
        fill = observation.was_fill
        if (
            fill is None
            or observation.written_inside
            or not observation.whole
            or (observation.path and observation.given)
        ):
            return
        if observation.operator.overwrites:
            # Writing the same bits is a redundant write; filling before random initialization
            # happens once per parameter.
            if (
                not observation.was_reads
                and not observation.operator.random
                and not _unchanged(observation)
            ):
                self._overwritten(fill, observation.operator, observation.place, "whole")
        elif observation.operator.name in INDEXED_WRITES:
            if observation.was_reads == 1 and _covers_all(observation):
                self._overwritten(
                    fill,
                    observation.operator,
                    observation.place,
                    "at all indices",
                    least_share=INDEXED_SHARE,
                )
        elif (
            observation.operator.name in ADDITIONS
            and observation.was_reads == 1
            and fill.single_zero
        ):
            self._added(fill, observation)

    def fill_covered(self, fill: Observation, by: Operator, place: Place) -> None:
        """Report a fill that was overwritten piece by piece."""
        if not by.random:
            self._overwritten(fill, by, place, "piece by piece")

    def fill_read(self, fill: Observation) -> None:
        """Count a fill whose values were read."""
        cause = cause_of(self.name, fill)
        if cause in self._reads or len(self._reads) < _MOST_WAITING:
            self._reads[cause] = self._reads.get(cause, 0) + 1

    def end_step(self) -> None:
        """Report pending sums whose memory was freed."""
        for key in [key for key, held in self._sums.items() if not held.state.alive]:
            self._settle(self._sums.pop(key))

    def pause(self) -> None:
        """Drop pending sums: additions are not observed in the following steps."""
        self._sums.clear()

    def finish(self) -> None:
        """Report the remaining sums."""
        for held in self._sums.values():
            self._settle(held)
        self._sums.clear()
        for key in self._kernel_writes:
            self._check_read(key)
        for finding in self.findings.candidates():
            if finding.pattern == self.name:
                finding.used = self._reads.get(finding.cause, 0)

    def _overwritten(
        self, fill: Observation, by: Operator, place: Place, how: str, **options: Any
    ) -> None:
        self._withdraw_read(fill)
        detail = "overwritten %s by %s before anything read it" % (how, by.name)
        overwritten_by = {"operator": by.name, "file": place.file, "line": place.line}
        self.report(
            fill,
            detail,
            evidence=partial(evidence_of, fill, overwritten_by=overwritten_by),
            **options,
        )

    def _withdraw_read(self, fill: Observation) -> None:
        """Do not count the read by the operator that replaced the values."""
        cause = cause_of(self.name, fill)
        if fill.values_read and self._reads.get(cause):
            self._reads[cause] -= 1

    def _over_kernel_write(self, written: Observation, observation: Observation) -> None:
        """Report a kernel whose result is never read, in any call, before it is overwritten."""
        cause = cause_of(self.name, written)
        if observation.was_reads or not observation.operator.overwrites:
            self._used(cause)
        elif (
            cause not in self._used_causes
            and observation.whole
            and not written.operator.random
            and not _unchanged(observation)
        ):
            self._overwritten(written, observation.operator, observation.place, "whole")

    def _note_kernel_write(self, observation: Observation) -> None:
        """Remember a write of a kernel, to know whether it is read without being overwritten later."""
        cause, state = cause_of(self.name, observation), observation.state
        key = (cause, observation.position)
        if key in self._kernel_writes:
            self._check_read(key)
        if len(self._kernel_writes) < _MOST_WAITING or key in self._kernel_writes:
            self._kernel_writes[key] = (state, state.version)
        else:
            self._used(cause)

    def _check_read(self, key: Tuple[Cause, int]) -> None:
        state, version = self._kernel_writes[key]
        if state.version == version and state.reads:
            self._used(key[0])

    def _used(self, cause: Cause) -> None:
        """Drop the finding of a kernel whose result was read."""
        self._used_causes.add(cause)
        for finding in self.findings.candidates():
            if finding.cause == cause:
                self.findings.drop(finding)

    def _added(self, fill: Observation, observation: Observation) -> None:
        addend = _addend(observation)
        if addend is None or not self._is_addend(observation, addend):
            return
        node = self.autograd_node()
        if node is not None and type(node).__name__ == "AccumulateGrad":
            self._report_sum(
                fill, ADDED_TO_GRADIENT, evidence_of(observation, added_by=where(observation))
            )
            return
        # An accumulator with several addends needs its zeros: wait for further additions.
        evidence = evidence_of(observation, added_by=where(observation))
        self._sums[observation.state.key] = _Sum(fill, observation.state, evidence)
        if len(self._sums) > _MOST_WAITING:
            self._sums.popitem(last=False)

    def _settle(self, held: _Sum, refilled: Optional[StorageState] = None) -> None:
        # The next fill counts as a write.
        writes = held.state.version - held.version - (1 if refilled is held.state else 0)
        if not writes:
            self._report_sum(held.fill, ADDED, held.evidence)

    def _report_sum(self, fill: Observation, detail: str, evidence: Dict[str, Any]) -> None:
        # The fill, and an addition that could have been a copy or omitted.
        self._withdraw_read(fill)
        self.report(fill, detail, 2.0, partial(dict, evidence))

    def _is_addend(self, observation: Observation, addend: torch.Tensor) -> bool:
        """Return whether the result equals the addend, except for the sign of zeros (0 + -0.0 is +0.0)."""
        if addend.shape != observation.tensor.shape or addend.dtype != observation.tensor.dtype:
            return False
        if addend.stride() == observation.tensor.stride():
            for argument, state in observation.inputs:
                if (
                    argument is addend
                    and covers(addend, state)
                    and state.hash == observation.scan.hash
                ):
                    return True
            if self.scanner.can_scan(addend):
                scan = self.scanner.scan(addend, observation.layout)
                if scan.hash == observation.scan.hash:
                    return True
        return torch.equal(addend, observation.tensor)


def _covers_all(observation: Observation) -> bool:
    """Return whether the indices of a write reach every element."""
    if observation.size_bytes < LEAST_FINDING_BYTES or observation.path or observation.in_backward:
        return False
    name, arguments = observation.operator.name, observation.arguments
    marks = torch.zeros(observation.shape, dtype=torch.bool, device=observation.tensor.device)
    if name in PUTS:
        if len(arguments) > 3 and arguments[3]:
            return False  # accumulates
        masks = (torch.bool, torch.uint8)
        if any(index is not None and index.dtype in masks for index in arguments[1]):
            return False  # a mask that selects everything by chance
        everything = slice(None)
        marks[tuple(everything if index is None else index for index in arguments[1])] = True
    elif len(arguments) == 4 and not observation.keywords:
        (marks.index_fill_ if name == "aten::index_copy_" else marks.scatter_)(
            arguments[1], arguments[2], True
        )
    return bool(marks.all())


def _unchanged(observation: Observation) -> bool:
    return bool(observation.compared and observation.scan.unchanged == observation.scan.count)


def _addend(observation: Observation) -> Optional[torch.Tensor]:
    """Return the tensor that was added, if it is a plain addition."""
    if observation.keywords.get("alpha", 1) != 1 or len(observation.arguments) < 2:
        return None
    addend = observation.arguments[1]
    if isinstance(addend, (list, tuple)):
        addend = addend[observation.position] if observation.position < len(addend) else None
    return addend if isinstance(addend, torch.Tensor) else None


_GUARDED: Tuple[Tuple[str, Tuple[int, ...]], ...] = (
    ("where", (1, 2)),
    (
        (
            "masked_fill masked_scatter clamp clamp_min clamp_max nan_to_num relu threshold hardtanh abs "
            "floor ceil round trunc remainder fmod tril triu"
        ),
        (0,),
    ),
    ("minimum maximum fmin fmax", (0, 1)),
)
GUARDS: Dict[str, Tuple[int, ...]] = {}
"""Operator -> positions of the arguments that it may return unchanged."""
for _names, _positions in _GUARDED:
    for _name in aten(_names):
        GUARDS[_name], GUARDS[_name + "_"] = _positions, (0,)

MASKS = aten("masked_fill masked_fill_ masked_scatter masked_scatter_")
"""Operators whose second argument is a mask that selects the written elements."""

LOWER_BOUNDS = aten("clamp clamp_min")
_LARGEST_EPSILON = 1e-3
LEAST_OCCURRENCES = 3
PASSED = "a check that every element passed in every call"
_MOST_CAUSES = 4096

_Cause = Tuple[str, Tuple[str, ...], str, int]


class _GuardState:
    """Calls of a guard at one source line."""

    __slots__ = ("bytes", "finding", "fired", "quiet")

    def __init__(self) -> None:
        self.quiet = 0
        self.bytes = 0
        self.fired = False
        self.finding: Optional[Finding] = None


class Guard(Pattern):
    """Guards that never changed a value."""

    name = "guard that never fires"

    def start(self) -> None:
        """Create the state of the pattern."""
        self._guards: "OrderedDict[_Cause, _GuardState]" = OrderedDict()
        self._checks: Dict[int, Tuple[Observation, int]] = {}
        """Masks that may be read by `all` or `any`, and their versions."""

    def observe(self, observation: Observation) -> None:
        """Count a call of a guard; a guard that fired is ignored from then on."""
        if observation.dtype is torch.bool and self.concerns(observation):
            self._observe_check(observation)
            return
        positions = GUARDS.get(observation.operator.name)
        if (
            positions is None
            or observation.size_bytes < LEAST_FINDING_BYTES
            or observation.in_backward
        ):
            return
        if observation.single or observation.dtype is torch.bool:
            return
        guard = self._guard_of(observation)
        if guard.fired or _is_epsilon(observation):
            return
        # Guards in torch's own Python code are not the user's.
        fired = True if called_by_torch("distributions") else self._fired(observation, positions)
        if fired is not None:
            self._count(observation, guard, fired, "returned its input bit for bit in every call")

    def end_step(self) -> None:
        """Count the checks of this step."""
        self._settle()

    def pause(self) -> None:
        """Drop pending checks: reads are not observed in the following steps."""
        self._checks.clear()

    def finish(self) -> None:
        """Count the remaining checks."""
        self._settle(over=True)

    def _observe_check(self, observation: Observation) -> None:
        """Store a mask until it is known whether only `all` or `any` reads it."""
        guard = self._guard_of(observation)
        if guard.fired:
            return
        # Checks in torch's own Python code are not the user's.
        if not observation.single or called_by_torch("distributions"):
            self._count(observation, guard, True, "")
            return
        self._settle()
        if len(self._checks) < _MOST_WAITING:
            observation.state.readers = set()
            self._checks[observation.state.key] = (observation, observation.state.version)

    def _settle(self, over: bool = False) -> None:
        for key, (check, version) in list(self._checks.items()):
            state = check.state
            if state.alive and state.version == version and not over:
                continue
            del self._checks[key]
            readers = state.readers if state.version == version else None
            passed = "aten::any" if check.single_zero else "aten::all"
            quiet = bool(readers) and {one.operator for one in readers or ()} == {passed}
            self._count(check, self._guard_of(check), not quiet, PASSED)

    def _guard_of(self, observation: Observation) -> _GuardState:
        place = observation.place
        cause = (observation.operator.name, observation.path, place.file, place.line)
        guard = self._guards.get(cause)
        if guard is None:
            guard = self._guards[cause] = _GuardState()
            if len(self._guards) > _MOST_CAUSES:
                self._guards.popitem(last=False)
        return guard

    def _count(
        self, observation: Observation, guard: _GuardState, fired: bool, detail: str
    ) -> None:
        if fired or guard.fired:
            guard.fired = True
            if guard.finding is not None:
                self.findings.drop(guard.finding)
            return
        guard.quiet += 1
        guard.bytes += observation.size_bytes
        if guard.quiet >= LEAST_OCCURRENCES:
            self._report(observation, guard, detail)

    def _report(self, observation: Observation, guard: _GuardState, detail: str) -> None:
        finding = self.report(observation, detail, every_time=False)
        if finding is not None and guard.finding is None:
            guard.finding = finding
            # Add the calls before the minimum was reached.
            finding.count += guard.quiet - 1
            finding.bytes_wasted += guard.bytes - observation.size_bytes
            finding.bytes_written += guard.bytes - observation.size_bytes

    def _fired(self, observation: Observation, positions: Tuple[int, ...]) -> Optional[bool]:
        """Return whether any value was changed; None if unknown."""
        if mask_selects_elements(observation):
            return True  # it fired and wrote the same values: a redundant write
        if not observation.fresh:
            return (
                bool(observation.scan.unchanged != observation.scan.count)
                if observation.compared
                else None
            )
        comparisons: List[bool] = []
        for position in positions:
            guarded = (
                observation.arguments[position] if position < len(observation.arguments) else None
            )
            if isinstance(guarded, torch.Tensor) and guarded.shape == observation.tensor.shape:
                same = self._same_bits(observation, guarded)
                if same:
                    return False
                if same is not None:
                    comparisons.append(same)
        return True if comparisons else None

    def _same_bits(self, observation: Observation, guarded: torch.Tensor) -> Optional[bool]:
        tensor = observation.tensor
        if guarded.dtype != tensor.dtype:
            return None
        if guarded.stride() != tensor.stride():
            return same_bits(guarded, tensor)
        state = _state_of(guarded, observation)
        if state is not None and state.hash is not None and covers(guarded, state):
            return bool(state.hash == observation.scan.hash)
        if not self.scanner.can_scan(guarded):
            return same_bits(guarded, tensor)
        scan = self.scanner.scan(guarded, observation.layout)
        return bool(scan.hash == observation.scan.hash)


def _is_epsilon(observation: Observation) -> bool:
    """Return whether it only keeps values away from zero, for a logarithm or a division."""
    name, arguments = observation.operator.name.rstrip("_"), observation.arguments
    if name not in LOWER_BOUNDS or (len(arguments) > 2 and arguments[2] is not None):
        return False
    lowest = arguments[1] if len(arguments) > 1 else observation.keywords.get("min")
    if observation.keywords.get("max") is not None or not isinstance(lowest, float):
        return False
    return 0 < lowest <= _LARGEST_EPSILON


def mask_selects_elements(observation: Observation) -> bool:
    """Return whether the mask of a guard, if any, selects an element."""
    if observation.operator.name not in MASKS or len(observation.arguments) < 2:
        return False
    return bool(observation.arguments[1].any())


def _state_of(tensor: torch.Tensor, observation: Observation) -> Optional[Any]:
    for argument, state in observation.inputs:
        if argument is tensor:
            return state
    return None
