"""Start programs one after the other and measure each: wall time, CPU time, peak memory.

Run as ``python -I -S program_starter.py``. A small process of its own, because the peak memory that
the kernel reports for a program includes that of the process which started it. Requests and answers
are JSON lines on stdin and stdout. The end of stdin kills the running program and ends this process.
"""

import contextlib
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any

_READY = select.POLLIN | select.POLLHUP


def main() -> int:
    """Answer requests until stdin ends."""
    reader = sys.stdin.buffer
    while line := reader.readline():
        answer = _run(json.loads(line))
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


def _run(request: dict[str, Any]) -> dict[str, Any]:
    write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, request["stdout"] or os.devnull, write, 0o644),
        (os.POSIX_SPAWN_OPEN, 2, request["stderr"], write, 0o644),
    ]
    argv = request["argv"]
    if request["folder"]:
        try:
            os.chdir(request["folder"])
        except OSError as error:
            return {"error": f"{request['folder']}: {error.strerror}"}
        os.environ["PWD"] = request["folder"]
    changes = request["variables"]
    variables = {key: value for key, value in os.environ.items() if key not in changes}
    variables.update((key, value) for key, value in changes.items() if value is not None)
    started_ns = time.perf_counter_ns()
    try:
        pid = os.posix_spawnp(
            argv[0], argv, variables, file_actions=actions, setsid=True, setsigdef=_DEFAULTS
        )
    except OSError as error:
        return {"error": error.strerror or str(error)}
    timed_out = not _wait(pid, request["limit_s"])
    wall_ns = time.perf_counter_ns() - started_ns
    waited_ns = _queue_wait_ns(pid)
    _, status, usage = os.wait4(pid, 0)
    if timed_out:
        _kill_group(pid)
    return {
        "started_ns": started_ns,
        "wall_ns": wall_ns,
        "exit_code": os.waitstatus_to_exitcode(status),
        "timed_out": timed_out,
        "cpu_ns": round((usage.ru_utime + usage.ru_stime) * 1e9),
        "peak_memory_bytes": usage.ru_maxrss * 1024,
        "run_queue_wait_ns": waited_ns,
        "involuntary_switches": usage.ru_nivcsw,
        "major_faults": usage.ru_majflt,
    }


_DEFAULTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def _wait(pid: int, limit_s: float) -> bool:
    """Wait until the program ended; kill it after the limit, or when stdin ends."""
    poll = select.poll()
    fd = _exit_fd(pid)
    poll.register(fd, _READY)
    poll.register(0, select.POLLHUP)
    events = dict(poll.poll(limit_s * 1000.0))
    os.close(fd)
    if fd in events:
        return True
    _kill_group(pid)
    if events:  # nobody waits for the answer
        os.waitpid(pid, 0)
        sys.exit(1)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return False


def _exit_fd(pid: int) -> int:
    """Return a descriptor that becomes readable when the process ends."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # gVisor, Linux before 5.3
        read_fd, write_fd = os.pipe()

        def wait() -> None:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            os.close(write_fd)

        threading.Thread(target=wait, daemon=True).start()
        return read_fd


def _queue_wait_ns(pid: int) -> int | None:
    """Return how long the main thread of the ended program waited for a core."""
    try:
        with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:  # noqa: PTH123 - smaller
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
