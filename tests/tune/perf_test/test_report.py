"""A performance test as text: operators, and kernels counted once."""

from __future__ import annotations

from dataclasses import replace

from torchyard.profile.model import CostRow, sum_of_costs
from torchyard.tune.perf_test.measurement import OperatorRow, OperatorTable, PerfTest
from torchyard.tune.perf_test.report import perf_text

LONG = "void cutlass::Kernel2<" + 30 * "cutlass_80_simt_sgemm, " + ">(Params)"
ADD = OperatorRow(
    name="aten::add\x1b[31m",
    calls=20,
    self_cost=2e6,
    total_cost=3e6,
    self_device_cost=1e6,
    total_device_cost=1e6,
)
LINEAR = OperatorRow(
    name="aten::addmm",
    calls=60,
    self_cost=1e6,
    total_cost=4e6,
    self_device_cost=3e6,
    total_device_cost=3e6,
)
LAUNCH = OperatorRow(name="cudaLaunchKernel", calls=80, self_cost=1e6, total_cost=1e6)
KERNELS = (
    OperatorRow(
        name="add_kernel",
        calls=20,
        on_device=True,
        self_cost=0.0,
        total_cost=0.0,
        self_device_cost=1e6,
    ),
    OperatorRow(
        name=LONG, calls=60, on_device=True, self_cost=0.0, total_cost=0.0, self_device_cost=3e6
    ),
)


def shown(*rows: OperatorRow, width: int = 120) -> list[str]:
    table = OperatorTable(workload="kernels/mlp", variant="current", iterations=20, rows=rows)
    test = PerfTest(comparisons=(), tables=(table,), peak=None, peak_why_not="no peak")
    text = perf_text(test, width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    return [" ".join(line.split()) for line in text.splitlines()]


def test_on_a_gpu_operators_and_kernels_have_tables_of_their_own() -> None:
    lines = shown(ADD, LINEAR, LAUNCH, *KERNELS)
    cpu = "operator calls self CPU self % CPU total total % CPU avg"
    at = lines.index(f"{cpu} self GPU self % GPU total")
    cells = "60 1.00 ms 25.0% 4.00 ms 100.0% 66.7 µs 3.00 ms 75.0% 3.00 ms"
    assert lines[at + 1] == f"aten::addmm {cells}"
    assert lines[at + 2].startswith("aten::add 20")
    assert lines[at + 3].startswith("cudaLaunchKernel 80")
    assert lines[at + 4] == "self CPU time total: 4.00 ms (200 µs per iteration)"
    kernels = lines.index("kernel calls GPU share")
    assert lines[kernels + 1].startswith("void cutlass::Kernel2<cutlass_80_simt_sgemm,...")
    assert lines[kernels + 1].endswith(" 60 3.00 ms 75.0%")
    assert lines[kernels + 2] == "add_kernel 20 1.00 ms 25.0%"


def test_on_a_cpu_there_is_nothing_of_a_gpu() -> None:
    rows = [replace(row, self_device_cost=0.0, total_device_cost=0.0) for row in (ADD, LINEAR)]
    lines = shown(*rows, replace(LAUNCH, name=LONG), width=80)
    at = lines.index("operator calls self CPU self % CPU total total % CPU avg")
    assert lines[at + 1] == "aten::add 20 2.00 ms 50.0% 3.00 ms 75.0% 150 µs"
    assert lines[at + 4] == "self CPU time total: 4.00 ms (200 µs per iteration)"
    assert not any("GPU" in line or "kernel " in line for line in lines)


def test_the_time_of_a_kernel_counts_once_though_its_operator_has_it_too() -> None:
    operator = CostRow(name="aten::add", self_cost=2.0, self_device_cost=5.0)
    kernel = CostRow(name="add_kernel", on_device=True, self_device_cost=5.0)
    graph = CostRow(name="replayed", on_device=True, self_device_cost=1.0)
    assert sum_of_costs([operator, kernel]) == 7.0
    assert sum_of_costs([operator, kernel, graph]) == 8.0
    assert sum_of_costs([operator]) == 7.0
