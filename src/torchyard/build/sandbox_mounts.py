"""Private namespaces, and what a sandboxed command sees of the machine's files.

Part of `sandbox_program`: standard library only, any Python from 3.8, no other room of Torchyard.
Linux calls go through ctypes because `os.unshare` came with Python 3.12 and mount never did.
After `enter_root` the files of this interpreter may be gone: nothing may be imported from then on.
"""
# ruff: noqa: PTH103, PTH112, PTH117, PTH121, PTH123, PTH208
# Importing pathlib takes 10 ms, longer than making all the mounts.

from __future__ import annotations

import ctypes
import os

__all__ = [
    "NETWORK",
    "PROCESSES",
    "Refused",
    "adopt_orphans",
    "bind",
    "die_with_parent",
    "enter_namespaces",
    "enter_root",
    "leave_no_core",
    "mount",
    "mount_proc",
    "parent_death_signal",
    "plan_root",
    "unmount",
]

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
