"""The memory scan: both scanners compared with a plain reference, for all dtypes and sizes."""

from __future__ import annotations

import ctypes
import itertools
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from torchyard.worker.values.scanning.cpu_scan import (  # noqa: E402
    LAYOUTS,
    CompiledScanner,
    Layout,
    Scan,
    Scanner,
    TorchScanner,
    bits_to_number,
    compile_with,
    flat_memory,
    layout_of,
    open_scanner,
    ordered_to_number,
)
from torchyard.worker.values.scanning.scanners import DeviceScanner, Scanners  # noqa: E402

pytestmark = pytest.mark.torch

_compiled = open_scanner()
SCANNERS: list[Scanner] = [TorchScanner(), *([] if _compiled is None else [_compiled])]
BOTH = pytest.mark.parametrize("scanner", SCANNERS, ids=lambda one: one.name)
DTYPES = list(LAYOUTS)
FLOATS = [dtype for dtype, layout in LAYOUTS.items() if layout.is_float and layout.per_number == 1]
FIELDS = ("count", "zeros", "like_first", "unchanged", "first_bits", "any_bits")


def bits_of(tensor: Any) -> list[int]:
    """The elements of a contiguous tensor as they lie in memory."""
    layout = LAYOUTS[tensor.dtype]
    width = layout.bits // 8
    raw = ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())
    return [int.from_bytes(raw[at : at + width], "little") for at in range(0, len(raw), width)]


def reference(words: list[int], before: list[int] | None) -> dict[str, int]:
    any_bits = 0
    for word in words:
        any_bits |= word
    return {
        "count": len(words),
        "zeros": words.count(0),
        "like_first": words.count(words[0]),
        "unchanged": sum(a == b for a, b in zip(words, before or [], strict=False)),
        "first_bits": words[0],
        "any_bits": any_bits,
    }


def scan(scanner: Scanner, tensor: Any, before: Any = None) -> Scan:
    address = None if before is None else before.data_ptr()
    return scanner.scan(tensor.data_ptr(), address, tensor.numel(), LAYOUTS[tensor.dtype])


@st.composite
def tensors(draw: st.DrawFn, dtypes: list[Any] = DTYPES, least: int = 1) -> Any:
    """Random bits, few distinct values, or special numbers; sizes around those of a block."""
    dtype = draw(st.sampled_from(dtypes))
    size = draw(st.one_of(st.integers(least, 40), st.sampled_from([255, 256, 257, 511, 512, 777])))
    size = max(size, least)
    layout = LAYOUTS[dtype]
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    width = layout.bits // 8 * layout.per_number
    kind = draw(st.sampled_from(["bits", "few", "special", "constant"]))
    raw = torch.randint(0, 256, (size * width,), dtype=torch.uint8, generator=generator)
    if dtype is torch.bool:
        return (raw % 2).view(torch.bool)
    tensor = raw.view(dtype)
    if kind == "few":
        return tensor[torch.randint(0, min(3, size), (size,), generator=generator)].clone()
    if kind == "constant":
        return tensor[:1].repeat(size)
    if kind == "special" and layout.is_float and layout.per_number == 1:
        numbers = torch.tensor([0.0, -0.0, 1.0, 2.5, math.nan, math.inf, -math.inf], dtype=dtype)
        return numbers[torch.randint(0, 7, (size,), generator=generator)]
    return tensor


@BOTH
@settings(max_examples=40, deadline=None)
@given(tensor=tensors())
def test_a_scan_equals_a_plain_computation(scanner: Scanner, tensor: Any) -> None:
    before = tensor.clone()
    before[::3] = tensor.flip(0)[::3]
    found = scan(scanner, tensor, before)
    wanted = reference(bits_of(tensor), bits_of(before))
    assert {name: getattr(found, name) for name in FIELDS} == wanted
    without = scan(scanner, tensor)
    assert without.unchanged == 0
    assert without.hash == found.hash


@BOTH
@settings(max_examples=40, deadline=None)
@given(tensor=tensors(least=2), seed=st.integers(0, 1000))
def test_equal_bits_have_equal_hashes_and_others_not(
    scanner: Scanner, tensor: Any, seed: int
) -> None:
    found = scan(scanner, tensor).hash
    assert scan(scanner, tensor.clone()).hash == found
    order = torch.randperm(tensor.numel(), generator=torch.Generator().manual_seed(seed))
    turned = tensor[order].clone()
    assert (scan(scanner, turned).hash == found) == (bits_of(turned) == bits_of(tensor))
    assert scan(scanner, tensor[:-1].clone()).hash != found
    if tensor.dtype is not torch.bool:
        changed = tensor.clone()
        changed.view(torch.uint8)[seed % (changed.numel() * changed.element_size())] ^= (
            1 << seed % 8
        )
        assert scan(scanner, changed).hash != found


@BOTH
def test_hashes_tell_order_from_content_in_large_tensors(scanner: Scanner) -> None:
    tensor = torch.randn(1 << 19)
    found = scan(scanner, tensor).hash
    blocks = tensor.view(2, -1).flip(0).reshape(-1)
    assert scan(scanner, blocks).hash != found
    assert scan(scanner, tensor.flip(0)).hash != found
    zero, longer = torch.zeros(1000), torch.zeros(1001)
    assert scan(scanner, zero).hash != scan(scanner, longer).hash
    assert scan(scanner, torch.zeros(512)).hash != scan(scanner, torch.full((512,), -0.0)).hash


@BOTH
@settings(max_examples=40, deadline=None)
@given(tensor=tensors())
def test_the_range_is_that_of_the_numbers(scanner: Scanner, tensor: Any) -> None:
    layout = LAYOUTS[tensor.dtype]
    low, high = scanner.number_range(tensor.data_ptr(), tensor.numel(), layout)
    numbers = sorted((bits_to_number(word, layout) for word in bits_of(tensor)), key=_order)
    if any(math.isnan(one) for one in numbers):
        assert not (math.isfinite(low) and math.isfinite(high))  # beyond infinity, at either end
        return
    assert (low, high) == (numbers[0], numbers[-1])


def _order(number: float) -> tuple[int, float]:
    return (1, 0.0) if math.isnan(number) else (0, number)


@BOTH
@settings(max_examples=40, deadline=None)
@given(tensor=tensors(FLOATS), rounded=st.booleans())
def test_whole_numbers_have_no_fraction(scanner: Scanner, tensor: Any, rounded: bool) -> None:
    tensor = tensor.round() if rounded else tensor
    numbers = [bits_to_number(word, LAYOUTS[tensor.dtype]) for word in bits_of(tensor)]
    wanted = all(math.isfinite(one) and one == math.trunc(one) for one in numbers)
    found = scanner.whole_numbers(tensor.data_ptr(), tensor.numel(), LAYOUTS[tensor.dtype])
    assert found == wanted


@BOTH
@settings(max_examples=40, deadline=None)
@given(
    period=st.integers(1, 9),
    times=st.integers(1, 40),
    extra=st.integers(0, 2),
    spoil=st.booleans(),
    seed=st.integers(0, 99),
)
def test_repeats(
    scanner: Scanner, period: int, times: int, extra: int, spoil: bool, seed: int
) -> None:
    one = torch.randint(0, 256, (period,), dtype=torch.uint8)
    memory = torch.cat([one.repeat(times), one[:extra]])
    if spoil:
        memory[seed % memory.numel()] ^= 1
    raw = bytes(memory.tolist())
    wanted = (
        len(raw) > period and len(raw) % period == 0 and raw == raw[:period] * (len(raw) // period)
    )
    assert scanner.repeats(memory.data_ptr(), len(raw), period) == wanted
    assert not scanner.repeats(memory.data_ptr(), len(raw), 0)


@BOTH
@settings(max_examples=40, deadline=None)
@given(
    run=st.integers(1, 7),
    runs=st.integers(1, 30),
    spoil=st.booleans(),
    dtype=st.sampled_from([torch.uint8, torch.int16, torch.float32, torch.float64]),
    seed=st.integers(0, 99),
)
def test_constant_runs(
    scanner: Scanner, run: int, runs: int, spoil: bool, dtype: Any, seed: int
) -> None:
    memory = torch.arange(runs).repeat_interleave(run).to(dtype)
    if spoil:
        memory[seed % memory.numel()] += 1
    rows = [memory[at : at + run].tolist() for at in range(0, memory.numel(), run)]
    wanted = run > 1 and all(len(set(row)) == 1 for row in rows)
    width = memory.element_size()
    assert scanner.constant_runs(memory.data_ptr(), memory.numel(), width, run) == wanted
    assert not scanner.constant_runs(memory.data_ptr(), memory.numel(), width, memory.numel() + 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_scanners_agree_on_large_tensors(dtype: Any) -> None:
    if len(SCANNERS) < 2:
        pytest.skip("there is no compiler")
    tensor = (torch.randn(300_000) * 50).to(dtype)
    layout = LAYOUTS[dtype]
    found = [scan(scanner, tensor, tensor) for scanner in SCANNERS]
    compiled, plain = ([getattr(one, name) for name in FIELDS] for one in found)
    assert compiled == plain
    ranges = [one.number_range(tensor.data_ptr(), tensor.numel(), layout) for one in SCANNERS]
    assert ranges[0] == ranges[1]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (torch.float32, [-math.inf, -2.5, -0.0, 0.0, 1e-40, 3.0, math.inf]),
        (torch.float64, [-1e300, -0.0, 0.0, 5e-324, 1e300]),
        (torch.float16, [-65504.0, -0.0, 6e-8, 1.5, 65504.0]),
        (torch.bfloat16, [-3e38, -0.0, 1.0, 3e38]),
        (torch.int8, [-128, -1, 0, 127]),
        (torch.uint8, [0, 1, 255]),
        (torch.int64, [-(2**63), 0, 2**63 - 1]),
    ],
)
def test_order_of_numbers(dtype: Any, values: list[float]) -> None:
    tensor = torch.tensor(values, dtype=dtype)
    layout = LAYOUTS[dtype]
    for scanner, (low, high) in itertools.product(
        SCANNERS, itertools.combinations(range(len(values)), 2)
    ):
        pair = tensor[[high, low]]
        found = scanner.number_range(pair.data_ptr(), 2, layout)
        assert found == (tensor[low].item(), tensor[high].item())


def test_ordered_integers_lead_back_to_numbers() -> None:
    assert ordered_to_number(-1, Layout(8)) == -1
    assert ordered_to_number(-128, Layout(8, -1)) == 0
    assert ordered_to_number(127, Layout(8, -1)) == 255
    assert math.copysign(1, ordered_to_number(-1, LAYOUTS[torch.float32])) == -1
    assert ordered_to_number(0x3F800000, LAYOUTS[torch.float32]) == 1.0
    assert math.isnan(bits_to_number(0x7E00, LAYOUTS[torch.float16]))
    assert bits_to_number(0x7C00, LAYOUTS[torch.float16]) == math.inf


def test_what_can_be_scanned_in_place() -> None:
    tensor = torch.randn(4, 6, 8)
    scanners = Scanners(SCANNERS[0])
    assert scanners.can_scan(tensor)
    assert scanners.can_scan(tensor.permute(2, 0, 1))
    assert scanners.can_scan(tensor[1:3])
    assert not scanners.can_scan(tensor[:, ::2])
    assert not scanners.can_scan(tensor[:, :, 1])
    assert not scanners.can_scan(torch.randn(4, 1).expand(4, 8))
    assert not scanners.can_scan(torch.empty(0))
    assert not scanners.can_scan(torch.eye(3).to_sparse())
    assert not scanners.can_scan(torch.zeros(3, dtype=torch.float8_e5m2))
    assert not scanners.can_scan(torch.zeros(3, device="meta"))
    channels_last = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert flat_memory(channels_last) is not None
    assert layout_of(torch.complex64) == Layout(32, 23, 127, 2)


def test_a_cache_is_used_again_and_no_compiler_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("there is no compiler")
    assert open_scanner(str(tmp_path)) is not None
    (library,) = tmp_path.glob("*.so")
    made = library.stat().st_mtime_ns
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert open_scanner(str(tmp_path)) is not None
    assert library.stat().st_mtime_ns == made
    assert open_scanner(str(tmp_path / "other")) is None


@pytest.mark.slow
def test_every_instruction_set_and_address_gives_the_same_scan(tmp_path: Path) -> None:
    """Without AVX2, and for memory that is not aligned to its elements."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or _compiled is None:
        pytest.skip("there is no compiler")
    library = str(tmp_path / "plain.so")
    assert compile_with(compiler, (), library)
    plain = CompiledScanner(ctypes.CDLL(library))
    numbers = torch.randn(20_000, dtype=torch.float64)
    memory = bytearray(bytes(8) + numbers.numpy().tobytes())
    for dtype, layout in LAYOUTS.items():
        for start in (0, 8, 9, 11):
            data = (ctypes.c_char * len(memory)).from_buffer(memory)
            address, length = ctypes.addressof(data) + start, 9_001
            words = ctypes.string_at(address, length * layout.per_number * layout.bits // 8)
            aligned = ctypes.create_string_buffer(words)
            expected = _compiled.scan(ctypes.addressof(aligned), address, length, layout)
            for scanner in (plain, _compiled):
                found = scanner.scan(address, ctypes.addressof(aligned), length, layout)
                assert bytes(found) == bytes(expected), (dtype, start)
                assert scanner.hash(address, length, layout) == expected.hash
                ranges = scanner.number_range(address, length, layout)
                limits = _compiled.number_range(ctypes.addressof(aligned), length, layout)
                assert repr(ranges) == repr(limits)
            assert expected.unchanged == expected.count


@BOTH
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_hash_and_the_count_of_a_number(scanner: Scanner, dtype: Any) -> None:
    """They equal a scan and a comparison, for lengths around the blocks of the scan."""
    layout = LAYOUTS[dtype]
    if layout.per_number != 1:
        return
    for length in (1, 3, 255, 513, 4099):
        tensor = torch.tensor([0.0, 1.0, -0.0, 2.0, 0.0]).repeat(length)[:length].to(dtype)
        address = tensor.data_ptr()
        assert scanner.hash(address, length, layout) == scan(scanner, tensor).hash
        scanners = Scanners(scanner)
        for number in (0, 1, 2):
            bits = bits_of(torch.tensor([number]).to(dtype))[0]
            assert scanners.count(tensor, layout, bits) == int(
                (tensor == torch.tensor(number).to(dtype)).sum()
            )


def test_elements_are_read_with_the_scan() -> None:
    """A sample has the same scan as without, and the bits at its places."""
    device = DeviceScanner(torch.device("cpu"))
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        tensor = torch.randn(40, 7).mul(3).to(dtype).t()
        places = [0, 1, 7, 123, 279]
        sampled, elements = device.scan_sampled(tensor, None, places)
        assert bytes(sampled) == bytes(device.scan(tensor))
        assert elements == [bits_of(tensor.t())[place] for place in places]
