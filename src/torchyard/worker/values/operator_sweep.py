"""Sweep operators for wasted work: each case natively, then profiled, forward and backward.

Writes JSON lines as it goes: which case has begun, and its outcome. An exception is an outcome. A
process that dies loses one case, which the controller knows from the line that says it began.
"""

import faulthandler
import fnmatch
import json
import os
import time
import warnings
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.operator_cases import Case, Draw, all_cases, cases_of_file
from torchyard.worker.values.patterns.guard import GUARDS
from torchyard.worker.values.pricing.fix_timing import gain_of, price
from torchyard.worker.values.profiling_session import Session
from torchyard.worker.values.proofs.certainty import (
    INPUT_DEPENDENT,
    NATIVE_PROGRAM,
    POISON,
    SKIP,
    Test,
    judge,
    make_test,
)
from torchyard.worker.values.proofs.trial_inputs import OWN
from torchyard.worker.values.proofs.trials import DEAD, GUARD, REDUNDANT
from torchyard.worker.values.redispatch import Chains, NativeEvents, count_chain, why_unavailable

FORMAT = 1
SEEDS = (11, 12, 13)
"""Inputs of a case: two are put on trial, and a guard must be seen three times."""
DRAWN = "drawn for the case,"
FORWARD, BACKWARD = "forward", "backward"
PATTERNS = frozenset({DEAD, REDUNDANT, GUARD, "needless copy"})
"""Waste of an operator, whatever it is given. Other patterns are about values, which here are ours."""
_PRICE_S = 0.25
_GAIN_S = 0.6
_MOST_CHARACTERS = 300

Chunk = Dict[str, Any]


class _Called(NamedTuple):
    """One call of a case, ready for its backward."""

    leaves: List[torch.Tensor]
    results: List[torch.Tensor]
    """Those that have a gradient."""
    gradients: List[torch.Tensor]


class Rows:
    """A file of JSON lines; each is handed to the system as a whole."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, kind: str, **data: Any) -> None:
        """One line."""
        line = json.dumps(dict(data, kind=kind), default=str) + "\n"
        os.write(self._descriptor, line.encode("utf-8"))


def sweep_plan(plan: Dict[str, Any]) -> int:
    """Sweep the cases of a plan that are not done yet; at most so many that memory stays small."""
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
            return 1  # nobody waits for the rest
        rows.write("began", case=case.name)
        # A kernel that never returns is ended here, as is one that crashes.
        faulthandler.dump_traceback_later(chunk["limit_s"], exit=True)
        row = sweep_case(case, chunk["device"], plan.get("cache"))
        faulthandler.cancel_dump_traceback_later()
        rows.write("row", **row)
        if "CUDA error" in row["why"]:
            return 0  # after one of these every call fails: the rest needs a new process
    return 0


def chosen_cases(only: str, file: Optional[str] = None) -> List[Case]:
    """Cases whose name fits the pattern, of ours and of somebody's file."""
    cases = all_cases() + (cases_of_file(file) if file else [])
    return [case for case in cases if fnmatch.fnmatchcase(case.name, only)]


def sweep_case(case: Case, device: str, cache: Optional[str] = None) -> Dict[str, Any]:
    """Everything about one case. `unsupported`: it does not run without us, either."""
    began_s = time.monotonic()
    row: Dict[str, Any] = {"case": case.name, "family": case.family, "findings": []}
    try:
        native = _natively(case, device)
    except Exception as error:
        row.update(state="unsupported", why=_said(error))
    else:
        try:
            sessions = _profiled(case, device, cache)
            row["findings"] = [
                _described(finding, direction, native[direction])
                for direction, session in sessions.items()
                for finding in _each_once(session)
            ]
            row.update(_coverage(list(sessions.values())))
            row["directions"] = list(native)
            row.update(state="done", why="")
        except Exception as error:
            row.update(state="failed", why=_said(error))
    row["seconds"] = round(time.monotonic() - began_s, 3)
    return row


def _natively(case: Case, device: str) -> Dict[str, Chains]:
    """Which operators run inside of which, when nobody looks; by direction."""
    _call(case, Draw(device, SEEDS[0]))  # caches and first allocations
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
    if draw.device.type == "cuda":
        torch.cuda.synchronize(draw.device)  # its errors belong to this case
    return chains


def _profiled(case: Case, device: str, cache: Optional[str]) -> Dict[str, Session]:
    """The case under the watch, in a session of its own for each direction."""
    sources = [_Prepared(case, Draw(device, seed)) for seed in SEEDS]
    called: List[_Called] = []

    def forward(session: Session) -> None:
        for prepared in sources:
            called.append(prepared.call(session))
            session.step()

    def backward(session: Session) -> None:
        for one in called:
            _backward(one)
            session.step()

    sessions = {FORWARD: _in_session(forward, cache)}
    if called[0].results:
        sessions[BACKWARD] = _in_session(backward, cache)
    return sessions


def _in_session(body: Callable[[Session], None], cache: Optional[str]) -> Session:
    session = Session(Options(deep=True, close_steps=0, graph=False), cache=cache)
    session.start()
    try:
        body(session)
    finally:
        session.stop()
    return session


def _coverage(sessions: List[Session]) -> Dict[str, int]:
    """How much was written, and what of it was not looked at or not put on trial."""
    counts = [session.result("finished")["counts"] for session in sessions]
    names = ("written_bytes", "not_seen_bytes", "not_tried")
    return {name: sum(count.get(name, 0) for count in counts) for name in names}


def _each_once(session: Session) -> List[Finding]:
    """The waste that a session found. Of two fills of one buffer one is needed, so they are one."""
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
    """Of one sighting."""
    return finding.bytes_wasted // max(1, finding.count)


def _is_waste(finding: Finding) -> bool:
    """Whether it is waste of torch's; a guard that a case calls by name was asked for."""
    if finding.pattern == GUARD:
        return bool(finding.path) and not any(name in GUARDS for name in finding.path)
    return finding.pattern in PATTERNS


class _Prepared:
    """A case with its arguments, which are made before anything is watched."""

    def __init__(self, case: Case, draw: Draw) -> None:
        self._function = case.function()
        self._options = case.options
        self._arguments = list(case.make(draw))
        self._draw = draw

    def call(self, session: Optional[Session] = None) -> _Called:
        """Run it. Gradients of its results are random, and not watched either."""
        result = self._function(*self._arguments, **self._options)
        if session is not None:
            session.mode.off = True
        try:
            results = [one for one in _tensors(result) if one.requires_grad]
            gradients = [_gradient(one, self._draw) for one in results]
        finally:
            if session is not None:
                session.mode.off = False
        return _Called(_leaves(self._arguments), results, gradients)


def _call(case: Case, draw: Draw) -> _Called:
    return _Prepared(case, draw).call()


def _backward(called: _Called) -> None:
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


def _described(finding: Finding, direction: str, native: Chains) -> Dict[str, Any]:
    """A finding with the last test of its proof, the run without the watch, and what it costs."""
    chain = tuple(finding.path) + (finding.operator,)
    times = count_chain(native, chain)
    detail = "%s: %d times" % (" > ".join(chain), times)
    if not times:
        detail = "without the profiler the operator does not run " + " > ".join(chain)
    tests = _by_input(finding.proof.get("tests", ()))
    if tests:
        tests.append(make_test(NATIVE_PROGRAM, times > 0, detail=detail))
    certainty, why = judge(tests, inside=bool(finding.path))
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
        "proof": {"certainty": certainty, "why": why, "tests": tests},
        "worth": worth,
    }


def _by_input(tests: Sequence[Test]) -> List[Test]:
    """The tests with trials of one cause told apart: here each of them had arguments of its own."""
    counts: Dict[Tuple[str, str], int] = {}
    renamed: List[Test] = []
    for test in tests:
        if test["inputs"] == OWN and test["test"] in (POISON, SKIP):
            key = (test["test"], test["poison"])
            counts[key] = counts.get(key, 0) + 1
            test = dict(test, inputs="%s %d" % (DRAWN, counts[key]))  # noqa: PLW2901
        renamed.append(test)
    return renamed


def _said(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return ("%s: %s" % (type(error).__name__, text))[:_MOST_CHARACTERS]


def _device_name(device: str) -> str:
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        return "%s: %s" % (device, torch.cuda.get_device_name(torch.device(device)))
    return device
