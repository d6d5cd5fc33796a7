"""One pass over a tensor's memory on the CPU: hash, zeros, range, bits in use, unchanged elements.

`open_scanner` compiles `scan.c` if the machine has a compiler (float32 on one core: 4.8 GB/s measured on Neoverse-N1
with NEON, 14 GB/s on a Xeon with AVX2); otherwise `TorchScanner` uses torch operators, which take about ten times as
long. Hashes differ between the two and are compared only within one process. Layouts say how the numbers of a dtype
lie in memory.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Protocol, Sequence, Tuple

import torch


class Layout(NamedTuple):
    """Bit layout of one element; a complex number is two elements."""

    bits: int
    mantissa: int = 0
    """Stored mantissa bits; 0 for signed integers, -1 for unsigned ones."""
    bias: int = 0
    per_number: int = 1
    """Elements per number."""

    @property
    def is_float(self) -> bool:
        """Whether the dtype is a floating-point type."""
        return self.mantissa > 0


LAYOUTS: Dict[torch.dtype, Layout] = {
    torch.float64: Layout(64, 52, 1023),
    torch.float32: Layout(32, 23, 127),
    torch.bfloat16: Layout(16, 7, 127),
    torch.float16: Layout(16, 10, 15),
    torch.int64: Layout(64),
    torch.int32: Layout(32),
    torch.int16: Layout(16),
    torch.int8: Layout(8),
    torch.uint8: Layout(8, -1),
    torch.bool: Layout(8, -1),
    torch.complex64: Layout(32, 23, 127, 2),
    torch.complex128: Layout(64, 52, 1023, 2),
}
"""Other dtypes (quantized, float8) are not supported."""


def layout_of(dtype: torch.dtype) -> Optional[Layout]:
    """Return the layout of a dtype; None if it is not supported."""
    return LAYOUTS.get(dtype)


def ordered_to_number(ordered: int, layout: Layout) -> float:
    """Return the number of an ordered integer; negative floats are in reverse order."""
    bits, mask = layout.bits, (1 << layout.bits) - 1
    if layout.mantissa < 0:
        return (ordered & mask) ^ 1 << bits - 1
    if layout.mantissa == 0:
        return ordered
    raw = ordered & mask
    if ordered < 0:
        raw ^= mask >> 1
    return bits_to_number(raw, layout)


def bits_to_number(raw: int, layout: Layout) -> float:
    """Return the number with these bits."""
    if not layout.is_float:
        top = 1 << (layout.bits - 1)
        return raw - 2 * top if layout.mantissa == 0 and raw & top else raw
    if layout.bits == 64:
        return float(ctypes.c_double.from_buffer(ctypes.c_uint64(raw)).value)
    if layout.bits == 16 and layout.mantissa == 10:
        return _half(raw)
    raw32 = raw << 16 if layout.bits == 16 else raw
    return float(ctypes.c_float.from_buffer(ctypes.c_uint32(raw32)).value)


def _half(raw: int) -> float:
    sign = -1.0 if raw & 0x8000 else 1.0
    exponent, mantissa = raw >> 10 & 31, raw & 1023
    if exponent == 31:
        return float("nan") if mantissa else sign * float("inf")
    if exponent == 0:
        return sign * mantissa * 2.0**-24
    return sign * (1.0 + mantissa / 1024.0) * 2.0 ** (exponent - 15)


_HERE = os.path.dirname(os.path.abspath(__file__))
_SOURCES = (os.path.join(_HERE, "scan.c"), os.path.join(_HERE, "scan_width.h"))
_COMPILE_LIMIT_S = 60


class Scan(ctypes.Structure):
    """Result of a scan; same fields as `struct scan` in scan.c."""

    _fields_ = [
        ("hash", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("zeros", ctypes.c_uint64),
        ("like_first", ctypes.c_uint64),
        ("unchanged", ctypes.c_uint64),
        ("first_bits", ctypes.c_uint64),
        ("any_bits", ctypes.c_uint64),
    ]


class _Range(ctypes.Structure):
    _fields_ = [("low", ctypes.c_int64), ("high", ctypes.c_int64)]


class Scanner(Protocol):
    """Interface of CPU memory scanners."""

    name: str

    def scan(self, address: int, before: Optional[int], numbers: int, layout: Layout) -> Scan:
        """Scan `numbers` numbers at an address; `before` is the address of their earlier bits."""

    def hash(self, address: int, numbers: int, layout: Layout) -> int:
        """Return the hash of a scan."""

    def count(self, address: int, numbers: int, layout: Layout, mask: int, like: int) -> int:
        """Return the number of elements whose bits under a mask are these."""

    def number_range(self, address: int, numbers: int, layout: Layout) -> Tuple[float, float]:
        """Return the smallest and largest number; NaN is sorted beyond infinity."""

    def whole_numbers(self, address: int, numbers: int, layout: Layout) -> bool:
        """Return whether no floating-point number has a fraction."""

    def repeats(self, address: int, size_bytes: int, period_bytes: int) -> bool:
        """Return whether the memory repeats with a period."""

    def constant_runs(self, address: int, count: int, width: int, run: int) -> bool:
        """Return whether all elements of each run are equal."""


class CompiledScanner:
    """Scans CPU memory with compiled scan.c."""

    name = "compiled"

    def __init__(self, library: Any) -> None:
        address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self._scan = library.scan
        self._scan.argtypes = (address, address, size, number, address)
        self._scan.restype = None
        self.scan_address = ctypes.cast(self._scan, address).value
        """Address of the function, for compiled callers."""
        self._hash = library.hash
        self._hash.argtypes = (address, size, number)
        self._hash.restype = ctypes.c_uint64
        self._count = library.count
        self._count.argtypes = (address, size, number, ctypes.c_uint64, ctypes.c_uint64)
        self._count.restype = ctypes.c_uint64
        self._range = library.range
        self._range.argtypes = (address, size, number, number, address)
        self._range.restype = None
        self._whole = library.whole_numbers
        self._whole.argtypes = (address, size, number, number, number)
        self._repeats = library.repeats
        self._repeats.argtypes = (address, size, size)
        self._runs = library.constant_runs
        self._runs.argtypes = (address, size, size, size)

    def scan(self, address: int, before: Optional[int], numbers: int, layout: Layout) -> Scan:
        """Scan `numbers` numbers at an address; `before` is the address of their earlier bits."""
        scan = Scan()
        count = numbers * layout.per_number
        self._scan(address, before, count, layout.bits, ctypes.addressof(scan))
        return scan

    def hash(self, address: int, numbers: int, layout: Layout) -> int:
        """Return the hash of a scan."""
        return int(self._hash(address, numbers * layout.per_number, layout.bits))

    def count(self, address: int, numbers: int, layout: Layout, mask: int, like: int) -> int:
        """Return the number of elements whose bits under a mask are these."""
        return int(self._count(address, numbers * layout.per_number, layout.bits, mask, like))

    def number_range(self, address: int, numbers: int, layout: Layout) -> Tuple[float, float]:
        """Return the smallest and largest number; NaN is sorted beyond infinity."""
        limits = _Range()
        count = numbers * layout.per_number
        self._range(address, count, layout.bits, layout.mantissa, ctypes.addressof(limits))
        return ordered_to_number(limits.low, layout), ordered_to_number(limits.high, layout)

    def whole_numbers(self, address: int, numbers: int, layout: Layout) -> bool:
        """Return whether no floating-point number has a fraction."""
        count = numbers * layout.per_number
        return bool(self._whole(address, count, layout.bits, layout.mantissa, layout.bias))

    def repeats(self, address: int, size_bytes: int, period_bytes: int) -> bool:
        """Return whether the memory repeats with a period."""
        return bool(self._repeats(address, size_bytes, period_bytes))

    def constant_runs(self, address: int, count: int, width: int, run: int) -> bool:
        """Return whether all elements of each run are equal."""
        return bool(self._runs(address, count, width, run))


def flat_memory(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """Return the tensor if its memory has no gaps or overlaps (also channels-last, transposed), else None."""
    if tensor.is_contiguous():
        return tensor
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size == 1:
            continue
        if stride != expected:
            return None
        expected *= size
    return tensor


def open_scanner(cache: Optional[str] = None) -> Optional[CompiledScanner]:
    """Return the compiled scanner, or None if it cannot be compiled."""
    library = _compiled(cache)
    return None if library is None else CompiledScanner(library)


def library_path(
    cache: Optional[str], name: str, sources: Sequence[str], about: str
) -> Optional[str]:
    """Return the cached path of a compiled library; None if another user owns the folder."""
    text = b""
    for source in sources:
        with open(source, "rb") as file:
            text += file.read()
    key = hashlib.sha256(text + about.encode()).hexdigest()[:16]
    folder = cache or os.path.join(tempfile.gettempdir(), "torchyard-scan-%d" % os.getuid())
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        return None
    return os.path.join(folder, "%s-%s.so" % (name, key))


def _compiled(cache: Optional[str]) -> Optional[Any]:
    try:
        path = library_path(cache, "scan", _SOURCES, " ".join((platform.machine(), *_FLAGS)))
        if path is None or (not os.path.exists(path) and not _compile(path)):
            return None
        return ctypes.CDLL(path)
    except OSError:
        return None


_FLAGS = ("-std=gnu99", "-O3", "-funroll-loops", "-shared", "-fPIC")
_CLONED = "-DCLONED"
"""Compile for several instruction sets; not every compiler and C library supports it."""


def _compile(path: str) -> bool:
    variants = [(_CLONED,), ()] if platform.machine() == "x86_64" else [()]
    return any(compile_with(one, more, path) for one in _compilers() for more in variants)


def compile_with(compiler: str, more: Tuple[str, ...], path: str) -> bool:
    """Compile and load scan.c with a compiler and more options; return whether that worked."""
    descriptor, library = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".so")
    os.close(descriptor)
    try:
        ended = subprocess.run(
            [compiler, *_FLAGS, *more, "-o", library, _SOURCES[0]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_COMPILE_LIMIT_S,
            check=False,
        )
        if ended.returncode == 0:
            ctypes.CDLL(library)  # fails without support of the loader
            os.replace(library, path)
            return True
    except (OSError, subprocess.TimeoutExpired):
        pass
    if os.path.exists(library):
        os.unlink(library)
    return False


def _compilers() -> List[str]:
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    return [path for path in (shutil.which(name) for name in names if name) if path]


_CHUNK = 1 << 18
"""Elements per chunk: intermediate results stay in the cache, and memory stays bounded."""
_WORDS: Dict[int, Tuple[Any, torch.dtype]] = {
    8: (ctypes.c_uint8, torch.uint8),
    16: (ctypes.c_uint16, torch.int16),
    32: (ctypes.c_uint32, torch.int32),
    64: (ctypes.c_uint64, torch.int64),
}
_MASK = (1 << 64) - 1
# Odd 64-bit multipliers as signed integers, as in torch.
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX = 0xBF58476D1CE4E5B9 - (1 << 64)


def _words(address: int, count: int, bits: int) -> torch.Tensor:
    """Return a view of the memory as integers of a width."""
    word, dtype = _WORDS[bits]
    return torch.frombuffer((word * count).from_address(address), dtype=dtype)


def _in_width(number: int, bits: int) -> int:
    """Return bits as a number of the type of `_words`."""
    number &= (1 << bits) - 1
    return number - (1 << bits) if bits > 8 and number >> (bits - 1) else number


class TorchScanner:
    """Scans CPU memory with torch operators."""

    name = "torch"

    def __init__(self) -> None:
        places = torch.arange(1, _CHUNK + 1, device="cpu")
        keys = places * _SPREAD
        keys = (keys ^ (keys >> 31)) * _MIX
        self._keys = (keys ^ (keys >> 29)) | 1

    def scan(self, address: int, before: Optional[int], numbers: int, layout: Layout) -> Scan:
        """Scan `numbers` numbers at an address; `before` is the address of their earlier bits."""
        count = numbers * layout.per_number
        words = _words(address, count, layout.bits)
        earlier = None if before is None else _words(before, count, layout.bits)
        scan = Scan()
        scan.count = count
        first = words[0]
        digest = count * 0xFF51AFD7ED558CCD & _MASK
        zeros = like = same = any_bits = 0
        for start in range(0, count, _CHUNK):
            part = words[start : start + _CHUNK]
            keys = self._keys[: part.numel()]
            digest = (digest ^ int(torch.sum(part * keys)) & _MASK) * 0x9DDFEA08EB382D69 & _MASK
            digest ^= digest >> 29
            zeros += part.numel() - int(torch.count_nonzero(part))
            like += int(torch.count_nonzero(part == first))
            any_bits |= int(bits_in_use(part))
            if earlier is not None:
                same += int(torch.count_nonzero(part == earlier[start : start + _CHUNK]))
        mask = (1 << layout.bits) - 1
        scan.hash, scan.zeros, scan.like_first, scan.unchanged = digest, zeros, like, same
        scan.first_bits, scan.any_bits = int(first) & mask, any_bits & mask
        return scan

    def hash(self, address: int, numbers: int, layout: Layout) -> int:
        """Return the hash of a scan."""
        return int(self.scan(address, None, numbers, layout).hash)

    def count(self, address: int, numbers: int, layout: Layout, mask: int, like: int) -> int:
        """Return the number of elements whose bits under a mask are these."""
        words = _words(address, numbers * layout.per_number, layout.bits)
        mask_words, like_words = (_in_width(bits, layout.bits) for bits in (mask, like))
        return int(torch.count_nonzero((words & mask_words) == like_words))

    def number_range(self, address: int, numbers: int, layout: Layout) -> Tuple[float, float]:
        """Return the smallest and largest number; NaN is sorted beyond infinity."""
        words = _words(address, numbers * layout.per_number, layout.bits)
        if not layout.is_float:
            signed = words.view(torch.int8) if layout.bits == 8 and layout.mantissa == 0 else words
            return int(signed.min()), int(signed.max())
        most = (1 << (layout.bits - 1)) - 1
        low, high = most, -most - 1
        for start in range(0, words.numel(), _CHUNK):
            part = words[start : start + _CHUNK]
            ordered = torch.where(part < 0, part ^ most, part)
            low, high = min(low, int(ordered.min())), max(high, int(ordered.max()))
        return ordered_to_number(low, layout), ordered_to_number(high, layout)

    def whole_numbers(self, address: int, numbers: int, layout: Layout) -> bool:
        """Return whether no floating-point number has a fraction."""
        if not layout.is_float:
            return False
        words = _words(address, numbers * layout.per_number, layout.bits)
        floats = words.view(_FLOATS[layout.bits, layout.mantissa])
        step = 64
        start = 0
        while start < words.numel():  # most floats have a fraction, so check a few first
            part = floats[start : start + step]
            if not bool((torch.isfinite(part) & (part == part.trunc())).all()):
                return False
            start += step
            step = _CHUNK
        return True

    def repeats(self, address: int, size_bytes: int, period_bytes: int) -> bool:
        """Return whether the memory repeats with a period."""
        if not period_bytes or size_bytes <= period_bytes or size_bytes % period_bytes:
            return False
        return _same(address, address + period_bytes, size_bytes - period_bytes)

    def constant_runs(self, address: int, count: int, width: int, run: int) -> bool:
        """Return whether all elements of each run are equal."""
        if run < 2 or not width or count % run:
            return False
        if not _same(address, address + width, (run - 1) * width):
            return False
        rows = _words(address, count * width, 8).view(count // run, run, width)
        return bool((rows == rows[:, :1]).all())


_FLOATS: Dict[Tuple[int, int], torch.dtype] = {
    (64, 52): torch.float64,
    (32, 23): torch.float32,
    (16, 10): torch.float16,
    (16, 7): torch.bfloat16,
}


def _same(one: int, other: int, size_bytes: int) -> bool:
    return torch.equal(_words(one, size_bytes, 8), _words(other, size_bytes, 8))


def bits_in_use(words: torch.Tensor) -> torch.Tensor:
    """Return the bitwise OR of all elements by pairwise reduction."""
    while words.numel() > 1:
        half = words.numel() // 2
        joined = words[:half] | words[half : 2 * half]
        words = joined if words.numel() % 2 == 0 else torch.cat((joined, words[-1:]))
    return words[0].to(torch.int64)
