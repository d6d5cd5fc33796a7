"""The agent of a worker on another node of a Slurm allocation: starts it, and kills it at the end.

Run by srun as ``python -m torchyard.process.node_agent``; see `nodes.py`. The worker is killed with
everything it started when the controller closes the connection, when the node of the controller no longer
responds, and when Slurm ends the job step. If the agent is killed, the worker dies with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, Final

from torchyard.core.cpu_lists import cpu_list, split_cpus
from torchyard.process.ending import ExitWatch
from torchyard.process.nodes import MEETING_VARIABLE, NODE_VARIABLES, keep_alive
from torchyard.process.start import StartRefused, Trampoline, plan_of, start_trampoline
from torchyard.process.tree import (
    CONTROLLER_VARIABLE,
    LAUNCH_VARIABLE,
    controller_mark,
    kill_tree,
    new_launch_mark,
)
from torchyard.worker.placement import CORES

_CONNECT_LIMIT_S: Final = 30.0
_START_LIMIT_S: Final = 60.0
_NOT_STARTED: Final = 127


def main() -> int:
    """Connect to the controller, start the worker and wait for its end."""
    port, secret = os.environ.pop(MEETING_VARIABLE).split()
    controller = (os.environ["SLURM_LAUNCH_NODE_IPADDR"], int(port))
    requests, agent = (_connect(controller, secret, name) for name in ("requests", "agent"))
    with agent.makefile("rb", buffering=0) as file:
        order = json.loads(file.readline())
    mark = new_launch_mark()
    marks = {LAUNCH_VARIABLE: mark, CONTROLLER_VARIABLE: controller_mark()}
    fd = requests.detach()
    fds = (fd, os.dup(fd))
    trampoline = start_trampoline(output_fd=1, pass_fds=fds, marks=marks)
    pid = trampoline.process.pid

    def end(*_: object) -> None:
        kill_tree(pid, mark)
        os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)
    report: dict[str, int] = {"exit": _NOT_STARTED}
    try:
        if _execute(trampoline, order, fds, marks):
            for own_fd in fds:
                os.close(own_fd)
            report = _watch(agent, pid)
        with suppress(OSError):
            agent.sendall(json.dumps(report).encode() + b"\n")
    finally:
        kill_tree(pid, mark)
    return 0


def _connect(controller: tuple[str, int], secret: str, name: str) -> socket.socket:
    connection = socket.create_connection(controller, timeout=_CONNECT_LIMIT_S)
    connection.settimeout(None)
    keep_alive(connection)
    connection.sendall(f"{secret} {name}\n".encode())
    return connection


def _execute(
    trampoline: Trampoline, order: dict[str, Any], fds: tuple[int, int], marks: dict[str, str]
) -> bool:
    """Execute the worker with both ends of its connection; print why that fails."""
    entry = order["command"].index(order["entry"])
    command = [*order["command"][: entry + 1], *map(str, fds), *order["command"][entry + 3 :]]
    own = {name: os.environ[name] for name in NODE_VARIABLES if name in os.environ}
    environment = {**own, **order["environment"], **marks}
    if order["part"] >= 0:
        cpus = split_cpus(tuple(os.sched_getaffinity(0)), order["parts"])[order["part"]]
        environment[CORES] = cpu_list(cpus)
    plan = plan_of(
        command,
        environment,
        folder=order["folder"],
        randomize_addresses=order["randomize_addresses"],
    )
    node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
    try:
        if trampoline.execute(plan, limit_s=_START_LIMIT_S):
            return True
        problem = f"timed out after {_START_LIMIT_S:g} s"
    except StartRefused as refusal:
        path = command[0] if refusal.step == "exec" else order["folder"]
        problem = f"{path}: {os.strerror(refusal.error_number)}"
    print(  # noqa: T201  # the log of the worker
        f"cannot be started on the node {node}: {problem}; targets and the results directory must have "
        "the same path on all nodes",
        file=sys.stderr,
        flush=True,
    )
    return False


def _watch(agent: socket.socket, pid: int) -> dict[str, int]:
    """Pass signals on until the worker ends or the controller is gone; return the report."""
    exit_watch = ExitWatch(pid)
    poll = select.poll()
    poll.register(agent, select.POLLIN)
    poll.register(exit_watch, select.POLLIN)
    while True:
        poll.poll()
        ending = exit_watch.ending()
        if ending is not None:
            if ending.signal_number is not None:
                return {"signal": ending.signal_number}
            return {"exit": ending.exit_code or 0}
        agent.setblocking(False)
        try:
            numbers = agent.recv(4096)
        except BlockingIOError:
            continue
        except OSError:
            numbers = b""
        agent.setblocking(True)
        if not numbers:
            return {"signal": signal.SIGKILL}
        for number in numbers.split():
            with suppress(ProcessLookupError, ValueError):
                os.kill(pid, int(number))


if __name__ == "__main__":
    sys.exit(main())
