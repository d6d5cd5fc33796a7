"""Runs somebody's program as Python would run it, with something around it.

The program sees its own `sys.argv`, `__main__` and folder, and ends as it would end: what it prints,
its exit code and its traceback are its own. Whatever surrounds it (the watch, or a plain profiler)
is told when it begins, forks and ends.
"""

import os
import runpy
import signal
import sys
import threading
import traceback
from typing import Any, Callable, List, NamedTuple, Optional

INTERRUPTED = 130
TERMINATED = 143
THREADS = "the program starts threads of its own: operators that run in them are not seen"


class Ending(NamedTuple):
    """How a program ended."""

    exit_code: int
    state: str
    """finished, crashed (an exception, or another code than 0) or interrupted."""


class Surrounding:
    """What is around a program; a base that does nothing."""

    def start(self) -> None:
        """Right before the program's first line."""

    def stop(self, ending: Ending) -> None:
        """Right after its last one, also when it crashed."""

    def leave_child(self) -> None:
        """In a process that the program forked: watch nothing there."""

    def step(self) -> None:
        """A step of the program is over, where the program itself does not show it."""

    def note(self, text: str) -> None:
        """Something the user should know."""


def run_program(words: List[str], surrounding: Surrounding) -> int:
    """Run `SCRIPT ARGUMENTS...` or `-m MODULE ARGUMENTS...`; its exit code."""
    return run_callable(lambda: _run(words), surrounding)


def run_callable(body: Callable[[], Any], surrounding: Surrounding) -> int:
    """Run anything with the same care."""
    pid = os.getpid()
    os.register_at_fork(after_in_child=surrounding.leave_child)
    _count_threads(surrounding)
    ended: List[Ending] = []

    def end(ending: Ending) -> None:
        if not ended and os.getpid() == pid:
            ended.append(ending)
            surrounding.stop(ending)

    leave = os._exit

    def leave_at_once(code: int) -> None:
        end(Ending(code, "finished" if code == 0 else "crashed"))
        leave(code)

    os._exit = leave_at_once  # type: ignore[assignment]
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    surrounding.start()
    try:
        body()
        ending = Ending(0, "finished")
    except SystemExit as request:
        code = _exit_code(request)
        state = "finished" if code == 0 else "interrupted" if code == TERMINATED else "crashed"
        ending = Ending(code, state)
    except KeyboardInterrupt:
        ending = Ending(INTERRUPTED, "interrupted")
    except BaseException as error:
        _show(error)
        ending = Ending(1, "crashed")
    finally:
        os._exit = leave
    end(ending)
    return ending.exit_code


def _run(words: List[str]) -> None:
    if words[:1] == ["-m"]:
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = list(words)
    sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
    runpy.run_path(words[0], run_name="__main__")


def _exit_code(request: SystemExit) -> int:
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code & 0xFF
    sys.stderr.write(str(request.code) + "\n")
    return 1


def _show(error: BaseException) -> None:
    """The traceback from the program's first frame on, as if nothing were around it."""
    entry: Optional[Any] = error.__traceback__
    here = os.path.dirname(os.path.abspath(__file__))
    while entry is not None:
        name = entry.tb_frame.f_code.co_filename
        if not name.startswith((here, "<frozen runpy>")) and os.path.basename(name) != "runpy.py":
            break
        entry = entry.tb_next
    sys.stdout.flush()
    traceback.print_exception(type(error), error, entry)


def _terminate(_number: int, _frame: Any) -> None:
    raise SystemExit(TERMINATED)


def _count_threads(surrounding: Surrounding) -> None:
    start = threading.Thread.start
    said: List[bool] = []

    def counted(thread: threading.Thread) -> None:
        if not said:
            said.append(True)
            surrounding.note(THREADS)
        start(thread)

    threading.Thread.start = counted  # type: ignore[method-assign,assignment]
