"""Messages between the yard and a worker: JSON lines over two inherited pipes.

Standard library only, Python 3.8 syntax: the worker half runs inside any target. The yard imports
this module too, so that the protocol is written down once.

The yard asks, the worker answers; one question at a time. A question is ``{"ask": VERB, ...}``. An
answer is ``{"ok": {...}}`` or ``{"error": {"kind", "message", "traceback", "hint"}}``. Between a question and
its answer the worker may send any number of ``{"note": TEXT}`` lines (progress of long work).

Verbs, in the order of a launch:

hello      -> protocol, python, torch, config, devices, threads, pid, layout
build      {workload, variants, seed, state}      -> parameters, flops, loss, versions
reference  {variant, path, limit_bytes}           -> nondeterminism, random, varied; writes the file
judge      {variant, path}                        -> the accuracy record, notes, untrusted, accepted,
                                                     comparable
warm       {variant, seconds}                     -> first_call_s, iteration_ns, stable, ...
           seconds 0: the first call alone         -> first_call_s
measure    {variant}                              -> peak memory, graphs and their breaks
reseat     {seed, method}                         -> moved_bytes, held_bytes, duration_ns
block      {variant, inner, samples, prime, settle, flush_l2, draw, varied}
                                                  -> samples_ns, started_ns, wall_ns, readings
verify     {variant, accepted}                    -> checked, failure, seconds: of the latest block
recheck    {variant, varied, accepted, values, more}
                                                  -> failure, notes, untrusted: after the last block
list       {suite}                                -> names
peak       {what, device, precision, size, seconds}
                                                  -> a best rate, or what sizes are limited by
quit       -> nothing
"""

import json
import os
from typing import Any, Dict, Optional

PROTOCOL = 1
LONGEST_MESSAGE = 4000
LONGEST_TRACEBACK = 40000

Message = Dict[str, Any]


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One side of the pair of pipes. Forked children of the owner cannot speak on it."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._reader = os.fdopen(read_fd, "rb", buffering=65536)
        self._write_fd = write_fd
        self._owner = os.getpid()

    def send(self, message: Message) -> None:
        """Write one line; a forked child that gets here ends instead of answering twice."""
        if os.getpid() != self._owner:
            os._exit(86)
        data = json.dumps(message, allow_nan=True).encode("utf-8") + b"\n"
        view = memoryview(data)
        while view:
            try:
                written = os.write(self._write_fd, view)
            except BrokenPipeError as error:
                raise ChannelClosed("the other side closed the pipe") from error
            view = view[written:]

    def receive(self) -> Message:
        """Block until one line is there. A blocked reader uses no CPU."""
        if os.getpid() != self._owner:
            os._exit(86)
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            raise ChannelClosed("the other side closed the pipe")
        message = json.loads(line.decode("utf-8"))
        if not isinstance(message, dict):
            raise ChannelClosed("the other side does not speak this protocol")
        return message


def answer(result: Optional[Message]) -> Message:
    """A good answer."""
    return {"ok": result or {}}


def complaint(kind: str, message: str, traceback: str = "", hint: str = "") -> Message:
    """A bad answer; an exception may hold a text of any length, such as a whole source file."""
    return {
        "error": {
            "kind": kind,
            "message": shortened(message, LONGEST_MESSAGE),
            "traceback": shortened(traceback, LONGEST_TRACEBACK),
            "hint": shortened(hint, LONGEST_MESSAGE),
        }
    }


def shortened(text: str, longest: int) -> str:
    """Both ends of a text that is longer than allowed."""
    if len(text) <= longest:
        return text
    left_out = len(text) - longest
    end = longest // 3
    return f"{text[: longest - end]}\n[... {left_out} characters ...]\n{text[-end:]}"
