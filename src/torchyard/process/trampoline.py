"""The program between fork and the target's interpreter: prepares its own process, then becomes it.

Run as ``python -I -S trampoline.py YARD_PID PLAN_FD STATUS_FD``. It asks to be ended with the yard,
sets the personality, enters the working folder and executes the target with the target's own
environment, which comes through a pipe: LD_PRELOAD and LD_LIBRARY_PATH are meant for the target and
could break the yard's interpreter.

This and not `preexec_fn`, because the yard has threads: Python code between fork and exec may wait
for a lock that a thread held at the fork, Python 3.12 and later warn of it, and the whole yard would
be forked instead of vforked. The price is the start of a bare interpreter, far below the time torch
takes to import.

The plan is fields separated by zero bytes, since paths and variables are bytes:
randomise ("0" or "1"), folder (may be empty), number of arguments, arguments, NAME=value..., "end".
The status is "ready" just before the execution, and "ERRNO STEP" when a step is refused.
"""

import ctypes
import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_ADDR_NO_RANDOMIZE = 0x0040000
_ASK_PERSONALITY = 0xFFFFFFFF
_COULD_NOT_EXECUTE = 127


def main(yard_pid: int, plan_fd: int, status_fd: int) -> int:
    """Become the target, or return an exit code."""
    os.set_inheritable(status_fd, False)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != yard_pid:  # the yard died before the request was made: nobody will end us
        return 1
    with os.fdopen(plan_fd, "rb") as pipe:
        randomise, folder, count, *rest = pipe.read().split(b"\0")
    if rest[-1] != b"end":  # the yard was interrupted while it wrote
        return 1
    arguments, pairs = rest[: int(count)], rest[int(count) : -1]
    environment = dict(pair.split(b"=", 1) for pair in pairs)
    _set_personality(libc, randomise=randomise == b"1")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two, and exec keeps that
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    step = "chdir"
    try:
        if folder:
            os.chdir(folder)
        step = "exec"
        os.write(status_fd, b"ready\n")
        os.execve(arguments[0], arguments, environment)  # noqa: S606  # no shell wanted
    except OSError as error:
        os.write(status_fd, b"%d %s\n" % (error.errno or 0, step.encode()))
    return _COULD_NOT_EXECUTE


def _set_personality(libc: ctypes.CDLL, *, randomise: bool) -> None:
    """Address randomisation on or off for the next execve; a refusal (seccomp) is not an error."""
    now = libc.personality(ctypes.c_ulong(_ASK_PERSONALITY))
    if now < 0:
        return
    wanted = now & ~_ADDR_NO_RANDOMIZE if randomise else now | _ADDR_NO_RANDOMIZE
    if wanted != now:
        libc.personality(ctypes.c_ulong(wanted))


if __name__ == "__main__":
    sys.exit(main(*(int(text) for text in sys.argv[1:4])))
