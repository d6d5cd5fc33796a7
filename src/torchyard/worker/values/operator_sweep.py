"""Sweep operators for wasted work: each case natively, then profiled, forward and backward.

Writes JSON lines: the start of each case and its outcome. An exception is an outcome. A process that
crashes loses one case, which the controller knows from its start line.
"""

import faulthandler
import fnmatch
import json
import math
import os
import time
import warnings
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from torchyard.worker.devices import device_of
from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.native_callers import NativeCall, Write, calls_of, short_name
from torchyard.worker.values.operator_cases import Case, Draw, all_cases, cases_of_file
from torchyard.worker.values.patterns.wasted_writes import GUARDS
from torchyard.worker.values.pricing.fix_timing import gain_of, price
from torchyard.worker.values.profiling_session import ProfilingSession
from torchyard.worker.values.proofs.certainty import (
    INPUT_DEPENDENT,
    NATIVE_PROGRAM,
    POISON,
    SKIP,
    Test,
    certainty_of,
    make_test,
)
from torchyard.worker.values.proofs.trial_inputs import OWN
from torchyard.worker.values.proofs.trials import DEAD, GUARD, REDUNDANT
from torchyard.worker.values.redispatch import Chains, NativeEvents, count_chain, why_unavailable

FORMAT = 1
SEEDS = (11, 12, 13)
"""Seeds of the inputs of a case: two are tested, and a guard needs three observations."""
DRAWN = "drawn for the case,"
FORWARD, BACKWARD = "forward", "backward"
PATTERNS = frozenset({DEAD, REDUNDANT, GUARD, "needless copy"})
"""Patterns that concern the operator; the others concern values, which are artificial here."""
_PRICE_S = 0.25
_GAIN_S = 0.6
_MOST_CHARACTERS = 300

Chunk = Dict[str, Any]


class CalledCase(NamedTuple):
    """Result of one call of a case, ready for its backward pass."""

    leaves: List[torch.Tensor]
    outputs: List[torch.Tensor]
    results: List[torch.Tensor]
    """Results that require a gradient."""
    gradients: List[torch.Tensor]


class Rows:
    """A file of JSON lines; each line is written with one system call."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, kind: str, **data: Any) -> None:
        """Write one line."""
        line = json.dumps(dict(data, kind=kind), default=str) + "\n"
        os.write(self._descriptor, line.encode("utf-8"))


def sweep_plan(plan: Dict[str, Any]) -> int:
    """Run the remaining cases of a plan, at most `most`, to limit memory."""
    chunk: Chunk = plan["sweep"]
    warnings.simplefilter("ignore")
    torch.set_num_threads(chunk.get("threads", 1))
    cases = chosen_cases(chunk.get("only", "*"), chunk.get("file"))
    rows = Rows(plan["output"])
    rows.write(
        "header",
        format=FORMAT,
        torch=torch.__version__,
        device=_device_name(chunk["device"]),
        threads=torch.get_num_threads(),
        cases=[case.name for case in cases],
    )
    done = set(chunk.get("done", ()))
    remaining = [case for case in cases if case.name not in done]
    parent = os.getppid()
    for case in remaining[: chunk.get("most", len(remaining))]:
        if os.getppid() != parent:
            return 1  # the controller has ended
        rows.write("began", case=case.name)
        # Ends the process if a kernel hangs.
        faulthandler.dump_traceback_later(chunk["limit_s"], exit=True)
        row = sweep_case(case, chunk["device"], plan.get("cache"))
        faulthandler.cancel_dump_traceback_later()
        rows.write("row", **row)
        if "CUDA error" in row["why"]:
            return 0  # all further CUDA calls fail: the rest needs a new process
    return 0


def chosen_cases(only: str, file: Optional[str] = None) -> List[Case]:
    """Return the built-in cases and those of a file whose name matches a pattern."""
    cases = all_cases() + (cases_of_file(file) if file else [])
    return [case for case in cases if fnmatch.fnmatchcase(case.name, only)]


def sweep_case(case: Case, device: str, cache: Optional[str] = None) -> Dict[str, Any]:
    """Run one case; the state is `unsupported` if it fails without the profiler, too."""
    began_s = time.monotonic()
    row: Dict[str, Any] = {"case": case.name, "family": case.family, "findings": []}
    try:
        native = _natively(case, device)
    except Exception as error:
        row.update(state="unsupported", why=_error_text(error))
    else:
        try:
            sessions = _profiled(case, device, cache)
            findings = {direction: _each_once(session) for direction, session in sessions.items()}
            calls = _native_calls(case, device, findings)
            row["findings"] = [
                _described(finding, direction, native[direction], calls.get(direction, {}))
                for direction, several in findings.items()
                for finding in several
            ]
            row.update(_coverage(list(sessions.values())))
            row["directions"] = list(native)
            row.update(state="done", why="")
        except Exception as error:
            row.update(state="failed", why=_error_text(error))
    row["seconds"] = round(time.monotonic() - began_s, 3)
    return row


def _natively(case: Case, device: str) -> Dict[str, Chains]:
    """Return the chains of nested operators without the profiler, by direction."""
    _call(case, Draw(device, SEEDS[0]))  # warm-up: caches and first allocations
    unavailable = why_unavailable()
    if unavailable is not None:
        raise RuntimeError("events cannot be recorded: " + unavailable)
    draw = Draw(device, SEEDS[0])
    with NativeEvents() as forward:
        called = _call(case, draw)
    chains = {FORWARD: forward.chains}
    if called.results:
        with NativeEvents() as backward:
            _backward(called)
        chains[BACKWARD] = backward.chains
    device_of(str(draw.device)).synchronize()  # attribute its errors to this case
    return chains


def _profiled(case: Case, device: str, cache: Optional[str]) -> Dict[str, ProfilingSession]:
    """Profile the case, with one session per direction."""
    sources = [PreparedCase(case, Draw(device, seed)) for seed in SEEDS]
    called: List[CalledCase] = []

    def forward(session: ProfilingSession) -> None:
        for prepared in sources:
            called.append(prepared.call(session))
            session.step()

    def backward(session: ProfilingSession) -> None:
        for one in called:
            _backward(one)
            session.step()

    sessions = {FORWARD: _in_session(forward, cache)}
    if called[0].results:
        sessions[BACKWARD] = _in_session(backward, cache)
    return sessions


def _native_calls(
    case: Case, device: str, findings: Dict[str, List[Finding]]
) -> Dict[str, Dict[Write, List[NativeCall]]]:
    """Return the native functions that issue the wasted writes, by direction and write."""
    writes = {
        direction: {_write(one) for one in several if one.pattern in (DEAD, REDUNDANT)}
        for direction, several in findings.items()
    }
    calls: Dict[str, Dict[Write, List[NativeCall]]] = {}
    if any(writes.values()):
        draw = Draw(device, SEEDS[0])
        called: List[CalledCase] = []
        calls[FORWARD] = calls_of(lambda: called.append(_call(case, draw)), writes[FORWARD])
        if writes.get(BACKWARD):
            calls[BACKWARD] = calls_of(lambda: _backward(called[0]), writes[BACKWARD])
    return calls


def _write(finding: Finding) -> Write:
    chain = tuple(short_name(name) for name in (*finding.path, finding.operator))
    return chain, math.prod(finding.shape)


def _in_session(body: Callable[[ProfilingSession], None], cache: Optional[str]) -> ProfilingSession:
    session = ProfilingSession(Options(deep=True, close_steps=0, graph=False), cache=cache)
    session.start()
    try:
        body(session)
    finally:
        session.stop()
    return session


def _coverage(sessions: List[ProfilingSession]) -> Dict[str, int]:
    """Return how much was written, not examined, and not tested."""
    counts = [session.result("finished")["counts"] for session in sessions]
    names = ("written_bytes", "not_seen_bytes", "not_tried")
    return {name: sum(count.get(name, 0) for count in counts) for name in names}


def _each_once(session: ProfilingSession) -> List[Finding]:
    """Return the wasted work of a session; two fills of one buffer count once."""
    findings = [finding for finding in session.findings.all() if _is_waste(finding)]
    again = {(one.path[:1], _size_bytes(one)) for one in findings if one.pattern == REDUNDANT}
    return [
        one
        for one in findings
        if one.pattern != DEAD
        or one.proof.get("tests")
        or (one.path[:1], _size_bytes(one)) not in again
    ]


def _size_bytes(finding: Finding) -> int:
    """Return the wasted bytes of one occurrence."""
    return finding.bytes_wasted // max(1, finding.count)


def _is_waste(finding: Finding) -> bool:
    """Return whether the waste is caused by torch; guards called by the case itself are not."""
    if finding.pattern == GUARD:
        return bool(finding.path) and not any(name in GUARDS for name in finding.path)
    return finding.pattern in PATTERNS


class PreparedCase:
    """A case with its arguments, created before profiling."""

    def __init__(self, case: Case, draw: Draw) -> None:
        self.function = partial(case.function(), **case.options)
        self.arguments = list(case.make(draw))
        self._draw = draw

    def call(self, session: Optional[ProfilingSession] = None) -> CalledCase:
        """Run the case; the random gradients of its results are created without profiling."""
        outputs = _tensors(self.function(*self.arguments))
        if session is not None:
            session.mode.off = True
        try:
            results = [one for one in outputs if one.requires_grad]
            gradients = [_gradient(one, self._draw) for one in results]
        finally:
            if session is not None:
                session.mode.off = False
        return CalledCase(_leaves(self.arguments), outputs, results, gradients)


def _call(case: Case, draw: Draw) -> CalledCase:
    return PreparedCase(case, draw).call()


def _backward(called: CalledCase) -> None:
    torch.autograd.grad(called.results, called.leaves, called.gradients, allow_unused=True)


def _gradient(result: torch.Tensor, draw: Draw) -> torch.Tensor:
    shape = tuple(result.shape)
    with torch.no_grad():
        drawn = draw.complexes(*shape).detach() if result.is_complex() else draw.floats(*shape)
        return drawn.to(result.dtype)


def _leaves(arguments: Sequence[Any]) -> List[torch.Tensor]:
    leaves: List[torch.Tensor] = []
    for argument in arguments:
        if isinstance(argument, torch.nn.Module):
            leaves += [one for one in argument.parameters() if one.requires_grad]
        elif isinstance(argument, torch.Tensor) and argument.requires_grad:
            leaves.append(argument)
    return leaves


def _tensors(result: Any) -> List[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in _tensors(item)]
    return []


def _described(
    finding: Finding, direction: str, native: Chains, calls: Dict[Write, List[NativeCall]]
) -> Dict[str, Any]:
    """Describe a finding: with the test without the profiler, its certainty and its cost."""
    chain = tuple(finding.path) + (finding.operator,)
    times = count_chain(native, chain)
    detail = "%s: %d times" % (" > ".join(chain), times)
    if not times:
        detail = "without the profiler the operator does not call " + " > ".join(chain)
    tests = _by_input(finding.proof.get("tests", ()))
    if tests:
        tests.append(make_test(NATIVE_PROGRAM, times > 0, detail=detail))
    certainty, why = certainty_of(tests, inside=bool(finding.path))
    if not tests:
        why = finding.proof.get("why") or why
    worth: Dict[str, Any] = {}
    if certainty != INPUT_DEPENDENT and finding.pattern != GUARD and times:
        worth = price(finding.recipe, _PRICE_S)
        worth.update(gain_of(finding.recipe, _GAIN_S))
    return {
        "direction": direction,
        "pattern": finding.pattern,
        "operator": finding.operator,
        "path": list(finding.path),
        "shape": list(finding.shape),
        "dtype": finding.dtype,
        "bytes_wasted": _size_bytes(finding),
        "count": finding.count,
        "detail": finding.detail,
        "native": times,
        "calls": [call.as_dict() for call in calls.get(_write(finding), ())],
        "proof": {"certainty": certainty, "why": why, "tests": tests},
        "worth": worth,
    }


def _by_input(tests: Sequence[Test]) -> List[Test]:
    """Number the trials of one cause, because each one had its own arguments."""
    counts: Dict[Tuple[str, str], int] = {}
    renamed: List[Test] = []
    for test in tests:
        if test["inputs"] == OWN and test["test"] in (POISON, SKIP):
            key = (test["test"], test["poison"])
            counts[key] = counts.get(key, 0) + 1
            test = dict(test, inputs="%s %d" % (DRAWN, counts[key]))  # noqa: PLW2901
        renamed.append(test)
    return renamed


def _error_text(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return ("%s: %s" % (type(error).__name__, text))[:_MOST_CHARACTERS]


def _device_name(device: str) -> str:
    label = device_of(device).label()
    return "%s: %s" % (device, label) if label else device
