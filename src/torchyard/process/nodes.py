"""Start a worker on another node of the Slurm allocation.

`srun` starts an agent there (`node_agent.py`), which connects back to the controller twice and starts the
worker. The worker inherits the first connection: requests and answers. The second one belongs to the
agent: it carries signals to the worker and reports its exit. When it ends, the agent kills the worker, so
that no process is left on the node, however the controller ended. If the node is lost, keep-alive probes
end the connection. Output of the worker and of srun goes to the log of the worker.

Anybody can connect to the port: a connection counts only if it starts with a secret, which the agent gets
in its environment.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torchyard.errors import MissingTool
from torchyard.process.ending import ExitWatch, RelayedExit, WorkerFailure
from torchyard.process.start import (
    LaunchSpec,
    PreparedLaunch,
    StartedWorker,
    plan_of,
    start_trampoline,
)
from torchyard.process.tree import kill_tree, new_launch_mark
from torchyard.process.worker_io import OutputLog, RequestPipes

MEETING_VARIABLE: Final = "TORCHYARD_NODE_AGENT"
"""Port and secret, for the agent."""
SECRET_BYTES: Final = 32
NODE_VARIABLES: Final = (
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL"),
    *("SLURMD_NODENAME", "SLURM_NODEID", "SLURM_LAUNCH_NODE_IPADDR", "HOSTNAME"),
)
"""Variables that Slurm sets differently on each node."""
_AGENT: Final = ("-P", "-s", "-m", "torchyard.process.node_agent")
_GREETING_LIMIT_S: Final = 5.0
END_LIMIT_S: Final = 5.0
"""How long the end of a worker on another node may take."""
_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


@dataclass(frozen=True, kw_only=True)
class NodePlace:
    """A node, and the part of its CPUs that the worker gets; -1: those of its specification."""

    name: str
    part: int
    parts: int


def keep_alive(connection: socket.socket) -> None:
    """End the connection when the other node no longer responds, after about half a minute."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@dataclass(frozen=True, kw_only=True)
class _StartedOnNode(StartedWorker):
    """A worker on another node; `process` is srun."""

    agent: socket.socket
    ended: ExitWatch
    """The exit of srun."""

    def signal(self, number: signal.Signals) -> None:
        """Let the agent send a signal to the worker."""
        with suppress(OSError):
            self.agent.send(b"%d\n" % number)

    def end_elsewhere(self) -> None:
        """Let the agent kill the worker, and wait until srun has printed all output."""
        with suppress(OSError):
            self.agent.shutdown(socket.SHUT_WR)
        self.ended.wait(END_LIMIT_S)
        self.ended.close()


def start_on_node(
    node: NodePlace, spec: LaunchSpec, launch: PreparedLaunch, *, log_path: Path
) -> StartedWorker:
    """Start a worker on a node; return when its agent is connected."""
    srun = shutil.which("srun")
    if srun is None:
        raise MissingTool("there is no srun", hint="install Slurm's programs on this node")
    secret = secrets.token_hex(SECRET_BYTES)
    with ExitStack() as on_failure, socket.create_server(("", 0), backlog=8) as listener:
        log_fd, output_fd = os.pipe()
        try:
            log = OutputLog(log_fd, log_path)
            on_failure.callback(log.finish)
            trampoline = start_trampoline(output_fd=output_fd, marks={})
        finally:
            os.close(output_fd)
        process = trampoline.process
        # The agent must not carry the mark of a launch of this node.
        on_failure.callback(process.wait)
        on_failure.callback(kill_tree, process.pid, new_launch_mark())
        exit_watch = ExitWatch(process.pid)
        on_failure.callback(exit_watch.close)
        meeting = f"{listener.getsockname()[1]} {secret}"
        trampoline.execute(
            plan_of(_command(srun, node.name), {**os.environ, MEETING_VARIABLE: meeting}),
            limit_s=spec.start_limit_s,
        )
        try:
            connections = _accept(listener, secret, exit_watch, limit_s=spec.start_limit_s)
        except TimeoutError as error:
            exit_watch.wait(1.0)
            on_failure.close()  # completes the log
            raise WorkerFailure(
                f"{spec.name}: cannot be started on the node {node.name}",
                kind="crashed",
                why=str(error),
                hint="the log shows the messages of srun; Torchyard needs the same path on all nodes",
                log=str(log_path),
                log_tail=log.tail(),
            ) from error
        requests, agent = connections["requests"], connections["agent"]
        agent.sendall(_order(node, spec, launch))
        on_failure.pop_all()
    address = agent.getsockname()[0]
    fd = requests.detach()
    return _StartedOnNode(
        process=process,
        exit=RelayedExit(agent),
        pipes=RequestPipes(read_fd=fd, write_fd=os.dup(fd)),
        log=log,
        agent=agent,
        ended=exit_watch,
        controller_address=address,
    )


def _command(srun: str, node: str) -> list[str]:
    """Return the command that starts the agent, with all CPUs of the allocation on that node."""
    options = ("--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", "--cpu-bind=none")
    about_io = ("--unbuffered", "--quiet", "--input=none", "--export=ALL", "--chdir=/")
    return [srun, *options, *about_io, "--mpi=none", sys.executable, *_AGENT]


def _order(node: NodePlace, spec: LaunchSpec, launch: PreparedLaunch) -> bytes:
    own = dict(spec.variables)
    order = {
        "command": launch.command(0, 0),
        "entry": str(launch.entry),
        "environment": {
            name: value
            for name, value in launch.environment.items()
            if name in own or name not in NODE_VARIABLES
        },
        "folder": spec.working_folder or "",
        "randomize_addresses": spec.randomize_addresses,
        "part": node.part,
        "parts": node.parts,
    }
    return json.dumps(order).encode() + b"\n"


def _accept(
    listener: socket.socket, secret: str, srun: ExitWatch, *, limit_s: float
) -> dict[str, socket.socket]:
    """Return the two connections of the agent by name. Raises TimeoutError with the reason."""
    deadline = time.monotonic() + limit_s
    connections: dict[str, socket.socket] = {}
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(srun, select.POLLIN)
    with ExitStack() as on_failure:
        while len(connections) < 2:  # noqa: PLR2004
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                raise TimeoutError(f"it did not connect within {limit_s:g} s")
            ending = srun.ending()
            if ending is not None:
                raise TimeoutError(f"srun {ending.description}")
            if all(fd != listener.fileno() for fd, _ in poll.poll(remaining_s * 1000.0)):
                continue
            connection, _ = listener.accept()
            name = _greeting(connection, secret)
            if name not in ("requests", "agent") or name in connections:
                connection.close()
                continue
            on_failure.callback(connection.close)
            keep_alive(connection)
            connections[name] = connection
        on_failure.pop_all()
    return connections


def _greeting(connection: socket.socket, secret: str) -> str:
    """Return the name of a connection; empty without the secret."""
    connection.settimeout(_GREETING_LIMIT_S)
    try:
        with connection.makefile("rb", buffering=0) as file:
            line = file.readline(4 * SECRET_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
    connection.settimeout(None)
    token, _, name = line.rstrip("\n").partition(" ")
    return name if hmac.compare_digest(token.encode(), secret.encode()) else ""
