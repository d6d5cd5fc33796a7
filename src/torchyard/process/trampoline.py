"""Prepare the worker's process, then execute the target's interpreter in it.

Run as ``python -I -S trampoline.py CONTROLLER_PID PLAN_FD STATUS_FD``. It sets the parent-death
signal and the personality, enters the working directory and executes the target with the target's
own environment, which comes through a pipe: LD_PRELOAD and LD_LIBRARY_PATH are meant for the target
and could break the controller's interpreter.

`preexec_fn` is not used because the controller has threads: Python code between fork and exec may
wait for a lock that a thread held at the fork, Python 3.12 and later warn about it, and the whole
controller would be forked instead of vforked. The cost is the start of a bare interpreter, far below
the import time of torch.

The plan consists of fields separated by null bytes, since paths and variables are bytes:
randomise ("0" or "1"), folder (may be empty), number of arguments, arguments, NAME=value..., "end".
The status is "ready" just before the execution, and "ERRNO STEP" when a step fails.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_ADDR_NO_RANDOMIZE = 0x0040000
_ASK_PERSONALITY = 0xFFFFFFFF
_COULD_NOT_EXECUTE = 127


def main(controller_pid: int, plan_fd: int, status_fd: int) -> int:
    """Execute the target, or return an exit code."""
    os.set_inheritable(status_fd, False)
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != controller_pid:  # it died before prctl: no signal will come
        return 1
    with os.fdopen(plan_fd, "rb") as pipe:
        randomise, folder, count, *rest = pipe.read().split(b"\0")
    if rest[-1] != b"end":  # the controller was interrupted while writing
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
        os.execve(arguments[0], arguments, environment)  # noqa: S606  # no shell needed
    except OSError as error:
        os.write(status_fd, b"%d %s\n" % (error.errno or 0, step.encode()))
    return _COULD_NOT_EXECUTE


def _set_personality(libc: ctypes.CDLL, *, randomise: bool) -> None:
    """Set address randomisation for the next execve; a refusal (seccomp) is not an error."""
    current = libc.personality(ctypes.c_ulong(_ASK_PERSONALITY))
    if current < 0:
        return
    new = current & ~_ADDR_NO_RANDOMIZE if randomise else current | _ADDR_NO_RANDOMIZE
    if new != current:
        libc.personality(ctypes.c_ulong(new))


if __name__ == "__main__":
    sys.exit(main(*(int(text) for text in sys.argv[1:4])))
