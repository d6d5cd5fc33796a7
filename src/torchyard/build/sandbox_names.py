"""A network that has nothing but itself, and that writes down what was asked of it.

In a private network namespace there is only the loopback device. Whoever looks a name up there is
sent to a tiny name server that says "no such name" and notes the name. Part of `sandbox_program`:
standard library only, any Python from 3.8, nothing may be imported once the root was entered.
"""
# ruff: noqa: PTH110, PTH113, PTH123
# Importing pathlib takes 10 ms, longer than all that is done with paths here.

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct

from torchyard.build.sandbox_mounts import Refused, bind, mount, unmount

__all__ = ["NameDesk", "hide_resolvers", "without_proxies"]

_PORT = 53
_SET_FLAGS = 0x8914
_SET_ADDRESS = 0x8916
_OWN_ADDRESS = bytes((192, 0, 2, 1))  # of the block that is for examples only
_UP_AND_RUNNING = 0x41
_NO_SUCH_NAME = 3
_HEADER_BYTES = 12
_LONGEST_QUESTION_BYTES = 4096
_SCRATCH = "/tmp"  # noqa: S108  # only a place to hang a private file system for a moment

_RESOLV_CONF = b"nameserver 127.0.0.1\nsearch .\noptions timeout:1 attempts:1\n"
_SOCKETS = (
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/avahi-daemon/socket",
    "/var/lib/sss/pipes/nss",
)
"""Where services listen that look names up for others: they have the machine's network."""

_PRINTABLE = bytes(byte if byte in range(0x21, 0x7F) else ord("?") for byte in range(256))
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "rsync_proxy")


def without_proxies(environment: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The environment less its proxies.

    They cannot be reached, and a program that goes through one asks for the proxy's name and never
    for the one it wants.
    """
    dropped = {name.encode() for name in _PROXY_VARIABLES}
    return {name: value for name, value in environment.items() if name.lower() not in dropped}


def hide_resolvers() -> None:
    """Let every look-up in this mount namespace go to the name server at 127.0.0.1.

    /etc/hosts and nsswitch.conf are replaced, too: a name that the machine keeps there would be
    found, and would be missed in the list of wanted names.
    """
    host = socket.gethostname().encode()
    files = {
        "/etc/resolv.conf": _RESOLV_CONF,
        "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n127.0.0.1 " + host + b"\n",
        "/etc/nsswitch.conf": _names_from_dns("/etc/nsswitch.conf"),
    }
    mount("tmpfs", _SCRATCH, "tmpfs", 0)
    try:
        for number, (path, content) in enumerate(files.items()):
            place = os.path.realpath(path)
            if not os.path.isfile(place):  # without resolv.conf, resolvers ask 127.0.0.1 anyway
                continue
            private = f"{_SCRATCH}/{number}"
            file = os.open(private, os.O_WRONLY | os.O_CREAT, 0o644)
            os.fchmod(file, 0o644)
            os.write(file, content)
            os.close(file)
            bind(private, place)
    finally:
        unmount(_SCRATCH)
    for path in {os.path.realpath(path) for path in _SOCKETS}:
        if os.path.exists(path):
            bind("/dev/null", path)


def _names_from_dns(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return b""
    kept = [line for line in lines if line.split(b":")[0].strip() != b"hosts"]
    return b"\n".join([*kept, b"hosts: files dns", b""])


class NameDesk:
    """The name server: hand its files to poll, and call `serve` for each that is ready."""

    def __init__(self, note_file: int) -> None:
        """Bring the loopback device up and listen; names go to the open file `note_file`, if any."""
        self._note_file = note_file
        self._noted: set[bytes] = set()
        self._callers: dict[int, tuple[socket.socket, bytes]] = {}
        step = "bring the loopback device up"
        try:
            self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            wish = struct.pack("16sh14x", b"lo", _UP_AND_RUNNING)
            fcntl.ioctl(self._datagrams.fileno(), _SET_FLAGS, wish)
            # Without any address but 127.0.0.1, a look-up that wants only addresses this machine
            # could reach (AI_ADDRCONFIG) fails before it asks the name server.
            wish = struct.pack("16sHH4s8x", b"lo:0", socket.AF_INET, 0, _OWN_ADDRESS)
            fcntl.ioctl(self._datagrams.fileno(), _SET_ADDRESS, wish)
            step = "listen for names"
            self._streams = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._streams.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for server in (self._datagrams, self._streams):
                server.bind(("127.0.0.1", _PORT))
                server.setblocking(False)
            self._streams.listen(16)
        except OSError as error:
            raise Refused(f"{step}: {error.strerror}") from error

    def join(self, poll: select.poll) -> None:
        """Register what `serve` has to be called for."""
        poll.register(self._datagrams, select.POLLIN)
        poll.register(self._streams, select.POLLIN)

    def files(self) -> set[int]:
        """The open files that are the desk's own."""
        return {self._datagrams.fileno(), self._streams.fileno(), self._note_file}

    def serve(self, ready: int, poll: select.poll) -> None:
        """Answer what has come in; a caller that misbehaves is dropped."""
        try:
            if ready == self._datagrams.fileno():
                question, caller = self._datagrams.recvfrom(_LONGEST_QUESTION_BYTES)
                answer = self._answer(question)
                if answer:
                    self._datagrams.sendto(answer, caller)
            elif ready == self._streams.fileno():
                stream, _ = self._streams.accept()
                stream.setblocking(False)
                self._callers[stream.fileno()] = stream, b""
                poll.register(stream, select.POLLIN)
            elif ready in self._callers:
                self._read_stream(ready, poll)
        except OSError:
            return

    def _read_stream(self, ready: int, poll: select.poll) -> None:
        stream, before = self._callers[ready]
        try:
            chunk = stream.recv(_LONGEST_QUESTION_BYTES)
        except OSError:
            chunk = b""
        said = before + chunk
        is_sound = bool(chunk)
        while is_sound and len(said) >= 2:  # noqa: PLR2004  # a length of two bytes, a question
            length = 2 + int.from_bytes(said[:2], "big")
            if len(said) < length:
                break
            answer = self._answer(said[2:length])
            is_sound = bool(answer)
            stream.send(struct.pack("!H", len(answer)) + answer)
            said = said[length:]
        if is_sound and len(said) <= _LONGEST_QUESTION_BYTES:
            self._callers[ready] = stream, said
            return
        poll.unregister(ready)
        del self._callers[ready]
        stream.close()

    def _answer(self, question: bytes) -> bytes:
        """The answer that there is no such name; nothing where nothing was asked."""
        if len(question) < _HEADER_BYTES or question[2] & 0x80 or question[4:6] != b"\0\1":
            return b""
        labels, at = [], _HEADER_BYTES
        while at < len(question) and question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]])
            at += 1 + question[at]
        end = at + 5
        if end > len(question):
            return b""
        self._note(labels)
        flags = struct.pack("!BB", 0x80 | question[2] & 0x79, 0x80 | _NO_SUCH_NAME)
        return question[:2] + flags + b"\0\1" + bytes(6) + question[_HEADER_BYTES:end]

    def _note(self, labels: list[bytes]) -> None:
        while labels and labels[0].startswith(b"_"):  # _http._tcp.HOST asks for a service of HOST
            labels = labels[1:]
        name = b".".join(labels).lower().translate(_PRINTABLE)
        # Names of numbers (in-addr.arpa) are asked for what is connected already.
        if not name or name in self._noted or name.endswith(b".arpa") or self._note_file < 0:
            return
        self._noted.add(name)
        os.write(self._note_file, name + b"\n")
