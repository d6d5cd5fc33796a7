"""Where ranks meet: in a folder of one node, or at a network address of the first of several nodes.

Each has a store for the process group, and a socket over which rank 0 accepts the connections of the other
ranks. A connection from elsewhere does not count: over the network, ranks first send a secret from the store.
"""

import fcntl
import os
import secrets
import socket
import struct
import time
from typing import Any, List, Optional, Tuple

CONNECT_LIMIT_S = 60.0
COMMANDS = "torchyard/commands"
_SECRET_BYTES = 32
_SIOCGIFADDR = 0x8915
_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class Rendezvous:
    """A place where ranks meet; a context manager."""

    _listener: Optional[socket.socket] = None

    def __enter__(self) -> "Rendezvous":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._listener is not None:
            self._listener.close()

    def store(self, count: int) -> Any:
        """Return the store of the process group."""
        raise NotImplementedError

    def listen(self, count: int) -> None:
        """Accept connections from now on, in rank 0."""
        raise NotImplementedError

    def connect(self) -> socket.socket:
        """Return the connection to rank 0."""
        raise NotImplementedError

    def accept(self, count: int) -> List[socket.socket]:
        """Return the connections of the other ranks."""
        listener, connections = self._listener, []  # type: Any, List[socket.socket]
        deadline = time.monotonic() + CONNECT_LIMIT_S
        while len(connections) < count:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            connection = listener.accept()[0]
            connection.settimeout(CONNECT_LIMIT_S / 10)
            if self._is_rank(connection):
                connection.settimeout(None)
                connections.append(connection)
            else:
                connection.close()
        return connections

    def _is_rank(self, connection: socket.socket) -> bool:  # noqa: ARG002
        return True


class Folder(Rendezvous):
    """A folder that only this user can enter."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __enter__(self) -> "Folder":
        # A path of at most 107 bytes, which is the limit of sockets, for any folder.
        self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        self._commands = "/proc/self/fd/%d/commands" % self._fd
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        os.close(self._fd)

    def store(self, count: int) -> Any:
        """Return the store of the process group."""
        from torch.distributed import FileStore

        return FileStore(os.path.join(self._path, "store"), count)

    def listen(self, count: int) -> None:
        """Accept connections from now on, in rank 0."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._commands)
        self._listener.listen(count)

    def connect(self) -> socket.socket:
        """Return the connection to rank 0."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(self._commands)
        return connection


class Network(Rendezvous):
    """An address of the first node, and a port of rank 0."""

    def __init__(self, address: str, port: int, is_first: bool) -> None:
        from torch.distributed import TCPStore

        use_interface_to(address)
        self.address = address
        self._store = TCPStore(address, port, is_master=is_first, wait_for_workers=False)
        self.port = int(self._store.port)
        self._secret = b""

    @classmethod
    def opened_at(cls, address: str) -> "Network":
        """Return the rendezvous that rank 0 opens."""
        return cls(address, 0, is_first=True)

    @classmethod
    def found_at(cls, place: str) -> "Network":
        """Return the rendezvous at `ADDRESS:PORT`."""
        address, _, port = place.rpartition(":")
        return cls(address, int(port), is_first=False)

    def store(self, count: int) -> Any:  # noqa: ARG002
        """Return the store of the process group."""
        return self._store

    def listen(self, count: int) -> None:
        """Accept connections from now on, in rank 0."""
        self._secret = secrets.token_hex(_SECRET_BYTES).encode("ascii")
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind((self.address, 0))
        self._listener.listen(count)
        port = str(self._listener.getsockname()[1]).encode("ascii")
        self._store.set(COMMANDS, port + b" " + self._secret)

    def connect(self) -> socket.socket:
        """Return the connection to rank 0."""
        port, _, secret = self._store.get(COMMANDS).partition(b" ")
        connection = socket.create_connection((self.address, int(port)), CONNECT_LIMIT_S)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(secret)
        return connection

    def _is_rank(self, connection: socket.socket) -> bool:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = b""
        try:
            while len(received) < len(self._secret):
                chunk = connection.recv(len(self._secret) - len(received))
                if not chunk:
                    return False
                received += chunk
        except OSError:
            return False
        return secrets.compare_digest(received, self._secret)


def use_interface_to(address: str) -> None:
    """Let the process group use the network interface that reaches an address, unless one is chosen.

    Otherwise gloo uses the address that the name of the host has, which is often a local one.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
        names = [name for name, known in _interfaces(probe) if known == own]
    for variable in _INTERFACES:
        if names and not os.environ.get(variable):
            os.environ[variable] = names[0]


def _interfaces(probe: socket.socket) -> List[Tuple[str, str]]:
    """Return the names and IPv4 addresses of the network interfaces."""
    found = []
    for _, name in socket.if_nameindex():
        request = struct.pack("256s", name.encode("utf-8")[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            continue
        found.append((name, socket.inet_ntoa(answer[20:24])))
    return found
