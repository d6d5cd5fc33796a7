"""The dynamic section of an ELF file: what it needs, what it is called, where it looks.

Reads the file itself, because binutils may be missing where the build ran. Both word sizes and
both byte orders, because a root folder may hold another machine's libraries.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["DynamicSection", "read_dynamic"]

_MAGIC: Final = b"\x7fELF"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_NULL, _NEEDED, _STRTAB, _SONAME, _RPATH, _RUNPATH = 0, 1, 5, 14, 15, 29


@dataclass(frozen=True, kw_only=True)
class DynamicSection:
    """What the loader reads of a shared library."""

    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    """Old style: also used for what the library pulls in."""
    runpath: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Segment:
    kind: int
    offset: int
    address: int
    size: int


def read_dynamic(path: Path) -> DynamicSection | None:
    """The section; None for a file that is no dynamic ELF file, or a damaged one."""
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                return None
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(data)
    except (OSError, ValueError, OverflowError, IndexError, struct.error):
        return None


def _parse(data: mmap.mmap) -> DynamicSection | None:
    wide = data[4] == 2  # noqa: PLR2004
    order = "<" if data[5] == 1 else ">"
    segments = _segments(data, order, wide=wide)
    dynamic = next((segment for segment in segments if segment.kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return None
    layout = struct.Struct(order + ("qQ" if wide else "iI"))
    entries: list[tuple[int, int]] = []
    for place in range(dynamic.offset, dynamic.offset + dynamic.size, layout.size):
        tag, value = layout.unpack_from(data, place)
        if tag == _NULL:
            break
        entries.append((tag, value))
    table = next((_offset_of(value, segments) for tag, value in entries if tag == _STRTAB), 0)

    def texts(wanted: int) -> list[str]:
        return [_text(data, table + value) for tag, value in entries if tag == wanted]

    return DynamicSection(
        soname=next(iter(texts(_SONAME)), ""),
        needed=tuple(texts(_NEEDED)),
        rpath=_folders(texts(_RPATH)),
        runpath=_folders(texts(_RUNPATH)),
    )


def _segments(data: mmap.mmap, order: str, *, wide: bool) -> list[_Segment]:
    (start,) = struct.unpack_from(order + ("Q" if wide else "I"), data, 32 if wide else 28)
    size, count = struct.unpack_from(order + "HH", data, 54 if wide else 42)
    found: list[_Segment] = []
    for index in range(count):
        place = start + index * size
        if wide:
            kind, _, offset, address, _, length = struct.unpack_from(order + "IIQQQQ", data, place)
        else:
            kind, offset, address, _, length = struct.unpack_from(order + "IIIII", data, place)
        found.append(_Segment(kind=kind, offset=offset, address=address, size=length))
    return found


def _offset_of(address: int, segments: list[_Segment]) -> int:
    for segment in segments:
        if segment.kind == _PT_LOAD and 0 <= address - segment.address < segment.size:
            return segment.offset + address - segment.address
    raise ValueError("an address outside every segment")


def _text(data: mmap.mmap, start: int) -> str:
    end = data.find(b"\0", start)
    return data[start:end].decode("utf-8", "replace")


def _folders(texts: list[str]) -> tuple[str, ...]:
    return tuple(folder for text in texts for folder in text.split(":") if folder)
