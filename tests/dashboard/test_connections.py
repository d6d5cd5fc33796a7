"""Stalled clients: half-open, slow, idle and not reading. Other clients are still served."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.dashboard.sample_dashboard import write_results_directory
from torchyard.dashboard.live_store import LiveStore
from torchyard.dashboard.server import Limits, Listening, dashboard_server, listen

LIMIT_S = 60.0
SHORT = Limits(request_s=1.0, stalled_write_s=1.0, keep_alive_s=1)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A dashboard in a thread of this process."""

    listening: Listening

    @property
    def port(self) -> int:
        return self.listening.address.port

    def connect(self, data: bytes = b"", *, source: str = "127.0.0.1") -> socket.socket:
        connection = socket.create_connection(
            ("127.0.0.1", self.port), timeout=LIMIT_S, source_address=(source, 0)
        )
        connection.sendall(data)
        return connection

    def status(self, path: str = "/api/runs") -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()


@contextmanager
def running(home: Path, limits: Limits) -> Iterator[Running]:
    live_store = LiveStore(home)
    with listen("127.0.0.1", 0, no_token=True) as listening:
        ready = threading.Event()
        server = dashboard_server(live_store, listening, ready=ready.set, limits=limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening.socket]})
        thread.start()
        try:
            assert ready.wait(LIMIT_S)
            yield Running(listening=listening)
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)
    live_store.close()


def is_closed_within(connection: socket.socket, seconds: float) -> bool:
    """Whether the server closes it; what it sends before is read."""
    connection.settimeout(seconds)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


STALLED = {
    "nothing at all": b"",
    "half a request line": b"GET / HT",
    "half a header": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
    "blank lines": b"\r\n\r\n",
    "a body that does not come": b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
    "a GET with a body that does not come": (
        b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999999\r\n\r\nx"
    ),
    "chunks that do not end": (
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"
    ),
    "a second request that stops": (
        b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /api/runs HTTP/1.1\r\nHo"
    ),
    "idle after an answer": b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "waiting for 100-continue": (
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
    ),
}


def test_stalled_requests_are_closed_whatever_they_sent_first(tmp_path: Path) -> None:
    with running(tmp_path, SHORT) as served, ExitStack() as stack:
        connections = {
            name: stack.enter_context(served.connect(data)) for name, data in STALLED.items()
        }
        open_still = [
            name for name, each in connections.items() if not is_closed_within(each, LIMIT_S)
        ]
        assert open_still == []
        assert served.status() == 200


@pytest.mark.parametrize(
    "start",
    [
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999\r\n\r\n",
        b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP/1.1\r\n",
    ],
)
def test_a_byte_now_and_then_does_not_keep_a_connection(tmp_path: Path, start: bytes) -> None:
    with running(tmp_path, SHORT) as served, served.connect(start) as slow:
        slow.settimeout(0.2)
        deadline = time.monotonic() + LIMIT_S
        closed = False
        while not closed and time.monotonic() < deadline:
            try:
                slow.sendall(b"X-A: b\r\n")
                closed = slow.recv(65536) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed


def test_a_client_that_does_not_read_its_answer_is_closed(tmp_path: Path) -> None:
    write_results_directory(tmp_path, count=1)
    ask = b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with running(tmp_path, SHORT) as served:
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        reader.settimeout(0.5)
        reader.connect(("127.0.0.1", served.port))
        deadline = time.monotonic() + LIMIT_S
        closed = False
        with reader:
            while not closed and time.monotonic() < deadline:
                try:
                    reader.sendall(ask * 100)
                except TimeoutError:
                    continue
                except OSError:
                    closed = True
        assert closed
        assert served.status() == 200


def test_a_huge_header_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, Limits()) as served:
        with served.connect(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ") as connection:
            try:
                for _ in range(200):
                    connection.sendall(b"x" * 65536)
            except OSError:
                pass
            assert is_closed_within(connection, LIMIT_S)
        assert served.status() == 200


def test_half_open_connections_beyond_the_limit_close_the_oldest_of_them(tmp_path: Path) -> None:
    limits = Limits(connections=60, waiting=20, request_s=LIMIT_S)
    with running(tmp_path, limits) as served, ExitStack() as stack:
        flood = [stack.enter_context(served.connect(b"GET / HT")) for _ in range(100)]
        assert [served.status() for _ in range(5)] == [200] * 5
        closed = [is_closed_within(each, 0.2) for each in flood]
        assert closed[:75] == [True] * 75
        assert closed[-10:] == [False] * 10


def test_a_flood_from_one_address_does_not_close_connections_of_others(tmp_path: Path) -> None:
    limits = Limits(connections=60, waiting=20, request_s=LIMIT_S)
    with running(tmp_path, limits) as served, ExitStack() as stack:
        regular = stack.enter_context(served.connect(b"GET /api/runs HT"))
        for _ in range(100):
            stack.enter_context(served.connect(b"GET / HT", source="127.0.0.2"))
        regular.sendall(b"TP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert regular.recv(65536).startswith(b"HTTP/1.1 200")


def test_streams_being_answered_are_never_closed_for_new_ones(tmp_path: Path) -> None:
    from tests.dashboard.sample_dashboard import write_run

    write_run(tmp_path / "going", state="running")
    limits = Limits(connections=8, waiting=4, request_s=LIMIT_S)
    ask = b"GET /events?id=going HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with running(tmp_path, limits) as served, ExitStack() as stack:
        streams = [stack.enter_context(served.connect(ask)) for _ in range(4)]
        for stream in streams:
            assert stream.recv(65536).startswith(b"HTTP/1.1 200")
        for _ in range(30):
            stack.enter_context(served.connect(b"GET"))
        assert served.status() == 200
        assert [is_closed_within(stream, 0.2) for stream in streams] == [False] * 4


def test_three_hundred_half_open_connections_with_few_descriptors(tmp_path: Path) -> None:
    """As a real process that may open 256 files, as on macOS and in small containers."""
    command = (
        f"ulimit -n 256; exec {sys.executable} -m torchyard serve --no-token --home {tmp_path}"
    )
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
        with ExitStack() as stack:
            for number in range(300):
                connection = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
                stack.enter_context(connection)
                connection.sendall(b"GET / HTTP/1.1\r\n" if number % 2 else b"")
            for _ in range(3):
                ask = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
                ask.request("GET", "/api/runs")
                assert ask.getresponse().status == 200
                ask.close()
    finally:
        process.terminate()
        _, output = process.communicate(timeout=LIMIT_S)
    assert "Traceback" not in output
    assert process.returncode == 0
