"""A score that is followed by the compiled library: Python is called for launches and surprises only.

One for a session. While it follows, the dispatch mode is not in place: a mode that does nothing costs
more than the scan (20 us for each operator on the host of an H200).
"""

import _thread
import ctypes
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values.follow_library import AFTERWARDS, FLUSH, OUT_OF_TURN, FollowLibrary
from torchyard.worker.values.scan import CompiledScanner
from torchyard.worker.values.score import Flush, Score
from torchyard.worker.values.survey import Survey

_FIELDS = 5
_NONE = -1
_WORTH_IT = 16
"""Surveyed steps after which a program is taken for one that has many more."""


class Follower:
    """Follows one score after the other."""

    def __init__(self, library: FollowLibrary, memory: Any, survey: Survey) -> None:
        self._library = library
        self._memory = memory
        self._survey = survey
        self._native: Optional[Any] = None
        self._scan_address: Optional[int] = None
        self._asked = 0
        self._kept: List[Any] = []
        """Callbacks, which must live as long as the library may call them."""
        self._score: Optional[Score] = None
        self._number = _NONE
        self._flushes: List[Flush] = []
        self._on_strange: Callable[[Any, List[torch.Tensor]], None] = _nothing
        self._on_after: Callable[[List[torch.Tensor], List[torch.Tensor]], None] = _nothing
        self.trouble: Optional[BaseException] = None
        """What went wrong in a call from the library, which cannot raise it."""

    def begin(
        self,
        score: Optional[Score],
        on_strange: Callable[[Any, List[torch.Tensor]], None],
        on_after: Callable[[List[torch.Tensor], List[torch.Tensor]], None],
    ) -> bool:
        """Follow the score from its beginning, or all operators; False where that cannot be done.

        `on_strange` gets an operator that is not the score's, before it runs, and what it is about to
        write; `on_after` what it then wrote and returned, or what an operator of the score wrote and
        returned that is not what the score says. From the first call of either on, all that come
        until `end` are strange.
        """
        native = self._ready()
        if native is None or (score is not None and not self._knows(native, score)):
            return False
        self._on_strange, self._on_after = on_strange, on_after
        if score is not None:
            self._survey.play(score)
        native.follow_set(self._scan_address, *self._kept)  # another session may have been there
        native.follow_begin(_NONE if score is None else self._number)
        return True

    def position(self) -> int:
        """How many operators were as the score says."""
        return 0 if self._native is None else int(self._native.follow_position())

    def hand_over(self) -> None:
        """Give the survey what was held and scanned so far."""
        if self._native is not None:
            held = torch.ops.torchyard_follow.take_held()
            self._survey.take_over(held, self._rows(self._native))

    def end(self) -> None:
        """Follow no longer. Never called from within an operator."""
        if self._native is not None:
            self._native.follow_end()

    def _ready(self) -> Optional[Any]:
        if self._native is None:
            self._asked += 1
            native = self._library.load(make=self._asked >= _WORTH_IT)
            if native is None:
                return None
            address = getattr(self._memory, "scan_address", None)
            self._kept = [
                FLUSH(self._guarded(self._flush)),
                OUT_OF_TURN(self._guarded(self._strange)),
                AFTERWARDS(self._guarded(self._after)),
            ]
            self._scan_address = address
            self._native = native
        return self._native

    def _knows(self, native: Any, score: Score) -> bool:
        """Give the library the score, once; False when it cannot follow this one."""
        if score is self._score:
            return self._number != _NONE
        if self._number != _NONE:
            native.follow_drop_score(self._number)
        self._score, self._number, self._flushes = score, _NONE, []
        on_cpu = any(output.cpu for turn in score.turns for output in turn.outputs)
        if on_cpu and not isinstance(self._memory, CompiledScanner):
            return False
        number = int(native.follow_new_score())
        for turn in score.turns:
            schema = turn.func._schema
            fields = [
                number_
                for output in turn.outputs
                for number_ in (
                    output.place,
                    output.numel,
                    _kind(output.dtype),
                    int(output.cpu),
                    output.row,
                    output.numel * output.layout.per_number,
                    output.layout.bits,
                )
            ]
            known = native.follow_add_turn(
                number,
                schema.name.encode(),
                schema.overload_name.encode(),
                self._flush_number(turn.flush_before),
                self._flush_number(turn.flush_after),
                (ctypes.c_int64 * len(fields))(*fields),
                len(turn.outputs),
            )
            if not known:
                native.follow_drop_score(number)
                return False
        self._number = number
        return True

    def _flush_number(self, flush: Optional[Flush]) -> int:
        if flush is None:
            return _NONE
        self._flushes.append(flush)
        return len(self._flushes) - 1

    def _rows(self, native: Any) -> List[Tuple[int, int, int, int, int]]:
        count = int(native.follow_rows())
        if not count:
            return []
        numbers = (ctypes.c_int64 * (_FIELDS * count))()
        native.follow_take_rows(numbers)
        columns = [numbers[field::_FIELDS] for field in range(_FIELDS)]
        return list(zip(*columns))

    def _guarded(self, work: Callable[..., None]) -> Callable[..., None]:
        """For calls from C++, which can raise nothing."""

        def guarded(*given: Any) -> None:
            try:
                work(*given)
            except KeyboardInterrupt:
                _thread.interrupt_main()
            except BaseException as error:
                self.trouble = error

        return guarded

    def _flush(self, number: int) -> None:
        self._survey.take_over(torch.ops.torchyard_follow.take_held(), [])
        self._survey.flush_again(self._flushes[number])

    def _strange(self, name: bytes, overload: bytes) -> None:
        written = torch.ops.torchyard_follow.written()
        self._on_strange(_overload(name.decode(), overload.decode()), written)

    def _after(self) -> None:
        own = torch.ops.torchyard_follow
        self._on_after(own.written(), own.results())


def _nothing(*_: Any) -> None:
    pass


def _overload(name: str, overload: str) -> Any:
    space, _, base = name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")


_kinds: Dict[torch.dtype, int] = {}


def _kind(dtype: torch.dtype) -> int:
    found = _kinds.get(dtype)
    if found is None:
        one = torch.empty(0, dtype=dtype, device="cpu")
        found = _kinds[dtype] = int(torch.ops.torchyard_follow.kind(one))
    return found
