from __future__ import annotations

import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builds.verify.sample_components import make_library, needs_gcc
from torchyard.builds.verify.linked_libraries import DynamicSection, read_dynamic


@needs_gcc
def test_a_library_as_readelf_sees_it(tmp_path: Path) -> None:
    other = make_library(tmp_path / "libother.so.1", soname="libother.so.1")
    path = make_library(
        tmp_path / "libpart.so", soname="libpart.so.2", needs=[other], rpath="$ORIGIN:/opt/x"
    )
    found = read_dynamic(path)
    assert found is not None
    assert found.soname == "libpart.so.2"
    assert "libother.so.1" in found.needed
    assert found.rpath + found.runpath == ("$ORIGIN", "/opt/x")
    if shutil.which("readelf"):
        said = subprocess.run(
            ["readelf", "-d", str(path)], capture_output=True, text=True, check=True
        )
        assert list(found.needed) == re.findall(r"\(NEEDED\).*\[(.*)\]", said.stdout)


@needs_gcc
def test_old_and_new_search_paths_are_reported_apart(tmp_path: Path) -> None:
    old = make_library(tmp_path / "libold.so", rpath="/opt/old", flags=["-Wl,--disable-new-dtags"])
    new = make_library(tmp_path / "libnew.so", rpath="/opt/new", flags=["-Wl,--enable-new-dtags"])
    found_old, found_new = read_dynamic(old), read_dynamic(new)
    assert found_old is not None
    assert found_new is not None
    assert (found_old.rpath, found_old.runpath) == (("/opt/old",), ())
    assert (found_new.rpath, found_new.runpath) == ((), ("/opt/new",))


def test_the_interpreter_itself() -> None:
    found = read_dynamic(Path(sys.executable).resolve())
    assert found is None or any(name.startswith("libc.") for name in found.needed)


@pytest.mark.parametrize(
    "content", [b"", b"\x7fELF", b"#!/bin/sh\n", b"\x7fELF\x02\x01" + b"\xff" * 200]
)
def test_files_that_are_no_library(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libx.so"
    path.write_bytes(content)
    assert read_dynamic(path) is None


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert read_dynamic(tmp_path / "missing") is None
    assert read_dynamic(tmp_path) is None


@needs_gcc
def test_a_library_that_a_full_disk_truncated(tmp_path: Path) -> None:
    path = make_library(tmp_path / "libpart.so", soname="libpart.so")
    data = path.read_bytes()
    for size in (5, 60, 200, len(data) // 8):
        path.write_bytes(data[:size])
        found = read_dynamic(path)
        assert found is None or isinstance(found, DynamicSection)


def test_a_32_bit_big_endian_file(tmp_path: Path) -> None:
    """No compiler for such a machine is here, so the file is laid out by hand."""
    strings = b"\0libz.so.1\0libmine.so\0/opt/lib\0"
    header = b"\x7fELF" + bytes([1, 2, 1]) + bytes(9)
    header += struct.pack(">HHIIIIIHHHHHH", 3, 8, 1, 0, 52, 0, 0, 52, 32, 2, 0, 0, 0)
    dynamic_at = 52 + 2 * 32
    tags = [(5, 0x1000 + dynamic_at + 48), (1, 1), (14, 11), (15, 22), (0, 0), (1, 1)]
    dynamic = b"".join(struct.pack(">iI", *tag) for tag in tags)
    assert len(dynamic) == 48
    size = dynamic_at + len(dynamic) + len(strings)
    load = struct.pack(">IIIIIIII", 1, 0, 0x1000, 0, size, size, 5, 4)
    section = struct.pack(">IIIIIIII", 2, dynamic_at, 0, 0, len(dynamic), 0, 6, 4)
    path = tmp_path / "libmine.so"
    path.write_bytes(header + load + section + dynamic + strings)
    assert read_dynamic(path) == DynamicSection(
        soname="libmine.so", needed=("libz.so.1",), rpath=("/opt/lib",)
    )
