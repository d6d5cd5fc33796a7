"""Private namespaces: the files that a sandboxed command sees, and a network without any host.

Linux calls go through ctypes because `os.unshare` came with Python 3.12 and there is no `os.mount`.
In a private network namespace there is only the loopback device; a small DNS server there answers
"no such name" and writes the names down. Used by `sandbox_program.py`: standard library only,
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

# ruff: noqa: PTH103, PTH112, PTH117, PTH121, PTH123, PTH208
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
"""Top folders a root has of its own, beside all that begin with `lib`."""

_OUTSIDE = "/boot"
"""Where the machine's files hang while the root is put together; no build looks in there."""

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The system refused a step of making the sandbox."""


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
    """Show `source` at `target`, with all that is mounted below it.

    Always with what is below: a user namespace may not bind a folder without the mounts that hide
    parts of it.
    """
    mount(source, target, "none", _BIND | _RECURSIVE)


def unmount(target: str) -> None:
    """Take the topmost mount away, even while it is in use."""
    _call(f"unmount {target}", "umount2", os.fsencode(target), _DETACH)


def mount_proc() -> None:
    """A fresh /proc, of the process namespace this process is in."""
    mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_PROGRAMS)


def die_with_parent(number: int) -> None:
    """Ask for a signal when the parent dies; whether it is dead already the caller must look."""
    _libc.prctl(_SET_DEATH_SIGNAL, number, 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs."""
    _libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def leave_no_core() -> None:
    """The command has left its own core file, if one is wanted."""
    _libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0)


def parent_death_signal() -> int:
    """The signal this process asked for, 0 for none."""
    number = ctypes.c_int(0)
    _libc.prctl(_GET_DEATH_SIGNAL, ctypes.byref(number), 0, 0, 0)
    return number.value


def enter_namespaces(kinds: int, *, as_root: bool) -> None:
    """Private mounts and what else `kinds` names; through a user namespace where that is needed.

    `as_root`: in a user namespace be user 0, as package managers in a root folder demand. Otherwise
    the user stays the same, so that nothing (tar, pip) believes it may do what only root can.
    """
    kinds |= _MOUNTS
    if not _may_administrate():
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
    """Let no mount from here on be seen on the machine."""
    mount("none", path, "none", _RECURSIVE | _PRIVATE)


def _make_private_from_chroot() -> None:
    """The / of a chroot may be a plain folder, and the mount that it is part of has no path there.

    So this process steps out of the chroot for the one call: its folder is not below the root that
    it takes for a moment, and then `..` leads all the way up.
    """
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir("/")
        os.chroot("/proc")
        while not os.path.samefile(".", ".."):
            os.chdir("..")
        _make_private(".")
    except OSError as error:
        raise Refused(f"make the mounts private: {error.strerror}") from error
    finally:
        os.fchdir(here)
        os.chroot(".")
        os.close(here)


def _may_administrate() -> bool:
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
    """What a root will show of the machine, as (real path outside, path inside).

    Asked before anything is mounted: the links of the machine must be followed on the machine.
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
    """Make `root` this process's /, with the machine's own folders at their own paths."""
    root = os.path.realpath(root)
    if not os.path.isdir(root):
        raise Refused(f"enter the root {root}: there is no such folder")
    bind(root, root)
    _make_folder(root + _OUTSIDE)
    os.chdir(root)
    try:
        # Not only chroot: a process in a chroot may make no user namespace of its own.
        _call("change the root", "pivot_root", b".", os.fsencode(_OUTSIDE[1:]))
    except Refused:  # this process is in a chroot already, or on an initial ramdisk
        bind("/", root + _OUTSIDE)
        os.chroot(".")
    os.chdir("/")
    for outside, inside in [*shown, ("/dev", "/dev"), ("/sys", "/sys")]:
        _make_folder(inside)
        bind(_OUTSIDE + outside, inside)
    _make_read_only("/sys")
    _make_folder("/proc")
    # A user namespace may mount a fresh one only while it sees another.
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


def _make_read_only(path: str) -> None:
    """With all below where Linux can (5.12); a refusal leaves it as it is on the machine."""
    attributes = (ctypes.c_uint64 * 4)(_READ_ONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    here = ctypes.c_int(-100)
    place = ctypes.c_char_p(os.fsencode(path))
    if _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR), here, place, _AT_RECURSIVE, ctypes.byref(attributes), size
    ):
        flags = _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | _NO_DEVICES | _NO_PROGRAMS
        _libc.mount(None, place, None, ctypes.c_ulong(flags), None)


# ruff: noqa: PTH110, PTH113, PTH123
# Importing pathlib takes 10 ms, longer than all that is done with paths here.


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
