"""No network while a model is loaded: what is refused, what is allowed, and restored functions."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress

import pytest

from torchyard.worker.suites.torchbench.model import NetworkWanted, fetches, no_network

FETCHING = [
    ["wget", "https://a.invalid/x"],
    ["/usr/bin/curl", "-L", "https://a.invalid/x"],
    ["git", "clone", "https://a.invalid/x"],
    ["git", "-C", "folder", "pull"],
    [sys.executable, "-m", "pip", "install", "x"],
    ["pip", "install", "x"],
]
STAYING = [["git", "rev-parse", "HEAD"], ["ls"], [sys.executable, "-c", "1"], []]


@pytest.mark.parametrize("words", FETCHING)
def test_programs_that_fetch(words: list[str]) -> None:
    assert fetches(words)


@pytest.mark.parametrize("words", STAYING)
def test_programs_that_do_not(words: list[str]) -> None:
    assert not fetches(words)


def test_a_download_fails_at_once_and_names_the_server_and_not_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    with no_network() as wanted, pytest.raises(urllib.error.URLError, match="network is off"):
        urllib.request.urlopen("https://weights.invalid/tiny.pt", timeout=30)
    assert wanted.names == ["weights.invalid"]
    assert os.environ["https_proxy"] == "http://proxy.invalid:3128"


def test_an_address_is_refused_as_a_name_is() -> None:
    with no_network() as wanted:
        with socket.socket() as plain, pytest.raises(OSError, match="network is off"):
            plain.connect(("192.0.2.1", 80))
        with socket.socket() as plain, pytest.raises(OSError, match="network is off"):
            plain.connect_ex(("192.0.2.2", 80))
        with pytest.raises(OSError, match="network is off"):
            socket.gethostbyname("a.invalid")
    assert str(wanted) == "192.0.2.1, 192.0.2.2, a.invalid"


def test_this_machine_can_be_reached() -> None:
    with no_network() as wanted, socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname(), timeout=10):
            pass
        first, second = socket.socketpair()
        first.close()
        second.close()
    assert wanted.names == []


@pytest.mark.parametrize(
    "command",
    [["wget", "https://a.invalid/x"], "cd / && curl https://a.invalid/x", b"wget"],
)
def test_programs_are_not_started(command: list[str] | str | bytes) -> None:
    with no_network() as wanted, pytest.raises(OSError, match="network is off"):
        subprocess.run(command, shell=isinstance(command, str), check=True)
    assert len(wanted.names) == 1
    assert "a.invalid" in str(wanted) or command == b"wget"


def test_a_shell_command_is_not_started() -> None:
    with no_network() as wanted, pytest.raises(OSError, match="network is off"):
        os.system("true; wget https://a.invalid/x")  # noqa: S605
    assert str(wanted) == "wget https://a.invalid/x"


def test_other_programs_run() -> None:
    with no_network() as wanted:
        subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
        assert os.system("true") == 0  # noqa: S605
    assert wanted.names == []


def test_retry_loop_is_ended() -> None:
    tries: list[int] = []

    def retry() -> None:
        while True:
            tries.append(1)
            with suppress(Exception):
                socket.getaddrinfo("a.invalid", 80)

    with no_network(), pytest.raises(NetworkWanted, match=r"a\.invalid"):
        retry()
    assert len(tries) == 6


def test_server_of_an_offline_library_is_reported() -> None:
    class LocalEntryNotFoundError(FileNotFoundError):
        pass

    outer = OSError("could not load it")
    outer.__cause__ = LocalEntryNotFoundError("not in the cache")
    with no_network() as wanted:
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        wanted.note_cause(outer)
    assert str(wanted) == "huggingface.co"


def test_network_functions_are_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "0")

    def everything() -> tuple[object, ...]:
        inherited = "connect" in vars(socket.socket)
        return (
            *(socket.getaddrinfo, socket.gethostbyname, socket.socket.connect, inherited),
            *(socket.socket.connect_ex, subprocess.Popen.__init__, os.system, dict(os.environ)),
        )

    before = everything()
    with no_network():
        assert everything() != before
    assert everything() == before
    with pytest.raises(ValueError, match="its own"), no_network():
        raise ValueError("its own")
    assert everything() == before
