"""Workers on another node: a program in place of srun starts them in another session of this machine."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.process.stub_launch import STUB, spec_of
from torchyard.core.cpu_lists import cpu_list, split_cpus
from torchyard.errors import MissingTool
from torchyard.process.ending import ExitWatch, WorkerFailure
from torchyard.process.nodes import NodePlace, _accept
from torchyard.process.tree import LAUNCH_VARIABLE, processes_of_launch
from torchyard.process.worker_io import RequestPipes
from torchyard.process.worker_process import WorkerGroup, WorkerProcess
from torchyard.worker.placement import CORES

SRUN = """\
#!/bin/sh
while case "$1" in --*) true ;; *) false ;; esac; do shift; done
export SLURM_LAUNCH_NODE_IPADDR=127.0.0.1 SLURMD_NODENAME=other
%s
setsid "$@" &
wait $!
"""
Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    group = WorkerGroup()

    def start(before: str = "", **changes: object) -> WorkerProcess:
        program = tmp_path / "srun"
        program.write_text(SRUN % before)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        place = NodePlace(name="other", part=1, parts=2)
        return group.start(
            spec_of(**changes), log_path=tmp_path / "worker.log", entry=STUB, node=place
        )

    yield start
    group.kill()


def gone(mark: str) -> bool:
    deadline = time.monotonic() + 20
    while processes_of_launch(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_worker_on_a_node_answers_and_has_a_part_of_its_cores(start: Start) -> None:
    worker = start(variables=(("MINE", "yes"),), arguments=("--more",))
    assert worker.ask("echo", limit_s=20, text="x" * 300_000)["text"] == "x" * 300_000
    facts = worker.ask("facts", limit_s=20)
    variables = facts["variables"]
    assert (variables["MINE"], variables["SLURMD_NODENAME"]) == ("yes", "other")
    assert facts["arguments"] == ["--more"]
    own_part = split_cpus(tuple(os.sched_getaffinity(0)), 2)[1]
    assert variables[CORES] == cpu_list(own_part)
    assert variables[LAUNCH_VARIABLE] != worker.launch_mark
    assert not any("NODE_AGENT" in name for name in variables)
    assert worker.controller_address == "127.0.0.1"


def test_the_agent_ends_everything_that_the_worker_started(start: Start) -> None:
    worker = start()
    mark = worker.ask("facts", limit_s=20)["variables"][LAUNCH_VARIABLE]
    for new_session in (False, True):
        worker.ask("fork_sleeper", limit_s=20, new_session=new_session)
    assert len(processes_of_launch(mark)) == 3
    worker.kill()
    assert gone(mark)


@pytest.mark.parametrize(
    ("verb", "fields", "message", "kind"),
    [
        ("leave", {"code": 3}, "exited with code 3", "crashed"),
        ("die", {"number": int(signal.SIGSEGV)}, "was killed by SIGSEGV", "crashed"),
        ("die", {"number": int(signal.SIGKILL)}, "was killed by SIGKILL", "killed"),
        ("hang", {}, "timed out after 1 s", "timeout"),
    ],
)
def test_the_end_of_a_worker_is_reported_with_its_output(
    start: Start, verb: str, fields: dict[str, Any], message: str, kind: str
) -> None:
    worker = start()
    mark = worker.ask("facts", limit_s=20)["variables"][LAUNCH_VARIABLE]
    with pytest.raises(WorkerFailure) as raised:
        worker.ask(verb, limit_s=1 if verb == "hang" else 20, **fields)
    assert message in raised.value.message
    assert raised.value.kind == kind
    expected = {"leave": "about to leave", "hang": "hanging now"}.get(verb, "")
    assert expected in raised.value.log_tail
    assert gone(mark)


def test_a_killed_agent_ends_the_worker(start: Start) -> None:
    worker = start()
    facts = worker.ask("facts", limit_s=20)
    agent = int(facts["variables"]["TORCHYARD_YARD"].split(":")[0])
    assert agent not in (os.getpid(), worker.pid)
    os.kill(agent, signal.SIGKILL)
    with pytest.raises(WorkerFailure, match="SIGKILL"):
        worker.ask("hang", limit_s=20)
    assert gone(facts["variables"][LAUNCH_VARIABLE])


def test_a_connection_that_is_reset_is_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        worker = socket.create_connection(listener.getsockname())
        controller, _ = listener.accept()
    fd = controller.detach()
    pipes = RequestPipes(read_fd=fd, write_fd=os.dup(fd))
    pipes.queue({"request": "facts"})
    pipes.write()
    # Closed without a delay while data waits: the other side gets a reset instead of an end.
    worker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    worker.close()
    deadline = time.monotonic() + 60
    while not pipes.at_end and time.monotonic() < deadline:
        assert pipes.read() is None
    assert pipes.at_end
    pipes.queue({"request": "facts"})
    pipes.write()
    assert pipes.reader_gone
    pipes.close()


def test_srun_that_fails_is_quoted(start: Start) -> None:
    with pytest.raises(WorkerFailure) as raised:
        start("echo 'srun: error: invalid node' >&2; exit 1")
    assert "cannot be started on the node other" in raised.value.message
    assert raised.value.why == "srun exited with code 1"
    assert "invalid node" in raised.value.log_tail


def test_an_agent_that_never_connects_is_a_failure(start: Start) -> None:
    with pytest.raises(WorkerFailure) as raised:
        start("exec sleep 60", start_limit_s=1.0)
    assert raised.value.why == "it did not connect within 1 s"


def test_a_folder_that_the_node_does_not_have(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    worker = start(f"rmdir {folder}", working_folder=str(folder))
    with pytest.raises(WorkerFailure, match="exited with code 127") as raised:
        worker.ask("echo", limit_s=20)
    assert "must have the same path on all nodes" in raised.value.log_tail


def test_without_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    place = NodePlace(name="other", part=0, parts=1)
    with WorkerGroup() as group, pytest.raises(MissingTool, match="there is no srun"):
        group.start(spec_of(python=sys.executable), log_path=tmp_path / "log", node=place)


def test_connections_without_the_secret_do_not_count() -> None:
    secret = "5" * 64
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = listener.getsockname()
        strangers = [b"", b"GET / HTTP/1.0\r\n\r\n", b"6" * 64 + b" agent\n", b"x" * 5000]
        sent = [*strangers, *(f"{secret} {name}\n".encode() for name in ("agent", "requests"))]

        def connect() -> None:
            for data in sent:
                # A client without the key that sends too much is disconnected.
                with socket.create_connection(place) as connection, suppress(OSError):
                    connection.sendall(data)
                    if data in strangers:
                        connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=connect)
        thread.start()
        sleeper = subprocess.Popen(["sleep", "60"])
        try:
            found = _accept(listener, secret, ExitWatch(sleeper.pid), limit_s=20)
            assert set(found) == {"agent", "requests"}
            for connection in found.values():
                connection.close()
        finally:
            sleeper.kill()
            sleeper.wait()
            thread.join()
