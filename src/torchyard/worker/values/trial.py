"""One operator on trial: its arguments and others of the same form, and what comes out of each.

A trial never reaches the program: it works on copies, gives back random numbers as they were, and
what an operator raises is an answer. It is as bounded in memory as the profile is.
"""

from typing import Any, Callable, Dict, Iterator, List, Optional

import torch

from torchyard.worker.values.arguments import (
    OTHERS,
    OWN,
    Call,
    integers_in,
    other_call,
    own_call,
    size_to_copy,
)
from torchyard.worker.values.bits import flat_results, same_results
from torchyard.worker.values.certainty import (
    REFUSED,
    SAME_AGAIN,
    VALUES_VARIED,
    Test,
    make_test,
)
from torchyard.worker.values.native_events import Chains
from torchyard.worker.values.operators import operator_of
from torchyard.worker.values.replay import Outcome, run_clean
from torchyard.worker.values.untouched import Untouched, why_not_now

INTEGERS_KEPT = "its integers were as in the program, and with other ones it may be needed"
NO_ROOM = "the memory for proofs is too small for it"
_MOST_SAID = 160

Run = Callable[[Call, Untouched], Outcome]


class Untested(Exception):
    """Why nothing is known after all."""


class Bench:
    """The operator that just ran, and the conditions under which it may be tried."""

    def __init__(self, func: Any, args: Any, kwargs: Any, room_bytes: int) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self._room_bytes = room_bytes
        self._keep = Untouched(args, kwargs)

    def __enter__(self) -> "Bench":
        reason = why_never(self.func, self.args, self.kwargs) or why_not_now()
        if reason is None and self._needs_bytes() > self._room_bytes:
            reason = NO_ROOM
        if reason is not None:
            raise Untested(reason)
        self._keep.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._keep.__exit__()

    def trial(self, run: Run) -> "Trial":
        """A trial whose clean runs are done this way."""
        return Trial(self.func, self.args, self.kwargs, self._keep, run)

    def _needs_bytes(self) -> int:
        """At the peak: other arguments, and about as much for results, twice, and for a poison."""
        size = size_to_copy(self.func, self.args, self.kwargs, everything=True)
        return 4 * size


class Trial:
    """Runs an operator in several ways and compares what comes out."""

    def __init__(
        self, func: Any, args: Any, kwargs: Any, keep: Untouched, run: Run = run_clean
    ) -> None:
        self._run = run
        self._func, self._args, self._kwargs = func, args, kwargs
        self.keep = keep
        self._calls: Dict[str, Call] = {}
        self._references: Dict[str, Outcome] = {}
        self.tests: List[Test] = []

    def call(self, inputs: str) -> Call:
        """Arguments of a kind; made anew for an operator that writes them."""
        found = self._calls.get(inputs)
        if found is None or operator_of(self._func).writes:
            make = (self._func, self._args, self._kwargs)
            found = own_call(*make) if inputs == OWN else other_call(*make, inputs)
            self._calls = {inputs: found}
        return found

    def reference(self, inputs: str) -> Outcome:
        """What a clean run gives."""
        if inputs not in self._references:
            self._references = {inputs: self._run(self.call(inputs), self.keep)}
        return self._references[inputs]

    def same(self, inputs: str, run: Run) -> bool:
        """Whether a run gives the same bits as a clean one."""
        reference = self.reference(inputs)
        return same_results(reference, run(self.call(inputs), self.keep))

    def chains_inside(self) -> Chains:
        """How often each operator ran inside, in a clean run on the program's own arguments."""
        chains: Chains = {}
        run_clean(self.call(OWN), self.keep, chains)
        return chains

    def check_deterministic(self) -> None:
        """Two clean runs; when they differ, no comparison means anything."""
        if not self.same(OWN, self._run):
            raise Untested("the operator gives other results each time")
        self.tests.append(make_test(SAME_AGAIN, True, inputs=OWN))

    def others(self) -> Iterator[str]:
        """Kinds of other inputs that the operator takes. Says what it refused, and what stayed."""
        taken = 0
        integers_varied = not integers_in(self._args, self._kwargs)
        for inputs in OTHERS:
            try:
                call = self.call(inputs)
                if not call.varied:
                    continue
                self.reference(inputs)
            except Exception as error:
                said = refusal(error)
                self.tests.append(make_test(REFUSED, False, inputs=inputs, detail=said))
                continue
            taken += 1
            integers_varied = integers_varied or not call.integers_kept
            yield inputs
        if taken and not integers_varied:
            self.tests.append(make_test(VALUES_VARIED, False, detail=INTEGERS_KEPT))


def refusal(error: BaseException) -> str:
    """In one short line."""
    text = str(error).strip().splitlines()
    return ("%s: %s" % (type(error).__name__, text[0] if text else ""))[:_MOST_SAID]


def why_never(func: Any, args: Any, kwargs: Any) -> Optional[str]:
    """Why this operator is not tried again at all; None when it may be."""
    operator = operator_of(func)
    if not operator.name.startswith("aten::"):
        return "operators outside of torch may do more than compute"
    if operator.random:
        return "it draws random numbers"
    if operator.undefined:
        return "it gives memory without writing it"
    for value in flat_results(list(args)) + flat_results(list(kwargs.values())):
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "cuda"):
            return "it runs on %s" % value.device.type
    return None
