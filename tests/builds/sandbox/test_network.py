"""No network: requested host names are recorded, and the loopback device works."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest

from tests.builds.sandbox.sandbox_commands import (
    PYTHON,
    folder_for_nobody,
    needs_cut_network,
    needs_root,
    run,
    run_as_nobody,
)
from torchyard.builds.sandbox import Sandbox, requested_hosts

pytestmark = needs_cut_network


@pytest.fixture
def offline(tmp_path: Path) -> Sandbox:
    return Sandbox(network=False, requested_hosts_file=str(tmp_path / "wanted"))


def python(sandbox: Sandbox, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sandbox, PYTHON, "-I", "-S", "-c", text, *arguments)


_ASK = "import socket, sys; socket.getaddrinfo(sys.argv[1], 443, **eval(sys.argv[2]))"


@pytest.mark.parametrize(
    "how", ["{}", "{'family': 2}", "{'family': 10}", "{'family': 2, 'flags': 32}"]
)
def test_a_name_looked_up_is_noted(offline: Sandbox, how: str) -> None:
    """32 is AI_ADDRCONFIG, which would end the look-up early if there were only 127.0.0.1."""
    done = python(offline, _ASK, "Files.Wanted.Example", how)
    assert "Name or service not known" in done.stderr
    assert requested_hosts(offline.requested_hosts_file) == ("files.wanted.example",)


def test_names_are_noted_once_each_in_their_order(offline: Sandbox) -> None:
    for names in (("b.example", "a.example", "b.example"), ("a.example", "c.example")):
        python(
            offline,
            "import socket, sys\nfor name in sys.argv[1:]:\n"
            "  try: socket.gethostbyname(name)\n  except OSError: pass",
            *names,
        )
    assert requested_hosts(offline.requested_hosts_file) == ("b.example", "a.example", "c.example")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("curl", "-sS", "https://download.curl.example/file.tar.gz"), "download.curl.example"),
        (("git", "ls-remote", "https://git.example/project.git"), "git.example"),
        (("wget", "-t1", "-q", "http://wget.example/"), "wget.example"),
        (
            (PYTHON, "-m", "pip", "download", "--retries", "0", "-i", "https://pip.example/", "x"),
            "pip.example",
        ),
    ],
)
def test_requested_hosts_of_programs(offline: Sandbox, argv: tuple[str, ...], name: str) -> None:
    """With a proxy configured, as on machines that reach the network only through one."""
    if not shutil.which(argv[0]):
        pytest.skip(f"{argv[0]} is not here")
    proxy = "http://proxy.example:3128"
    done = run(offline, *argv, https_proxy=proxy, HTTP_PROXY=proxy, ALL_PROXY=proxy, HOME="/tmp")
    assert done.returncode != 0
    if "No module named pip" in done.stderr:
        pytest.skip("pip is not here")
    assert requested_hosts(offline.requested_hosts_file) == (name,), done.stderr


def test_proxies_are_gone_and_other_variables_are_not(offline: Sandbox) -> None:
    done = run(offline, "env", http_proxy="a", HTTPS_PROXY="b", Ftp_Proxy="c", KEPT="d")
    assert "KEPT=d\n" in done.stdout
    assert "proxy" not in done.stdout.lower()
    done = run(Sandbox(), "env", http_proxy="a")
    assert "http_proxy=a\n" in done.stdout


def test_an_address_in_numbers_fails_at_once(offline: Sandbox) -> None:
    done = python(
        offline, "import socket; socket.create_connection(('198.51.100.7', 80), timeout=20)"
    )
    assert "Network is unreachable" in done.stderr


def test_a_server_on_the_machine_is_out_of_reach(offline: Sandbox) -> None:
    connect = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert python(Sandbox(), connect, port).returncode == 0
        assert "refused" in python(offline, connect, port).stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "own name"])
def test_a_command_can_talk_to_itself(offline: Sandbox, host: str) -> None:
    """The tests of a build may start servers of their own."""
    done = python(
        offline,
        "import socket, sys\n"
        "host = socket.gethostname() if sys.argv[1] == 'own name' else sys.argv[1]\n"
        "with socket.create_server((host, 0)) as server:\n"
        "    with socket.create_connection((host, server.getsockname()[1])) as caller:\n"
        "        caller.sendall(b'hello')\n"
        "        print(server.accept()[0].recv(5))\n"
        "print(socket.getfqdn('127.0.0.1') != '')\n",
        host,
    )
    assert done.stdout == "b'hello'\nTrue\n", done.stderr
    assert requested_hosts(offline.requested_hosts_file) == ()


def _question(name: bytes, number: int) -> bytes:
    labels = b"".join(bytes((len(label),)) + label for label in name.split(b".")) + b"\0"
    return struct.pack("!HHHHHH", number, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!HH", 1, 1)


_TALK = """
import socket, sys
kind, *messages = sys.argv[1:]
messages = [bytes.fromhex(message) for message in messages]
if kind == "tcp":
    with socket.create_connection(("127.0.0.1", 53), timeout=10) as workspace:
        for message in messages:
            workspace.sendall(message)
        workspace.shutdown(socket.SHUT_WR)
        while True:
            chunk = workspace.recv(4096)
            if not chunk:
                break
            sys.stdout.write(chunk.hex())
else:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as workspace:
        workspace.settimeout(10)
        for message in messages:
            workspace.sendto(message, ("127.0.0.1", 53))
        sys.stdout.write(workspace.recv(4096).hex())
"""


def test_answers_over_tcp_in_pieces_and_one_after_the_other(offline: Sandbox) -> None:
    first, second = _question(b"one.example", 0x1111), _question(b"two.example", 0x2222)
    stream = b"".join(struct.pack("!H", len(part)) + part for part in (first, second))
    pieces = [stream[:1].hex(), stream[1:20].hex(), stream[20:].hex()]
    done = python(offline, _TALK, "tcp", *pieces)
    said = bytes.fromhex(done.stdout)
    length = struct.unpack("!H", said[:2])[0]
    answers = said[2 : 2 + length], said[4 + length :]
    for question, answer in zip((first, second), answers, strict=True):
        assert answer[:2] == question[:2]
        assert answer[2] & 0x80, "it is an answer"
        assert answer[3] & 0x0F == 3, "no such name"
        assert answer[4:12] == b"\0\1" + bytes(6)
        assert answer[12:] == question[12:]
    assert requested_hosts(offline.requested_hosts_file) == ("one.example", "two.example")


def test_garbage_and_unusual_names_are_harmless(offline: Sandbox) -> None:
    """Nothing of what a command sends can end the workspace or write a line of its own making."""
    garbage = [b"", b"\0" * 11, b"\xff" * 40, _question(b"cut.example", 1)[:-3]]
    odd = _question(b"new\nline\x1b.example", 2)
    done = python(offline, _TALK, "udp", *(part.hex() for part in (*garbage, odd)))
    assert bytes.fromhex(done.stdout)[:2] == b"\0\2"
    assert requested_hosts(offline.requested_hosts_file) == ("new?line?.example",)
    broken_stream = b"\xff\xff" + b"x" * 10_000
    assert python(offline, _TALK, "tcp", broken_stream.hex()).stdout == ""


def test_services_and_numbers(offline: Sandbox) -> None:
    """A service of a host wants the host; the name of an address is no wish for a network."""
    service = _question(b"_https._tcp.host.example", 1)
    number = _question(b"1.0.0.127.in-addr.arpa", 2)
    python(offline, _TALK, "udp", service.hex(), number.hex())
    assert requested_hosts(offline.requested_hosts_file) == ("host.example",)


def test_without_a_file_names_are_only_refused() -> None:
    done = python(Sandbox(network=False), _ASK, "some.example", "{}")
    assert "Name or service not known" in done.stderr


def test_a_file_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    missing = tmp_path / "none" / "wanted"
    done = run(Sandbox(network=False, requested_hosts_file=str(missing)), "true")
    assert done.returncode == 125
    assert str(missing) in done.stderr


def test_the_machines_resolver_files_stay(offline: Sandbox) -> None:
    files = [Path(name) for name in ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf")]
    before = [path.read_bytes() for path in files if path.is_file()]
    done = run(offline, "cat", *(str(path) for path in files if path.is_file()))
    assert "nameserver 127.0.0.1" in done.stdout or not files[0].is_file()
    assert [path.read_bytes() for path in files if path.is_file()] == before


@needs_root
def test_an_ordinary_user_stays_who_it_is() -> None:
    """So that tar and pip do not take it for root."""
    ask = "import os, socket\nprint(os.getuid(), os.getgid())\nsocket.gethostbyname('name.example')"
    with folder_for_nobody() as folder:
        done = run_as_nobody(
            *("--own-processes", "--no-network", "--wanted-file", str(folder / "wanted")),
            *("--", "/usr/bin/python3", "-c", ask),
        )
        assert done.stdout == "65534 65534\n", done.stderr
        assert "Name or service not known" in done.stderr
        assert requested_hosts(str(folder / "wanted")) == ("name.example",)


def test_requested_hosts_of_a_missing_file(tmp_path: Path) -> None:
    assert requested_hosts(str(tmp_path / "none")) == ()
