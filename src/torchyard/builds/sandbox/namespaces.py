"""Private namespaces: the files that a sandboxed command sees, and a network without any host.

Linux calls go through ctypes because `os.unshare` came with Python 3.12 and there is no `os.mount`.
In a private network namespace there is only the loopback device; a small DNS server there answers
NXDOMAIN and records the names. Used by `sandbox_program.py`: standard library only,
Python 3.8 or newer, no other package of Torchyard. After `enter_root` the files of this interpreter
may be gone: nothing may be imported from then on.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import socket
import struct

# ruff: noqa: PTH103, PTH110, PTH112, PTH113, PTH117, PTH121, PTH123, PTH208
# Importing pathlib takes 10 ms, longer than making all the mounts.


NETWORK = 0x40000000
PROCESSES = 0x20000000
_MOUNTS = 0x00020000
_USERS = 0x10000000

_READ_ONLY = 0x1
_NO_SUID = 0x2
_NO_DEVICES = 0x4
_NO_PROGRAMS = 0x8
_REMOUNT = 0x20
_BIND = 0x1000
_RECURSIVE = 0x4000
_PRIVATE = 0x40000
_DETACH = 2

_SYS_ADMIN_BIT = 21
_SET_DEATH_SIGNAL = 1
_GET_DEATH_SIGNAL = 2
_SET_DUMPABLE = 4
_SET_CHILD_SUBREAPER = 36
_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_RECURSIVE = 0x8000

SYSTEM_FOLDERS = frozenset(
    ("bin", "boot", "dev", "etc", "lost+found", "proc", "run", "sbin", "sys", "usr", "var")
)
"""Top-level folders that a root provides itself, in addition to all that begin with `lib`."""

_OUTSIDE = "/boot"
"""Mount point of the machine's files while the root is assembled; builds do not use it."""

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The system refused an operation needed for the sandbox."""


def _call(step: str, name: str, *arguments: object) -> int:
    result = int(getattr(_libc, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        error = OSError(number, os.strerror(number))
        raise Refused(f"{step}: {error.strerror}") from error
    return result


def mount(source: str, target: str, kind: str, flags: int) -> None:
    """Mount a file system, or change how one is mounted."""
    _call(
        f"mount {source} on {target}",
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        None,
    )


def bind(source: str, target: str) -> None:
    """Bind-mount `source` at `target`, recursively.

    Recursively, because a user namespace may not bind a folder without the mounts that hide parts
    of it.
    """
    mount(source, target, "none", _BIND | _RECURSIVE)


def unmount(target: str) -> None:
    """Detach the topmost mount, even while it is in use."""
    _call(f"unmount {target}", "umount2", os.fsencode(target), _DETACH)


def mount_proc() -> None:
    """Mount /proc for the process namespace of this process."""
    mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_PROGRAMS)


def die_with_parent(number: int) -> None:
    """Request a signal for the death of the parent; the caller must check if it died before."""
    _libc.prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants (subreaper)."""
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leave_no_core() -> None:
    """Disable core dumps of this process: the command has written its own."""
    _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def parent_death_signal() -> int:
    """Return the parent-death signal of this process; 0 if none."""
    number = ctypes.c_int(0)
    _libc.prctl(_GET_DEATH_SIGNAL, ctypes.byref(number), 0, 0, 0)
    return number.value


def enter_namespaces(kinds: int, *, as_root: bool) -> None:
    """Unshare the mount namespace and those in `kinds`, through a user namespace where needed.

    `as_root`: map the user to 0 in a user namespace, as package managers in a root folder require.
    Otherwise the user id stays the same, so that tar and pip do not assume root privileges.
    """
    kinds |= _MOUNTS
    if not _has_sys_admin():
        user, group = os.geteuid(), os.getegid()
        _call("make a user namespace", "unshare", _USERS | kinds)
        try:
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"{0 if as_root else user} {user} 1")
            _write("/proc/self/gid_map", f"{0 if as_root else group} {group} 1")
        except OSError as error:
            raise Refused(f"map the user into a namespace: {error.strerror}") from error
    else:
        _call("make a private namespace", "unshare", kinds)
    try:
        _make_private("/")
    except Refused:
        _make_private_from_chroot()


def _make_private(path: str) -> None:
    """Keep further mounts from propagating to the machine."""
    mount("none", path, "none", _RECURSIVE | _PRIVATE)


def _make_private_from_chroot() -> None:
    """Make the mounts private from inside a chroot, whose / may not be a mount point.

    This process leaves the chroot for the one call: after a chroot to another folder, its working
    folder is outside the root, and `..` leads to the real root.
    """
    original_root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        os.chroot("/proc")
        while not os.path.samefile(".", ".."):
            os.chdir("..")
        _make_private(".")
    except OSError as error:
        raise Refused(f"make the mounts private: {error.strerror}") from error
    finally:
        os.fchdir(original_root)
        os.chroot(".")
        os.close(original_root)


def _has_sys_admin() -> bool:
    try:
        with open("/proc/self/status", "rb") as status:
            for line in status:
                if line.startswith(b"CapEff:"):
                    return bool(int(line.split()[1], 16) >> _SYS_ADMIN_BIT & 1)
    except OSError:
        pass
    return os.geteuid() == 0


def _write(path: str, text: str) -> None:
    number = os.open(path, os.O_WRONLY)
    try:
        os.write(number, text.encode())
    finally:
        os.close(number)


def plan_root(folders: list[str]) -> list[tuple[str, str]]:
    """Return the folders of the machine to mount in a root, as (real path outside, path inside).

    Must be called before anything is mounted, so that links resolve on the machine.
    """
    shown = [
        (os.path.realpath("/" + name), "/" + name)
        for name in sorted(os.listdir("/"))
        if not _is_system_folder(name) and os.path.isdir("/" + name)
    ]
    for folder in sorted(set(folders)):
        if not os.path.isabs(folder) or not os.path.isdir(folder):
            raise Refused(f"show {folder} in the root: it is not the full path of a folder")
        if _is_system_folder(folder.split("/")[1]):
            shown.append((os.path.realpath(folder), os.path.normpath(folder)))
    return shown


def _is_system_folder(name: str) -> bool:
    return name in SYSTEM_FOLDERS or name.startswith("lib")


def enter_root(root: str, shown: list[tuple[str, str]], *, fresh_proc: bool) -> None:
    """Make `root` the root of this process, with folders of the machine at the same paths."""
    root = os.path.realpath(root)
    if not os.path.isdir(root):
        raise Refused(f"enter the root {root}: there is no such folder")
    bind(root, root)
    _make_folder(root + _OUTSIDE)
    os.chdir(root)
    try:
        # Not chroot alone: a process in a chroot may not create a user namespace.
        _call("change the root", "pivot_root", b".", os.fsencode(_OUTSIDE[1:]))
    except Refused:  # this process is in a chroot already, or on an initial ramdisk
        bind("/", root + _OUTSIDE)
        os.chroot(".")
    os.chdir("/")
    for outside, inside in [*shown, ("/dev", "/dev"), ("/sys", "/sys")]:
        _make_folder(inside)
        bind(_OUTSIDE + outside, inside)
    _make_read_only("/sys")
    # Libraries of drivers create device files, which would remain on the machine.
    for folder in ("/dev/" + name for name in ("shm", "pts", "mqueue")):
        if os.path.isdir(folder) and not os.path.ismount(folder):
            bind(folder, folder)
    _make_read_only("/dev", recursive=False, forbidden=_NO_SUID)
    _make_folder("/proc")
    # A user namespace may mount a new /proc only while another one is visible.
    if fresh_proc:
        mount_proc()
    else:
        bind(_OUTSIDE + "/proc", "/proc")
    unmount(_OUTSIDE)


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise Refused(f"make the folder {path} in the root: {error.strerror}") from error


def _make_read_only(
    path: str, *, recursive: bool = True, forbidden: int = _NO_SUID | _NO_DEVICES | _NO_PROGRAMS
) -> None:
    """Make a mount read-only; before Linux 5.12 not recursively, and with `forbidden`.

    A refusal is ignored.
    """
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    at_fdcwd = ctypes.c_int(-100)
    path_pointer = ctypes.c_char_p(os.fsencode(path))
    if _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        at_fdcwd,
        path_pointer,
        _AT_RECURSIVE if recursive else 0,
        ctypes.byref(attributes),
        size,
    ):
        flags = _BIND | _REMOUNT | _READ_ONLY | forbidden
        _libc.mount(None, path_pointer, None, ctypes.c_ulong(flags), None)


_PORT = 53
_SET_FLAGS = 0x8914
_SET_ADDRESS = 0x8916
_OWN_ADDRESS = bytes((192, 0, 2, 1))  # TEST-NET-1, reserved for documentation
_UP_AND_RUNNING = 0x41
_NO_SUCH_NAME = 3
_HEADER_BYTES = 12
_MAX_QUERY_BYTES = 4096
_SCRATCH = "/tmp"  # noqa: S108  # temporary mount point of a private file system

_RESOLV_CONF = b"nameserver 127.0.0.1\nsearch .\noptions timeout:1 attempts:1\n"
_SOCKETS = (
    "/run/nscd/socket",
    "/var/run/nscd/socket",
    "/run/systemd/resolve/io.systemd.Resolve",
    "/run/avahi-daemon/socket",
    "/var/lib/sss/pipes/nss",
)
"""Sockets of name services that use the network of the machine."""

_PRINTABLE = bytes(byte if byte in range(0x21, 0x7F) else ord("?") for byte in range(256))
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "rsync_proxy")


def without_proxies(environment: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the environment without proxy variables.

    Proxies cannot be reached, and a program that uses one resolves the name of the proxy instead of
    the host it wants to reach.
    """
    dropped = {name.encode() for name in _PROXY_VARIABLES}
    return {name: value for name, value in environment.items() if name.lower() not in dropped}


def hide_resolvers() -> None:
    """Redirect all name lookups in this mount namespace to the DNS stub at 127.0.0.1.

    /etc/hosts and nsswitch.conf are replaced, too: a name resolved through them would not be
    recorded.
    """
    host = socket.gethostname().encode()
    files = {
        "/etc/resolv.conf": _RESOLV_CONF,
        "/etc/hosts": b"127.0.0.1 localhost\n::1 localhost\n127.0.0.1 " + host + b"\n",
        "/etc/nsswitch.conf": _nsswitch_with_dns("/etc/nsswitch.conf"),
    }
    mount("tmpfs", _SCRATCH, "tmpfs", 0)
    try:
        for number, (path, content) in enumerate(files.items()):
            real_path = os.path.realpath(path)
            if not os.path.isfile(real_path):  # without resolv.conf, resolvers use 127.0.0.1 anyway
                continue
            private = f"{_SCRATCH}/{number}"
            file = os.open(private, os.O_WRONLY | os.O_CREAT, 0o644)
            os.fchmod(file, 0o644)
            os.write(file, content)
            os.close(file)
            bind(private, real_path)
    finally:
        unmount(_SCRATCH)
    for path in {os.path.realpath(path) for path in _SOCKETS}:
        if os.path.exists(path):
            bind("/dev/null", path)


def _nsswitch_with_dns(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return b""
    other_lines = [line for line in lines if line.split(b":")[0].strip() != b"hosts"]
    return b"\n".join([*other_lines, b"hosts: files dns", b""])


class DnsStub:
    """DNS server that answers NXDOMAIN and records the names.

    Register its file descriptors with `join`, and call `serve` for each that is ready.
    """

    def __init__(self, note_file: int) -> None:
        """Set the loopback device up and listen; write names to the descriptor `note_file` (or -1)."""
        self._note_file = note_file
        self._recorded: set[bytes] = set()
        self._clients: dict[int, tuple[socket.socket, bytes]] = {}
        step = "set the loopback device up"
        try:
            self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            request = struct.pack("16sh14x", b"lo", _UP_AND_RUNNING)
            fcntl.ioctl(self._datagrams.fileno(), _SET_FLAGS, request)
            # With no address but 127.0.0.1, a lookup with AI_ADDRCONFIG fails before it queries
            # the name server.
            request = struct.pack("16sHH4s8x", b"lo:0", socket.AF_INET, 0, _OWN_ADDRESS)
            fcntl.ioctl(self._datagrams.fileno(), _SET_ADDRESS, request)
            step = "listen for DNS queries"
            self._streams = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._streams.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for server in (self._datagrams, self._streams):
                server.bind(("127.0.0.1", _PORT))
                server.setblocking(False)
            self._streams.listen(16)
        except OSError as error:
            raise Refused(f"{step}: {error.strerror}") from error

    def join(self, poll: select.poll) -> None:
        """Register the sockets with `poll`."""
        poll.register(self._datagrams, select.POLLIN)
        poll.register(self._streams, select.POLLIN)

    def serve(self, ready: int, poll: select.poll) -> None:
        """Answer the query on a ready descriptor; drop clients that violate the protocol."""
        try:
            if ready == self._datagrams.fileno():
                query, client = self._datagrams.recvfrom(_MAX_QUERY_BYTES)
                answer = self._answer(query)
                if answer:
                    self._datagrams.sendto(answer, client)
            elif ready == self._streams.fileno():
                stream, _ = self._streams.accept()
                stream.setblocking(False)
                self._clients[stream.fileno()] = stream, b""
                poll.register(stream, select.POLLIN)
            elif ready in self._clients:
                self._read_stream(ready, poll)
        except OSError:
            return

    def _read_stream(self, ready: int, poll: select.poll) -> None:
        stream, before = self._clients[ready]
        try:
            chunk = stream.recv(_MAX_QUERY_BYTES)
        except OSError:
            chunk = b""
        received = before + chunk
        is_valid = bool(chunk)
        while is_valid and len(received) >= 2:  # noqa: PLR2004  # a length of two bytes, then a query
            length = 2 + int.from_bytes(received[:2], "big")
            if len(received) < length:
                break
            answer = self._answer(received[2:length])
            is_valid = bool(answer)
            stream.send(struct.pack("!H", len(answer)) + answer)
            received = received[length:]
        if is_valid and len(received) <= _MAX_QUERY_BYTES:
            self._clients[ready] = stream, received
            return
        poll.unregister(ready)
        del self._clients[ready]
        stream.close()

    def _answer(self, query: bytes) -> bytes:
        """Return an NXDOMAIN response; empty if the message is not a query."""
        if len(query) < _HEADER_BYTES or query[2] & 0x80 or query[4:6] != b"\0\1":
            return b""
        labels, offset = [], _HEADER_BYTES
        while offset < len(query) and query[offset]:
            labels.append(query[offset + 1 : offset + 1 + query[offset]])
            offset += 1 + query[offset]
        end = offset + 5
        if end > len(query):
            return b""
        self._record(labels)
        flags = struct.pack("!BB", 0x80 | query[2] & 0x79, 0x80 | _NO_SUCH_NAME)
        return query[:2] + flags + b"\0\1" + bytes(6) + query[_HEADER_BYTES:end]

    def _record(self, labels: list[bytes]) -> None:
        while labels and labels[0].startswith(b"_"):  # _http._tcp.HOST is a service of HOST
            labels = labels[1:]
        name = b".".join(labels).lower().translate(_PRINTABLE)
        # Reverse lookups (in-addr.arpa) concern existing connections.
        if not name or name in self._recorded or name.endswith(b".arpa") or self._note_file < 0:
            return
        self._recorded.add(name)
        os.write(self._note_file, name + b"\n")
