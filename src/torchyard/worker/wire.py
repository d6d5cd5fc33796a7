"""Messages between the controller and a worker: JSON lines over two inherited pipes.

Standard library only, Python 3.8 syntax: the worker runs inside any target. The controller imports
this module too, so that the protocol is defined once.

The controller sends one request at a time, and the worker answers it. A request is
``{"ask": VERB, ...}``. An answer is ``{"ok": {...}}`` or
``{"error": {"kind", "message", "traceback", "hint"}}``. Between a request and its answer the worker may
send any number of ``{"note": TEXT}`` lines (progress of long work). A request with ``"turn": FOLDER`` takes
turns on the device with other cells (`device_turn.py`); its answer then has ``"waits"``, a list of starts
and ends by the monotonic clock, if the worker had to wait.

Verbs, in the order of a launch:

hello      -> protocol, python, torch, config, devices, threads, pid, layout
device     {device, file}                         -> devices, notes; fails if it cannot be used
meet       {address}                              -> port; rank 0 of several nodes, before join
join       {rank, ranks, rendezvous, device, ranks_per_node}
                                                  -> nothing; the process group, with several ranks
build      {workload, variants, seed, state, compiled_before}
                                                  -> parameters, flops, loss, versions, devices, notes
reference  {variant, path, limit_bytes}           -> nondeterminism, random, varied; writes the file
judge      {variant, path}                        -> the accuracy record, notes, untrusted, accepted,
                                                     comparable
warm       {variant, seconds}                     -> first_call_s, first_call_began_s, cached_graphs,
                                                     iteration_ns, ...
           seconds 0: the first call alone         -> first_call_s
           reference, judge and warm also answer compile_s: duration of first calls in the request
measure    {variant}                              -> peak memory, graphs and their breaks
reseat     {seed, method}                         -> moved_bytes, held_bytes, duration_ns
block      {variant, inner, samples, prime, settle, flush_l2, draw, varied}
                                                  -> samples_ns, started_ns, wall_ns, readings
follow     with several ranks, to ranks other than 0 while rank 0 answers a verb in LED
                                                  -> block: the latest one, or null
verify     {variant, accepted}                    -> checked, failure, seconds: of the latest block
recheck    {variant, varied, accepted, values, more}
                                                  -> failure, notes, untrusted: after the last block
observe    {reserve_bytes}                         -> nothing; records kernels compiled from now on
compile_phases                                     -> phases: name and seconds, since the last call
kernel_code {names}                                -> code: name and generated code of each kernel
sources    {variant}                              -> work, kernels_why_not
instrumented {variant, iterations, trace}         -> iteration_ns, events, faulting, rows
list       {suite}                                -> names
backends   -> names of the backends registered in dynamo
peak       {what, device, precision, size, seconds}
                                                  -> the best rate, or the limits of sizes
quit       -> nothing
"""

import json
import os
from typing import Any, Dict, Optional

PROTOCOL = 1
LONGEST_MESSAGE = 4000
LONGEST_TRACEBACK = 40000

Message = Dict[str, Any]


PHASES = {
    "hello": "start-up",
    "device": "the check of the device",
    "meet": "the start of the rendezvous",
    "join": "the start of the process group",
    "build": "the model build",
    "reference": "the reference run",
    "judge": "the accuracy check",
    "warm": "warm-up",
    "measure": "the memory and graph metrics",
    "reseat": "data relocation",
    "block": "a timed block",
    "follow": "the request of rank 0",
    "verify": "the check of timed results",
    "recheck": "the final accuracy check",
    "operators": "operator profiling",
    "observe": "the preparation of attribution",
    "compile_phases": "the reading of compile times",
    "kernel_code": "the reading of generated code",
    "sources": "the recording of operators",
    "instrumented": "an instrumented block",
    "memory-sites": "the memory of one iteration",
    "software": "the list of libraries",
    "list": "the listing of workloads",
    "backends": "the listing of backends",
    "peak": "the peak rate measurement",
    "quit": "shutdown",
}
"""What a worker does for each verb, for messages."""


LED = ("reference", "judge", "warm", "measure", "block", "verify", "recheck", "operators")
"""Verbs in which rank 0 tells the other ranks what to do."""


def phase_of(verb: str) -> str:
    """Return what the worker does for the verb, such as `the accuracy check`."""
    return PHASES.get(verb, "the request %r" % verb)


CHANGED = "changed "
REPLACED = "replaced "
PROCESS_WIDE = (CHANGED, REPLACED)
"""A reason in `untrusted` that starts like this concerns every variant of the process."""


class ChannelClosed(Exception):
    """The other end of the pipes is closed, or does not follow the protocol."""


class Channel:
    """One end of the pair of pipes. Forked children of the owner cannot use it."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._reader = os.fdopen(read_fd, "rb", buffering=65536)
        self._write_fd = write_fd
        self.owner = os.getpid()

    def fileno(self) -> int:
        """Return the descriptor to poll for requests."""
        return self._reader.fileno()

    def close(self) -> None:
        """Close both pipes."""
        self._reader.close()
        os.close(self._write_fd)

    def send(self, message: Message) -> None:
        """Write one line; a forked child exits instead of answering a second time."""
        if os.getpid() != self.owner:
            os._exit(86)
        data = json.dumps(message, allow_nan=True).encode("utf-8") + b"\n"
        view = memoryview(data)
        while view:
            try:
                written = os.write(self._write_fd, view)
            except BrokenPipeError as error:
                raise ChannelClosed("the other end of the pipe is closed") from error
            view = view[written:]

    def receive(self) -> Message:
        """Block until a line arrives. A blocked reader uses no CPU."""
        if os.getpid() != self.owner:
            os._exit(86)
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            raise ChannelClosed("the other end of the pipe is closed")
        message = json.loads(line.decode("utf-8"))
        if not isinstance(message, dict):
            raise ChannelClosed("the other end does not follow the protocol")
        return message


def answer(result: Optional[Message]) -> Message:
    """Return the message of a successful answer."""
    return {"ok": result or {}}


def error_answer(kind: str, message: str, traceback: str = "", hint: str = "") -> Message:
    """Return the message of a failed request; the texts of an exception are shortened."""
    return {
        "error": {
            "kind": kind,
            "message": shortened(message, LONGEST_MESSAGE),
            "traceback": shortened(traceback, LONGEST_TRACEBACK),
            "hint": shortened(hint, LONGEST_MESSAGE),
        }
    }


def shortened(text: str, longest: int) -> str:
    """Return the text, without its middle when it is longer than `longest` characters."""
    if len(text) <= longest:
        return text
    omitted = len(text) - longest
    end = longest // 3
    return f"{text[: longest - end]}\n[... {omitted} characters ...]\n{text[-end:]}"
