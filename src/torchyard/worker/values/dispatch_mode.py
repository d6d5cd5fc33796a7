"""The dispatch mode: intercept every operator, scan what it wrote, pass the observation to patterns.

The mode tracks identity, initialization and source location; `patterns` decides what is waste. Memory that is about to
be overwritten is copied into one block of bounded size, used as a stack, because operators nest in deep profiles.
"""

import ctypes
from contextlib import nullcontext
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from torchyard.worker.values.exchange import Counts, Options
from torchyard.worker.values.findings import Flow
from torchyard.worker.values.observation import (
    Before,
    Inputs,
    Observation,
    Storages,
    StorageState,
    covered_fill,
    covers,
    fill_held,
    reader_of,
)
from torchyard.worker.values.operators import Operator, operator_of, tensors_in, written_tensors
from torchyard.worker.values.places import NOWHERE, Place, Places, calling_frame
from torchyard.worker.values.proofs.syntax import site_of
from torchyard.worker.values.proofs.trial_inputs import flat_results
from torchyard.worker.values.redispatch import DetachableMode, call_inside
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS, layout_of
from torchyard.worker.values.scanning.scanners import Scanners
from torchyard.worker.values.surveys.follower import Follower, FollowLibrary
from torchyard.worker.values.surveys.survey import Survey, Surveyed
from torchyard.worker.values.surveys.survey_calls import SurveyCalls

_ALIGN = 64
_STRIDED = torch.strided


class CopySpace:
    """Stack of copies, each valid until its operator has finished."""

    def __init__(self, size_bytes: int) -> None:
        self._block = torch.empty(max(0, size_bytes), dtype=torch.uint8, device="cpu")
        self._base = self._block.data_ptr()
        self._size = size_bytes
        self._top = 0
        self.peak_bytes = 0

    def mark(self) -> int:
        """Return the current height, for `release`."""
        return self._top

    def release(self, mark: int) -> None:
        """Free all copies since the mark."""
        self._top = mark

    def close(self) -> None:
        """Free the block; further copies fail."""
        self._size = 0
        self._block = torch.empty(0, dtype=torch.uint8, device="cpu")

    def copy(self, address: int, size_bytes: int) -> Optional[int]:
        """Copy memory; return the address of the copy, or None if the block is full."""
        end = self._top + -(-size_bytes // _ALIGN) * _ALIGN
        if end > self._size:
            return None
        place = self._base + self._top
        ctypes.memmove(place, address, size_bytes)
        self._top = end
        self.peak_bytes = max(self.peak_bytes, end)
        return place


without_dispatch = getattr(torch._C, "_DisableTorchDispatch", nullcontext)
"""Context in which the worker's own operators bypass the mode."""


class _Call(NamedTuple):
    """The operator call that is being observed."""

    func: Any
    operator: Operator
    args: Any
    keywords: Any
    node: int
    inputs: Inputs
    began: int
    """Number of operators when it began."""
    path: Tuple[str, ...] = ()
    """Enclosing operators, outermost first."""


class KernelWrite(NamedTuple):
    """A buffer that a generated kernel writes."""

    operator: Operator
    place: Place
    tensor: torch.Tensor
    inputs: List[torch.Tensor]
    fresh: bool
    """Whether it is a buffer of the compiler, and not memory of the program."""
    read_back: bool
    """Whether the kernel reads what it wrote."""


class ValueMode(DetachableMode):
    """Dispatch mode that observes what operators write."""

    def __init__(
        self,
        options: Options,
        scanners: Scanners,
        *,
        on_observation: Callable[[Observation], None],
        on_fill_covered: Optional[Callable[[Observation, Operator, Place], None]] = None,
        on_fill_read: Optional[Callable[[Observation], None]] = None,
        after_operator: Optional[Callable[[Any, Any, Any, Any], None]] = None,
        library: Optional[FollowLibrary] = None,
    ) -> None:
        super().__init__()
        self.options = options
        self.storages = Storages()
        self.places = Places()
        self.flow = Flow()
        self.counts = Counts()
        self.step = 1
        self.off = False
        """Do not observe anything: in a forked child, or after an error."""
        self.active = True
        """False in skipped steps: memory is tracked, but not scanned."""
        self.surveying = False
        """True in surveyed steps: everything is scanned, and no pattern is evaluated."""
        self.in_kernel = False
        """True while a call of a generated kernel is observed."""
        self._scanners = scanners
        self.survey = Survey(scanners, options.device_memory_bytes)
        follower = None if library is None else Follower(library, scanners.memory, self.survey)
        self._calls = SurveyCalls(
            self.survey, options, self.counts, self.flow, self.places, follower
        )
        self.may_detach = True
        """False for compiled programs, which recompile when modes are pushed or popped."""
        self._on_observation = on_observation
        self._on_fill_covered = on_fill_covered or (lambda _fill, _operator, _place: None)
        self._on_fill_read = on_fill_read or (lambda _fill: None)
        self._after_operator = after_operator
        self._copies = CopySpace(options.memory_bytes)
        self._path: List[str] = []
        self.states: Dict[int, StorageState] = {}
        """States of the arguments of the outermost operator, by the identity of the tensor."""
        self._given: Set[int] = set()
        """Memory that the program passed to the outermost operator as an output."""
        self._place: Place = NOWHERE
        self._outermost = 0
        self._number = 0

    @property
    def place(self) -> Place:
        """Location of the last operator that the program called."""
        return self._place

    @property
    def is_inside(self) -> bool:
        """Whether an operator is being observed now."""
        return bool(self._path) or not (self._detached or self.is_in_stack())

    def leave_stack(self) -> None:
        """Leave the stack in a forked child."""
        self._calls.stop()
        super().leave_stack()

    def state_of(self, tensor: torch.Tensor) -> StorageState:
        """Return the state of a tensor's storage."""
        return self.storages.of(tensor, self.counts.operators)

    def available_bytes(self) -> int:
        """Return the part of the memory limit that copies have not used."""
        return self.options.memory_bytes - self._copies.peak_bytes

    def close(self) -> None:
        """Free the memory for copies."""
        self._copies.close()

    def end_step(self, observe_closely: Callable[[bool], bool]) -> List[Surveyed]:
        """End a step; return the surveyed steps whose rows are available."""
        if not self.active:
            self.step += 1
            return []
        off, self.off = self.off, True  # the operators below belong to the profiler
        with without_dispatch():
            return self._end_step(observe_closely, off)

    def _end_step(self, observe_closely: Callable[[bool], bool], off: bool) -> List[Surveyed]:
        regular = self._calls.end_step(self.surveying)
        surveyed = self.survey.end_step(self.step, regular, not self.surveying)
        surveying = not observe_closely(any(one.new for one in surveyed))
        if self.surveying and not surveying:
            self.storages.clear()  # memory was not tracked
        if surveying != self.surveying:
            # Hooks slow down every module call.
            (self.places.close if surveying else self.places.track_modules)()
        self.surveying = surveying
        if surveying:
            self._calls.begin(alone=self.may_detach and self.can_detach)
        self.set_detached(self._calls.following)
        self.off = off
        self.step += 1
        return surveyed

    def set_active(self, active: bool) -> None:
        """Enable or disable profiling for the step that begins now."""
        self.active = active
        (self._calls.resume if active else self._calls.pause)()

    def pause(self) -> None:
        """Pause between steps until `resume`, at no cost to the program."""
        self._calls.pause()
        super().pause()

    def resume(self) -> None:
        """Resume after `pause`."""
        super().resume()
        self._calls.resume()

    def interrupt_survey(self) -> None:
        """Scan what is pending in a surveyed step, and do not follow the rest of it."""
        if self.surveying and self.active and not self.off:
            with without_dispatch():
                self._calls.interrupt()

    def __exit__(self, *about: Any) -> None:
        """Leave the mode: at the end, or around an inner operator."""
        self._calls.stop()
        super().__exit__(*about)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Optional[Any] = None
    ) -> Any:
        """Run and observe one operator."""
        keywords = kwargs or {}
        if self.surveying and self.active and not self.off:
            return self._calls.call(func, args, keywords)
        if self.surveying or self.off:
            return func(*args, **keywords)
        operator = operator_of(func)
        if operator.inert:
            if operator.view_with_writing_backward and not self._path:
                # Stores the location for the backward pass.
                self.places.note_view(calling_frame(ValueMode.__torch_dispatch__.__code__))
            elif operator.returns_numbers:
                self._note_reads(args)
            return func(*args, **keywords)
        if operator.escapes:
            return self._call_unknown(func, args, keywords)
        path = tuple(self._path)
        inside = bool(path)
        self.counts.operators += 1
        began = self.counts.operators
        if not inside:
            self._place = self.places.now()
            self._outermost = began
            self.states.clear()
        active = self.active
        node = self.flow.node(operator.name, self._place, path) if active else -1
        if not inside and active:
            self._calls.remember(func, node)
        written = written_tensors(operator, args, keywords) if operator.writes else []
        inputs = self._reads(operator, args, keywords, written, node)
        mark = self._copies.mark()
        if active and len(written) > 1:
            self._scanners.scan_ahead(written, self.options.least_bytes)
        befores = [self._before(tensor) for tensor in written]
        self._scanners.forget_scans()  # the operator overwrites the memory
        if not inside:
            self._given = {before.state.key for before in befores if before is not None}
        if self.options.deep and active:
            result, observed = call_inside(self, self._path, func, args, keywords)
            self.counts.not_deep += not observed
        else:
            result = func(*args, **keywords)
        if operator.hidden_effects:
            self._forget_arguments(args, keywords)
        self._number = began - self._outermost
        call = _Call(func, operator, args, keywords, node, inputs, began, path)
        if active and operator.many_results:
            whole = [one.tensor for one in befores if one is not None and one.earlier is None]
            self._scanners.scan_ahead(whole, self.options.least_bytes)
        for position, before in enumerate(befores):
            if before is not None:
                self._wrote(call, before, position)
        self._copies.release(mark)
        if operator.fresh:
            if active and operator.many_results:
                self._scanners.scan_ahead(tensors_in((result,)), self.options.least_bytes)
            written_ids = {id(tensor) for tensor in written}
            for position, tensor in enumerate(tensors_in((result,))):
                if id(tensor) not in written_ids:
                    self._made(call, tensor, position)
        self._scanners.forget_scans()
        if not inside and self._after_operator is not None and self.active:
            self._after_operator(func, args, keywords, result)
        return result

    def _reads(
        self, operator: Operator, args: Any, keywords: Any, written: List[torch.Tensor], node: int
    ) -> Inputs:
        """Count the tensors that an operator reads, and add edges to the flow graph."""
        inputs: List[Tuple[torch.Tensor, StorageState]] = []
        overwritten = [id(tensor) for tensor in written] if operator.overwrites else []
        read = tensors_in(args)
        if keywords:
            read += tensors_in(keywords.values())
        outermost = not self._path
        for tensor in read:
            if overwritten and id(tensor) in overwritten:
                overwritten.remove(id(tensor))  # passed twice: it is read as well
                continue
            state = self._state(tensor)
            if state is not None:
                state.reads += 1
                if state.fill is not None or state.pieces is not None:
                    self._note_fill_read(state, tensor)
                if outermost:
                    state.uses += 1
                    self.states[id(tensor)] = state
                    if state.readers is not None:
                        state.readers.add(reader_of(operator, tensor, read, args))
                inputs.append((tensor, state))
                if node >= 0:
                    self.flow.read(state.node, node, tensor.numel() * tensor.element_size())
        return inputs

    def _note_reads(self, args: Any) -> None:
        """Count reads by an operator that returns numbers."""
        for tensor in tensors_in(args):
            state = self._state(tensor)
            if state is not None:
                state.reads += 1
                state.readers = None
                self._note_fill_read(state, tensor)

    def _note_fill_read(self, state: StorageState, tensor: torch.Tensor) -> None:
        """Report the first read of a fill; while pieces are written over it, only of the whole storage."""
        fill: Optional[Observation] = state.fill
        if fill is None and state.pieces is not None and covers(tensor, state):
            fill = state.pieces.fill
        if fill is not None and not fill.values_read:
            fill.values_read = True
            self._on_fill_read(fill)

    def _call_unknown(self, func: Any, args: Any, keywords: Any) -> Any:
        """Call an operator that may access any memory and keep references to its arguments."""
        try:
            return func(*args, **keywords)
        finally:
            self.counts.operators += 1
            self.storages.epoch += 1
            for state in self._forget_arguments(args, keywords):
                state.communicated = state.communicated or operator_of(func).communicates
                state.escape()

    def _forget_arguments(self, args: Any, keywords: Any) -> List[StorageState]:
        """Invalidate the arguments of an operator whose effects exceed its schema."""
        arguments = flat_results(list(args)) + flat_results(list(keywords.values()))
        states = [self._state(one) for one in arguments if isinstance(one, torch.Tensor)]
        tracked = [state for state in states if state is not None]
        for state in tracked:
            state.forget()
            state.version += 1
        return tracked

    def _state(self, tensor: torch.Tensor, *, read: bool = True) -> Optional[StorageState]:
        if tensor.layout is not _STRIDED or tensor.is_meta:
            return None
        # Kernels and C++ code, as that of DDP, allocate memory without the dispatcher, too. It may be uninitialized
        # if it first appears inside an operator or is written first; if it is read first, it has values.
        defined = read and not self._path
        state = self.storages.of(tensor, self.counts.operators, defined=defined)
        if state.outside:
            state.forget()
        return state

    def _before(self, tensor: torch.Tensor) -> Optional[Before]:
        """Record the state of a tensor that is about to be written: its hash, or a copy of a part of a storage.

        The hash is computed again, because unobserved writes may have happened since the last one.
        """
        state = self._state(tensor, read=False)
        if state is None:
            return None
        before = Before(tensor, state)
        size = before.size_bytes
        if not self.active or not before.defined or size < self.options.least_bytes:
            return before
        if not self._scanners.can_scan(tensor):
            if tensor.is_cpu and not before.whole and size <= self.options.memory_bytes:
                before.packed = pack(tensor)
            return before
        if not before.whole:
            if tensor.is_cpu:
                before.copy = self._copies.copy(tensor.data_ptr(), size)
            elif size <= self.options.memory_bytes:
                before.earlier = tensor.detach().clone()
            if before.copy is None and before.earlier is None:
                self.counts.not_compared_bytes += size
        else:
            digest = self._scanners.hash(tensor, LAYOUTS[tensor.dtype])
            if state.hash is not None and state.hash != digest:
                state.escape()  # written without being observed, and possibly read as well
                before = Before(tensor, state)
            state.hash = before.hash = digest
        return before

    def _wrote(self, call: _Call, before: Before, position: int) -> None:
        """Observe a write to existing memory."""
        state, tensor = before.state, before.tensor
        inside = state.hash if state.version > before.version else None
        if call.operator.undefined and tensor.numel() * tensor.element_size() <= before.size_bytes:
            return  # resized to the same size
        state.version += 1
        state.reads = state.uses = 0
        state.readers = state.kernel_write = None
        state.node = call.node
        state.hash = None
        if call.operator.undefined:
            state.undefine()
            state.fill = None
            return
        state.define(tensor)
        inner = bool(self._path) and state.key in self._given
        covered = None if inner else covered_fill(call.operator, before)
        if covered is not None:
            self._on_fill_covered(covered, call.operator, self._place)
        packed = None if before.packed is None else pack(tensor)
        observation = self._observe(call, tensor if packed is None else packed, before, position)
        if observation is None:
            state.fill = None
            return
        observation.packed = packed is not None
        if before.whole:
            state.hash = observation.scan.hash
            observation.written_inside = (
                inside == observation.scan.hash and state.key not in self._given
            )
            if before.defined and before.hash is not None:
                observation.compared = True
                if before.hash == observation.scan.hash:
                    observation.scan.unchanged = observation.scan.count
        observation.state, observation.inputs = state, call.inputs
        observation.given = state.key in self._given
        observation.fresh = False
        observation.whole = before.whole
        state.fill = fill_held(call.operator, observation, inside=bool(self._path))
        observation.was_defined, observation.was_fill = before.defined, before.fill
        observation.was_reads, observation.was_kernel_write = before.reads, before.kernel_write
        if before.whole and call.operator.is_kernel:
            state.kernel_write = observation
        self._deliver(observation)

    def before_kernel(
        self, read: List[torch.Tensor], writes: List[KernelWrite]
    ) -> List[Optional[Before]]:
        """Track what a generated kernel reads, and record what it is about to overwrite."""
        self._given = set()
        for tensor in read:
            state = self._state(tensor)
            if state is not None:
                state.reads += 1
                state.uses += 1
                state.readers = None  # how a kernel reads is unknown
        befores: List[Optional[Before]] = []
        for write in writes:
            if write.fresh and _is_strided(write.tensor):
                state = self.storages.of(write.tensor, self.counts.operators, defined=False)
                befores.append(Before(write.tensor, state))
            else:
                befores.append(self._before(write.tensor))
        return befores

    def after_kernel(
        self, kernel: str, writes: List[KernelWrite], befores: List[Optional[Before]]
    ) -> None:
        """Observe what a generated kernel wrote."""
        mark = self._copies.mark()
        for position, (write, before) in enumerate(zip(writes, befores)):
            if before is None:
                continue
            self._place = write.place
            node = self.flow.node(write.operator.name, write.place, ()) if self.active else -1
            inputs: List[Tuple[torch.Tensor, StorageState]] = []
            for tensor in write.inputs:
                state = self._state(tensor)
                if state is not None:
                    inputs.append((tensor, state))
                    if node >= 0:
                        size = tensor.numel() * tensor.element_size()
                        self.flow.read(state.node, node, size)
            call = _Call(kernel, write.operator, (), {}, node, inputs, 0, tuple(self._path))
            if write.fresh:
                before.state.forget()
                before.state.reads = before.state.uses = 0
                self._made(call, write.tensor, position, before)
            else:
                self._wrote(call, before, position)
            if write.read_back:
                before.state.reads += 1
                before.state.uses += 1
        self._copies.release(mark)

    def _deliver(self, observation: Observation) -> None:
        self._on_observation(observation)
        observation.release()
        self._scanners.forget()

    def _made(
        self, call: _Call, tensor: torch.Tensor, position: int, before: Optional[Before] = None
    ) -> None:
        """Observe a tensor that an operator returned; `before` is of reused memory."""
        if not _is_strided(tensor):
            self.counts.not_strided += 1
            return
        state = self.storages.of(tensor, self.counts.operators, defined=False)
        if state.born < call.began:
            return  # actually a view: contiguous, reshape, to
        inside = state.hash if state.version else None
        state.node = call.node
        state.version += 1
        if call.operator.undefined:
            return
        state.define(tensor)
        observation = self._observe(call, tensor, None, position)
        if observation is None:
            state.hash, state.fill = None, None
            return
        observation.state, observation.inputs = state, call.inputs
        observation.whole = covers(tensor, state)
        if observation.whole:
            state.hash = observation.scan.hash
            observation.written_inside = inside == observation.scan.hash
            state.kernel_write = observation if call.operator.is_kernel else None
        if before is not None:
            observation.was_kernel_write, observation.was_reads = before.kernel_write, before.reads
        state.fill = fill_held(call.operator, observation, inside=bool(self._path))
        self._deliver(observation)

    def _observe(
        self, call: _Call, tensor: torch.Tensor, before: Optional[Before], position: int
    ) -> Optional[Observation]:
        """Scan a tensor; return None if it is not examined."""
        if not self.active:
            return None
        size = tensor.numel() * tensor.element_size()
        self.counts.written_bytes += size
        if size < self.options.least_bytes:
            self.counts.small_bytes += size
            return None
        layout = LAYOUTS.get(tensor.dtype)
        if layout is None or not self._scanners.can_scan(tensor):
            self.counts.not_seen_bytes += size
            return None
        observation = Observation()
        observation.operator, observation.func = call.operator, call.func
        observation.arguments, observation.keywords = call.args, call.keywords
        observation.place, observation.path = self._place, call.path
        observation.step, observation.position, observation.node = self.step, position, call.node
        observation.tensor, observation.layout = tensor, layout
        observation.number = self._number
        observation.in_backward = self.places.in_backward
        observation.view_of_torch = self.places.view_of_torch
        observation.size_bytes = size
        if call.operator.fills:
            frame = calling_frame(ValueMode.__torch_dispatch__.__code__)
            observation.site = None if frame is None else site_of(frame)
        packed = None
        if before is None:
            observation.scan = self._scanners.scan(tensor, layout)
        else:
            copy, earlier, packed = before.copy, before.earlier, before.packed
            if packed is not None:
                copy = packed.data_ptr()
            observation.scan = self._scanners.scan(tensor, layout, copy, earlier)
            observation.compared = copy is not None or earlier is not None
        if not call.path and packed is None:
            self.survey.note((call.node, position), observation.scan, layout)
        self.flow.wrote(call.node, size)
        return observation


def pack(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """Return a contiguous copy of a strided slice; None for dtypes that are not scanned."""
    if layout_of(tensor.dtype) is None or tensor.is_conj() or tensor.is_neg():
        return None
    copy = tensor.detach().clone(memory_format=torch.contiguous_format)
    return copy if copy.numel() else None


def _is_strided(tensor: torch.Tensor) -> bool:
    return tensor.layout is _STRIDED and not tensor.is_meta
