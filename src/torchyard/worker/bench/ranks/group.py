# ruff: noqa: D102 - methods of a meeting place are documented in `Rendezvous`
"""The process group of this rank, and the commands that rank 0 sends to the other ranks.

Rank 0 decides what is run and tells the others: how many calls warm-up needs, and which results are
checked, depend on times and random numbers that only one process has. Commands are JSON lines over
sockets, so that a rank that waits uses no CPU and notices the end of rank 0. Time limits are those of the
controller, which watches all ranks.

Ranks meet in a folder of one node, or at a network address of the first of several nodes. Each meeting place has a
store for the process group, and a socket over which rank 0 accepts the connections of the other ranks. A connection
from elsewhere does not count: over the network, ranks first send a secret from the store.
"""

import datetime as dt
import fcntl
import json
import os
import secrets
import socket
import struct
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from torchyard.worker.bench.model import ALL, InputDraws
from torchyard.worker.devices import visible
from torchyard.worker.workload import BuiltWorkload, CannotBuild, flatten, map_tensors

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
        from torch.distributed import FileStore

        return FileStore(os.path.join(self._path, "store"), count)

    def listen(self, count: int) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._commands)
        self._listener.listen(count)

    def connect(self) -> socket.socket:
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
        return self._store

    def listen(self, count: int) -> None:
        self._secret = secrets.token_hex(_SECRET_BYTES).encode("ascii")
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind((self.address, 0))
        self._listener.listen(count)
        port = str(self._listener.getsockname()[1]).encode("ascii")
        self._store.set(COMMANDS, port + b" " + self._secret)

    def connect(self) -> socket.socket:
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
        names = [name for name, interface_address in _interfaces(probe) if interface_address == own]
    for variable in _INTERFACES:
        if names and not os.environ.get(variable):
            os.environ[variable] = names[0]


def _interfaces(probe: socket.socket) -> List[Tuple[str, str]]:
    """Return the names and IPv4 addresses of the network interfaces."""
    interfaces = []
    for _, name in socket.if_nameindex():
        request = struct.pack("256s", name.encode("utf-8")[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        except OSError:
            continue
        interfaces.append((name, socket.inet_ntoa(answer[20:24])))
    return interfaces


COLLECTIVE_LIMIT = dt.timedelta(days=1)
"""Above all limits of the controller."""


def device_of_rank(device: str, rank: int, ranks: int) -> str:
    """Return the device of a rank: the CPU, or the CUDA device with its number."""
    kind = torch.device(device)
    if kind.type == "cpu":
        return device
    if kind.type != "cuda":
        raise CannotBuild(
            "several ranks on %r are not supported" % kind.type, hint="use --device cpu or cuda"
        )
    if kind.index is not None:
        raise CannotBuild(
            "several ranks use one CUDA device each, and the device is " + device,
            hint="use --device cuda, and CUDA_VISIBLE_DEVICES to choose among the devices",
        )
    count = sum(name.startswith("cuda:") for name in visible())
    if count < ranks:
        raise CannotBuild(
            "%d ranks need %d CUDA devices, and this target has %d" % (ranks, ranks, count),
            hint="use at most as many ranks as there are devices, or --device cpu",
        )
    return "cuda:%d" % rank


class Ranks:
    """This rank's end of the process group and of the command sockets."""

    def __init__(self, rank: int, count: int, place: Rendezvous, device: str) -> None:
        """Meet the other ranks at a place; returns when all are there."""
        import torch.distributed as dist

        if not dist.is_available():
            raise CannotBuild(
                "torch " + torch.__version__ + " was built without torch.distributed",
                hint="use a target whose torch has it, or one rank",
            )
        self.rank = rank
        self.count = count
        self.device = device
        self._dist = dist
        with place:
            if rank == 0:
                place.listen(count)
            dist.init_process_group(
                "nccl" if torch.device(device).type == "cuda" else "gloo",
                store=place.store(count),
                rank=rank,
                world_size=count,
                timeout=COLLECTIVE_LIMIT,
            )
            self._sockets = [place.connect()] if rank else place.accept(count - 1)
        self._reader = self._sockets[0].makefile("rb")

    def send(self, command: Dict[str, Any]) -> None:
        """Send a command to all other ranks; a rank that is gone fails in the next collective."""
        data = json.dumps(command).encode("utf-8") + b"\n"
        for connection in self._sockets:
            try:
                connection.sendall(data)
            except OSError:
                continue

    def receive(self) -> Dict[str, Any]:
        """Wait for the next command of rank 0."""
        line = self._reader.readline()
        if not line.endswith(b"\n"):
            raise RuntimeError("rank 0 has ended")
        command: Dict[str, Any] = json.loads(line.decode("utf-8"))
        return command

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        if torch.device(self.device).type == "cuda":
            self._dist.barrier(device_ids=[torch.device(self.device).index])
        else:
            self._dist.barrier()

    def write_parameters(self, module: Any, source: Any) -> None:
        """Write the parameters and buffers of rank 0's `source` to the modules of all ranks."""
        with torch.no_grad():
            pairs = list(zip(module.parameters(), source.parameters()))
            for tensor, value in pairs:
                if is_distributed(tensor):
                    self._write_part(tensor, value)
                else:
                    self._broadcast(tensor, value)

    def write_buffers(self, module: Any, source: Any) -> None:
        """Write the buffers of rank 0's `source` to the modules of all ranks."""
        with torch.no_grad():
            for tensor, value in zip(module.buffers(), source.buffers()):
                self._broadcast(tensor, value)

    def _write_part(self, tensor: Any, value: Any) -> None:
        """Write this rank's part of a distributed tensor."""
        from torch.distributed.tensor import distribute_tensor

        full = value.detach().clone() if self.rank == 0 else torch.empty_like(value)
        part = distribute_tensor(full, tensor.device_mesh, tensor.placements)
        tensor.to_local().copy_(part.to_local())

    def _broadcast(self, tensor: Any, value: Any) -> None:
        if not can_be_sent(tensor):
            return
        if self.rank == 0:
            tensor.copy_(value)
        flat = as_bytes(tensor)
        self._dist.broadcast(flat, 0)
        _read_bytes(tensor, flat)

    def send_tensors(self, tensors: List[Any], rank: int) -> None:
        """Send tensors from this rank to another one."""
        for tensor in tensors:
            if can_be_sent(tensor):
                self._dist.send(as_bytes(tensor), rank)

    def receive_tensors(self, tensors: List[Any], rank: int) -> None:
        """Overwrite tensors by those that another rank sends."""
        with torch.no_grad():
            for tensor in tensors:
                if can_be_sent(tensor):
                    flat = torch.empty_like(as_bytes(tensor))
                    self._dist.recv(flat, rank)
                    _read_bytes(tensor, flat)

    def all_numbers(self, numbers: List[int]) -> List[List[int]]:
        """Return the numbers of each rank; all have the same length."""
        own = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        others = [torch.empty_like(own) for _ in range(self.count)]
        self._dist.all_gather(others, own)
        return [other.tolist() for other in others]


def is_distributed(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, of which each rank may have a part."""
    return hasattr(tensor, "full_tensor")


def can_be_sent(tensor: Any) -> bool:
    """Whether a tensor has elements of its own in a strided layout."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.numel() == 0:
        return False
    return all(step != 0 or size < 2 for size, step in zip(tensor.size(), tensor.stride()))


def as_bytes(tensor: Any) -> Any:
    """Return the elements as bytes, without a copy if the tensor is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _read_bytes(tensor: Any, flat: Any) -> None:
    tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))


FIRST_DRAW = 1 << 32
"""Above the draws of blocks, which have 31 bits."""


def with_other_ranks(
    built: BuiltWorkload, ranks: int, seed: int, build: Callable[[], BuiltWorkload]
) -> BuiltWorkload:
    """Return the workload with the inputs and losses of the other ranks.

    Each rank builds the workload with its own seed. Where that gives the same inputs, as for inputs that
    are read from a file, the values are drawn again: with equal batches, gradients that are not
    averaged over the ranks would look correct.
    """
    others: List[BuiltWorkload] = []
    for rank in range(1, ranks):
        torch.manual_seed(seed + rank)
        other = with_own_inputs(build())
        tensors = _inputs(other)
        if _same(tensors, _inputs(built)):
            draws = InputDraws(tensors)
            draws.apply(0, ALL)
            draws.apply(FIRST_DRAW + rank, ALL)
        others.append(BuiltWorkload(None, other.args, other.kwargs, other.loss))
    torch.manual_seed(seed)
    return replace(built, others=tuple(others))


def with_own_inputs(built: BuiltWorkload) -> BuiltWorkload:
    """Return the workload with copies of its inputs.

    Targets of a loss may be a view of the inputs, such as tokens shifted by one. Inputs are written by draws
    and move in memory at different times in different ranks, so such targets would differ between them.
    """

    def copied(tensor: Any) -> Any:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)

    return replace(
        built, args=map_tensors(built.args, copied), kwargs=map_tensors(built.kwargs, copied)
    )


def _inputs(built: BuiltWorkload) -> List[Any]:
    return flatten(built.args) + flatten(built.kwargs)


def _same(tensors: List[Any], others: List[Any]) -> bool:
    return len(tensors) == len(others) and all(
        one.shape == other.shape and one.dtype is other.dtype and torch.equal(one, other)
        for one, other in zip(tensors, others)
        if one.layout is torch.strided
    )
