"""The rendezvous of ranks on several nodes."""

from __future__ import annotations

import os
import socket
import threading

import pytest

pytestmark = pytest.mark.torch


def test_ranks_meet_over_the_network_and_strangers_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torchyard.worker.bench.ranks.group import Network

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "mine0")
    first = Network.opened_at("127.0.0.1")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    assert os.environ["NCCL_SOCKET_IFNAME"] == "mine0"  # a choice of the user stays
    with first:
        first.listen(3)
        assert first._listener is not None
        place = first._listener.getsockname()
        for data in (b"", b"0" * 64, b"short"):
            with socket.create_connection(place) as stranger:
                stranger.sendall(data)
        connections: list[socket.socket] = []

        def join() -> None:
            other = Network.found_at(f"127.0.0.1:{first.port}")
            connections.append(other.connect())

        threads = [threading.Thread(target=join) for _ in range(2)]
        for thread in threads:
            thread.start()
        accepted = first.accept(2)
        for thread in threads:
            thread.join()
    for connection in accepted:
        connection.sendall(b"hello\n")
    assert [connection.recv(6) for connection in connections] == [b"hello\n"] * 2
    for connection in (*accepted, *connections):
        connection.close()
