"""A worker without torch that misbehaves on request; run by the tests as a real process."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchyard.worker.device_turn import TURN
from torchyard.worker.wire import Channel, ChannelClosed, answer, error_answer

Verb = Callable[..., "dict[str, Any] | None"]
channel = Channel(int(sys.argv[1]), int(sys.argv[2]))
kept: list[object] = []


def echo(**fields: Any) -> dict[str, Any]:
    return fields


def facts() -> dict[str, Any]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    places = [line.split("-")[0] for line in maps if "[stack]" in line or "libc" in line]
    return {
        "arguments": sys.argv[3:],
        "variables": dict(os.environ),
        "folder": str(Path.cwd()),
        "places": places,
        "path": sys.path,
        "session": os.getsid(0),
        "stdin": str(Path("/proc/self/fd/0").readlink()),
    }


def run(code: str) -> dict[str, Any]:
    """Run code in this process; its variable `result` is the answer."""
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102
    return {"result": names.get("result")}


def notes(count: int) -> dict[str, Any]:
    for index in range(count):
        channel.send({"note": f"step {index}"})
    return {"count": count}


def leave(code: int) -> None:
    os.write(1, b"about to leave\n")
    os._exit(code)


def die(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)


def hang(ignore: bool = False) -> None:
    if ignore:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.write(1, b"hanging now\n")
    time.sleep(600)


def hog(size_bytes: int, in_child: bool = False) -> None:
    if in_child and os.fork() > 0:
        time.sleep(600)
    kept.append(b"\1" * size_bytes)
    time.sleep(600)


def say(size_bytes: int) -> dict[str, Any]:
    os.write(1, b"first line\n")
    chunk = (b"x" * 99 + b"\n") * 10000
    for _ in range(size_bytes // len(chunk)):
        os.write(1, chunk)
    os.write(2, b"last line\n")
    return {}


def change_folder(path: str) -> dict[str, Any]:
    os.chdir(path)
    return {"folder": str(Path.cwd())}


def fork_back() -> dict[str, Any]:
    """The child returns into the loop and tries to answer as well."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return {"child_exit": os.waitstatus_to_exitcode(status)}
    return {"child_exit": "this is the child"}


def fork_sleeper(new_session: bool = False, then_leave: bool = False) -> dict[str, Any]:
    """A grandchild that holds all pipes open and outlives its parent."""
    child = os.fork()
    if child == 0:
        if new_session:
            os.setsid()
            if os.fork() > 0:
                os._exit(0)
        while True:
            time.sleep(600)
    if new_session:
        os.waitpid(child, 0)
    if then_leave:
        os._exit(5)
    return {"child": child}


def close_output() -> dict[str, Any]:
    os.close(1)
    os.close(2)
    return {}


def close_pipe() -> None:
    os.close(int(sys.argv[2]))
    time.sleep(600)


def garbage(text: str) -> None:
    os.write(int(sys.argv[2]), text.encode() + b"\n")
    time.sleep(600)


def answer_twice() -> dict[str, Any]:
    channel.send(answer({"which": "first"}))
    return {"which": "second"}


def answer_late_and_leave() -> None:
    channel.send(answer({"last": "words"}))
    os._exit(0)


def long_answer(size_bytes: int) -> dict[str, Any]:
    return {"text": "y" * size_bytes}


def fail(kind: str, hint: str = "") -> None:
    error = error_answer(kind, "it went wrong", "Traceback: somewhere")
    error["error"]["hint"] = hint
    channel.send(error)


VERBS: dict[str, Verb] = {
    function.__name__: function
    for function in (
        echo,
        facts,
        run,
        notes,
        leave,
        die,
        hang,
        hog,
        say,
        change_folder,
        fork_back,
        fork_sleeper,
        close_output,
        close_pipe,
        garbage,
        answer_twice,
        answer_late_and_leave,
        long_answer,
        fail,
    )
}


def main() -> int:
    while True:
        try:
            question = channel.receive()
        except ChannelClosed:
            return 0
        verb = question.pop("ask")
        if verb == "quit":
            channel.send(answer({}))
            return 0
        TURN.begin(question.pop("turn", ""))
        try:
            result = VERBS[verb](**question)
        except KeyError as error:
            channel.send(error_answer("raised", f"KeyError: {error}", "Traceback: the stub"))
            continue
        waits = TURN.end()
        if verb != "fail":
            channel.send({**answer(result), **({"waits": waits} if waits else {})})


sys.exit(main())
