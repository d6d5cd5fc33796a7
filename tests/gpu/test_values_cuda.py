"""Values of tensors on a GPU: the fused scan equals the CPU scan, and the corpus is found."""

from __future__ import annotations

import pytest
import torch

from tests.values.corpus import CLEAN, PLANTED, Program
from tests.values.corpus.profiling import watch
from torchyard.worker.values.exchange import Options
from torchyard.worker.values.profiling_session import ProfilingSession
from torchyard.worker.values.scanning.cpu_scan import LAYOUTS, Scan, TorchScanner, open_scanner
from torchyard.worker.values.scanning.scanners import DeviceScanner, open_device_scanner

pytestmark = [pytest.mark.gpu, pytest.mark.torch]
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
DEVICE = torch.device("cuda", 0)
OTHER_OPERATORS = {"graph_as_a_dense_matrix", "transformer_of_torch"}
"""Their waste is elsewhere on a GPU: torch calls other operators there, and draws other numbers."""


def _drawn(dtype: torch.dtype, count: int) -> torch.Tensor:
    bits = torch.randint(0, 256, (count * 16,), dtype=torch.uint8)
    if dtype is torch.bool:
        return bits[:count] > 128
    return bits.view(dtype)[:count].clone()


def _numbers(scan: Scan) -> tuple[int, ...]:
    return scan.count, scan.zeros, scan.like_first, scan.unchanged, scan.any_bits, scan.first_bits


@pytest.mark.parametrize("scanner", [open_device_scanner(DEVICE), DeviceScanner(DEVICE)])
@pytest.mark.parametrize("dtype", list(LAYOUTS), ids=str)
def test_the_gpu_scan_equals_the_cpu_scan(scanner: DeviceScanner, dtype: torch.dtype) -> None:
    memory = open_scanner() or TorchScanner()
    torch.manual_seed(4)
    tensors = [_drawn(dtype, count) for count in (1, 7, 4096, 200_001)]
    tensors += [torch.zeros(70_000).to(dtype), torch.ones(5).to(dtype), _drawn(dtype, 4097)[1:]]
    there = [tensor.to(DEVICE) for tensor in tensors[:-1]]
    there.append(torch.cat([tensors[-1][:1], tensors[-1]]).to(DEVICE)[1:])
    earlier = [tensor.clone() for tensor in tensors]
    for tensor in earlier:
        tensor[::3] = tensor[0].clone()
    for here, gone, before in zip(tensors, there, earlier, strict=True):
        wanted = memory.scan(here.data_ptr(), before.data_ptr(), here.numel(), LAYOUTS[dtype])
        assert _numbers(scanner.scan(gone, before.to(DEVICE))) == _numbers(wanted)
    rows = scanner.rows(there)
    assert rows.shape == (len(there), 8)
    hashes = {
        (int(row[0]), int(row[1]), len(tensor)) for row, tensor in zip(rows, there, strict=True)
    }
    assert len(hashes) == len(there)
    assert torch.equal(scanner.rows([there[3].clone()])[0], rows[3])


def test_order_and_single_bits_change_the_hash() -> None:
    scanner = open_device_scanner(DEVICE)
    tensor = torch.randn(300_000, device=DEVICE)
    swapped = tensor.clone()
    swapped[[5, 250_000]] = swapped[[250_000, 5]]
    flipped = tensor.clone()
    flipped.view(torch.int32)[299_999] ^= 1
    moved = tensor.roll(1)
    found = {scanner.scan(one).hash for one in (tensor, swapped, flipped, moved)}
    assert len(found) == 4


@pytest.fixture
def _on_the_gpu() -> object:
    torch.set_default_device("cuda")
    yield
    torch.set_default_device("cpu")


@pytest.mark.usefixtures("_on_the_gpu")
@pytest.mark.parametrize(
    "program", [one for one in PLANTED if one.name not in OTHER_OPERATORS], ids=lambda one: one.name
)
def test_planted_waste_is_found_on_a_gpu(program: Program) -> None:
    try:
        outcome = watch(program)
    except RuntimeError as error:
        pytest.skip(f"does not run there: {str(error)[:80]}")
    missed = [waste for waste in outcome.missed if not waste.deep]
    assert not missed, [(one.pattern, one.operator, one.place.line) for one in outcome.findings]


@pytest.mark.usefixtures("_on_the_gpu")
@pytest.mark.parametrize("program", CLEAN, ids=lambda one: one.name)
def test_clean_programs_have_no_findings_on_a_gpu(program: Program) -> None:
    try:
        outcome = watch(program)
    except RuntimeError as error:
        pytest.skip(f"does not run there: {str(error)[:80]}")
    assert not outcome.others, [(one.pattern, one.operator) for one in outcome.others]


def _count(close_steps: int) -> dict[tuple[str, str], int]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(inplace=True), torch.nn.Linear(256, 256)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    session = ProfilingSession(Options(close_steps=close_steps, prove=False))
    session.start()
    for _ in range(10):
        given = torch.randn(64, 256, device="cuda")
        result = model(given) * 1.0 + torch.zeros(64, 256, device="cuda")
        optimizer.zero_grad(set_to_none=False)
        (result - given).square().mean().backward()
        optimizer.step()
    session.stop()
    return {(one.pattern, one.operator): one.count for one in session.findings.all()}


def test_surveyed_steps_count_what_fully_profiled_ones_count() -> None:
    closely = _count(0)
    assert closely
    assert _count(3) == closely
