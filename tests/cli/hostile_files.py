"""Hostile input files for all commands, each created in a folder and named by its path."""

from __future__ import annotations

import gzip
import io
import os
import socket
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path


def _text(content: str | bytes) -> Callable[[Path], None]:
    data = content.encode() if isinstance(content, str) else content

    def write(path: Path) -> None:
        path.write_bytes(data)

    return write


def _socket(path: Path) -> None:
    # A path of a socket is short; the socket stays when it is closed.
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(before)


def _unreadable(path: Path) -> None:
    path.write_text("name = 'x'\n")
    path.chmod(0)


FILES: dict[str, Callable[[Path], None]] = {
    "nested lists": _text("x = " + "[" * 2000 + "]" * 2000),
    "nested tables": _text("x = " + "{a=" * 2000 + "1" + "}" * 2000),
    "a key of 2000 parts": _text(".".join(["a"] * 2000) + " = 1\n"),
    "a header of 2000 parts": _text("[" + ".".join(["a"] * 2000) + "]\n"),
    "a key of 100000 parts": _text(".".join(["a"] * 100_000) + " = 1\n"),
    "a quoted key of 100000 parts": _text(".".join(['"a"'] * 100_000) + " = 1\n"),
    "an inner key of 100000 parts": _text("x = {" + " . ".join(["a"] * 100_000) + " = 1}\n"),
    "a key of 33 parts": _text(".".join(["a"] * 33) + " = 1\n"),
    "a key of 10 MB": _text("a" * 10_000_000 + " = 1\n"),
    "a key of 1 MB": _text("a" * 1_000_000 + " = 1\n"),
    "a value of 1 MB": _text('name = "' + "a" * 1_000_000 + '"\nprecision = "x"\n'),
    "a wrong value of 1 MB": _text('precision = "' + "a" * 1_000_000 + '"\n'),
    "an integer of 5000 digits": _text("name = " + "9" * 5000 + "\n"),
    "an integer of 400 digits": _text("[settings]\nthreads = " + "9" * 400 + "\n"),
    "nan": _text("[settings]\nthreads = nan\n"),
    "infinity": _text("[budget]\ntime = inf\n"),
    "1e400": _text("[budget]\ntime = 1e400\n"),
    "a day that does not exist": _text("name = 2025-02-31\n"),
    "binary": _text(bytes(range(256)) * 100),
    "ELF": _text(Path(sys.executable).read_bytes()[:100_000]),
    "zero bytes": _text(b"\0" * 1000),
    "a zero byte in a value": _text('name = "a\\u0000b"\nbaseline = "\\u0000"\n'),
    "UTF-16": _text("name = 'x'".encode("utf-16")),
    "Latin-1": _text("name = 'ü'".encode("latin-1")),
    "a surrogate": _text(b'name = "\xed\xa0\x80"\n'),
    "no TOML": _text("this is { not TOML"),
    "JSON": _text('{"name": 1}'),
    "one line of 1.9 MB": _text("#" * 1_900_000),
    "6000 tables": _text("".join(f"[t{number}]\n" for number in range(6_000))),
    "a folder": lambda path: path.mkdir(),
    "a FIFO": os.mkfifo,
    "a socket": _socket,
    "/dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "/dev/full": lambda path: path.symlink_to("/dev/full"),
    "/dev/tty": lambda path: path.symlink_to("/dev/tty"),
    "/proc/self/mem": lambda path: path.symlink_to("/proc/self/mem"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "nothing": lambda _: None,
    "unreadable": _unreadable,
}


def _tar(*members: tarfile.TarInfo, data: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member in members:
            member.size = len(data) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def _pax(records: bytes) -> bytes:
    """An extra header with these bytes before a plain member."""
    extra = tarfile.TarInfo("PaxHeaders/x")
    extra.type, extra.size = tarfile.XHDTYPE, len(records)
    padding = b"\0" * (-len(records) % 512)
    return extra.tobuf(tarfile.USTAR_FORMAT) + records + padding + _tar(_member("run/run.json"))


def _sized(size: bytes) -> bytes:
    plain = bytearray(_tar(_member("run/run.json")))
    plain[124:136] = size
    plain[148:156] = b" " * 8
    plain[148:156] = b"%06o\0 " % sum(plain[:512])
    return bytes(plain)


ARCHIVES: dict[str, bytes] = {
    name: gzip.compress(content)
    for name, content in {
        "a device": _tar(_member("run/null", tarfile.CHRTYPE)),
        "a block device": _tar(_member("run/disk", tarfile.BLKTYPE)),
        "a FIFO": _tar(_member("run/fifo", tarfile.FIFOTYPE)),
        "an absolute name": _tar(_member("/etc/escaped")),
        "a name that leads out": _tar(_member("run/../../escaped")),
        "a link that leads out": _tar(_member("run/link", tarfile.SYMTYPE, "/etc")),
        "a hard link that leads out": _tar(_member("run/link", tarfile.LNKTYPE, "/etc/passwd")),
        "pax: no length": _pax(b"x path=run/run.json\n"),
        "pax: a length of zero": _pax(b"0 path=run/run.json\n"),
        "pax: a length that is too large": _pax(b"999999999 path=run/run.json\n"),
        "pax: a size that is no number": _pax(b"18 size=no_number\n"),
        "pax: a sparse map that is none": _pax(b"25 GNU.sparse.map=a,b,c,\n22 GNU.sparse.size=x\n"),
        "pax: sparse 1.0 without a map": _pax(b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"),
        "pax: bytes that are no text": _pax(b"20 path=run/\xff\xfe\xfd.js\n"),
        "pax: only zeros": _pax(b"\0" * 512),
        "pax: thousands in a row": _pax(b"11 mtime=1\n")[:1024] * 3000 + _tar(_member("run/x")),
        "a negative size": _sized(b"\xff" * 12),
        "a huge size": _sized(b"\x80" + b"\x7f" * 11),
        "a size that is no number": _sized(b"zzzzzzzzzzz\0"),
        "half a member": _tar(_member("run/run.json"), data=b"x" * 4096)[:1000],
        "no archive": b"this is no archive" * 100,
        "nothing": b"",
    }.items()
}
ARCHIVES["not compressed"] = _tar(_member("run/null", tarfile.CHRTYPE))
ARCHIVES["half a gzip"] = gzip.compress(os.urandom(10_000))[:500]
ARCHIVES["gzip of garbage"] = b"\x1f\x8b" + b"\xff" * 500
