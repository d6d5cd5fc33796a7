"""The GPU guard between blocks: selection of the card, readings, other processes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.machine.amd_cards import GPU_ID, AmdDriver, make_card
from tests.machine.gpu.test_nvidia import make_process
from tests.machine.nvml_cards import CARD, add_process, h200
from tests.machine.recorded_nvml import RecordedNvml
from torchyard.core.block import GuardReading
from torchyard.machine.gpu.library import GpuLibraries
from torchyard.machine.gpu.nvidia import nvml_handle
from torchyard.machine.guards.block_check import judge
from torchyard.machine.guards.gpu_guard import OTHER_PROCESSES_EVERY_S, GpuGuard, GpuReading
from torchyard.machine.system.file_tree import FileTree
from torchyard.process.timing_turn import DRIVER_VARIABLE
from torchyard.process.tree import CONTROLLER_VARIABLE, LAUNCH_VARIABLE, controller_mark


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def guard_of(
    nvml: RecordedNvml,
    root: Path,
    *,
    device: str = "cuda",
    clock: Clock | None = None,
    environment: Mapping[str, str] | None = None,
    counts_other_cells: bool = False,
) -> GpuGuard:
    return GpuGuard(
        device,
        libraries=GpuLibraries(nvml=nvml),
        files=FileTree(root),
        environment=environment or {},
        counts_other_cells=counts_other_cells,
        clock=clock or Clock(),
    )


def test_the_cpu_has_no_gpu_clock_and_says_so() -> None:
    guard = GpuGuard("cpu")
    assert guard.read() is None
    assert "not a CUDA device" in guard.why_not
    guard.close()


def test_a_machine_without_gpus_says_why(tmp_path: Path) -> None:
    guard = GpuGuard("cuda:99", files=FileTree(tmp_path))
    assert guard.read() is None
    assert guard.why_not


def test_the_recorded_card_idle_and_at_work(tmp_path: Path) -> None:
    assert guard_of(h200(), tmp_path).read() == GpuReading(
        sm_clock_mhz=345,
        throttle_reasons=(),
        temperature_c=37,
        power_w=78.402,
        other_processes=0,
    )
    busy = guard_of(h200("busy"), tmp_path).read()
    assert busy is not None
    assert busy.sm_clock_mhz == 1455
    assert busy.throttle_reasons == ("power cap",)
    assert busy.power_w == 688.593


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x1 | 0x2 | 0x10 | 0x100, ()),
        (0x4, ("power cap",)),
        (0x8 | 0x20, ("hardware slowdown", "software thermal")),
        (0x40 | 0x80, ("hardware thermal", "power brake")),
    ],
)
def test_only_what_holds_the_clock_down_counts(
    tmp_path: Path, bits: int, reasons: tuple[str, ...]
) -> None:
    nvml = h200()
    nvml.answer("nvmlDeviceGetCurrentClocksEventReasons", CARD, value=bits)
    reading = guard_of(nvml, tmp_path).read()
    assert reading is not None
    assert reading.throttle_reasons == reasons


def test_a_card_with_partial_readings(tmp_path: Path) -> None:
    nvml = h200()
    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetComputeRunningProcesses"):
        nvml.refuse(name, CARD)
    nvml.refuse("nvmlDeviceGetTemperatureV", CARD, 0)
    reading = guard_of(nvml, tmp_path).read()
    assert reading == GpuReading(sm_clock_mhz=345)


def test_a_card_that_falls_off_the_bus_is_not_asked_again(tmp_path: Path) -> None:
    nvml = h200()
    guard = guard_of(nvml, tmp_path)
    assert guard.read() is not None
    nvml.refuse("nvmlDeviceGetClockInfo", CARD, 1, code=15)
    nvml.refuse("nvmlDeviceGetCurrentClocksEventReasons", CARD, code=15)
    assert guard.read() is None
    assert guard.why_not == "NVML reports GPU is lost"
    nvml.answer("nvmlDeviceGetClockInfo", CARD, 1, value=345)
    assert guard.read() is None


def test_closing_shuts_the_library_down(tmp_path: Path) -> None:
    nvml = h200()
    guard = guard_of(nvml, tmp_path)
    guard.close()
    guard.close()
    assert nvml.running == 0
    assert guard.read() is None


ENERGY = "nvmlDeviceGetTotalEnergyConsumption"


def test_the_energy_counter_in_joules(tmp_path: Path) -> None:
    nvml = h200()
    guard = guard_of(nvml, tmp_path)
    nvml.answer(ENERGY, CARD, value=1_234_567)
    assert guard.read_energy_j().value == 1234.567
    nvml.refuse(ENERGY, CARD)
    refused = guard.read_energy_j()
    assert (refused.value, refused.because) == (None, "NVML reports Not Supported")
    guard.close()
    assert guard.read_energy_j().because


def test_where_no_counter_is_read_the_reason_is_reported(tmp_path: Path) -> None:
    assert "not a CUDA device" in GpuGuard("cpu").read_energy_j().because
    assert GpuGuard("cuda:99", files=FileTree(tmp_path)).read_energy_j().because


class TestOtherProcesses:
    """Processes of others, and how often they are looked for."""

    @pytest.mark.parametrize(
        ("pid", "parent", "busy", "refusal", "others"),
        [
            pytest.param(60, 1, 40, None, 1, id="one that computes"),
            pytest.param(60, 1, 0, None, 0, id="one that only holds memory"),
            pytest.param(60, 1, None, 6, 0, id="a driver that has no samples of anybody"),
            pytest.param(60, 1, None, 3, 1, id="a driver that cannot tell who computes"),
            pytest.param(61, os.getpid(), 99, None, 0, id="our own worker"),
            pytest.param(4711, None, 99, None, None, id="not visible, and not guessed"),
        ],
    )
    def test_who_counts(
        self,
        tmp_path: Path,
        pid: int,
        parent: int | None,
        busy: int | None,
        refusal: int | None,
        others: int | None,
    ) -> None:
        nvml = h200()
        if busy is None:
            add_process(nvml, pid)
        else:
            add_process(nvml, pid, busy=busy)
        if parent is not None:
            make_process(tmp_path, pid, parent)
        if refusal is not None:
            nvml.refuse("nvmlDeviceGetProcessUtilization", CARD, 0, code=refusal)
        reading = guard_of(nvml, tmp_path).read()
        assert reading is not None
        assert reading.other_processes == others

    @pytest.mark.parametrize(("counts", "others"), [(True, 1), (False, 0)])
    def test_workers_of_other_cells_count_beside_reserved_cores(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: bool, others: int
    ) -> None:
        """Workers of all cells descend from templates of the driver; a mark tells whose they are."""
        monkeypatch.setenv(DRIVER_VARIABLE, "77")
        program = [sys.executable, "-c", "import time; time.sleep(600)"]
        marks = [controller_mark(), controller_mark().replace(str(os.getpid()), "1", 1)]
        nvml = h200()
        workers = [
            subprocess.Popen(
                program, env={**os.environ, LAUNCH_VARIABLE: "m", CONTROLLER_VARIABLE: mark}
            )
            for mark in marks
        ]
        try:
            for worker in workers:
                add_process(nvml, worker.pid, busy=50)
                make_process(tmp_path, worker.pid, 77)
            samples = [
                SimpleNamespace(pid=worker.pid, timeStamp=1, smUtil=50) for worker in workers
            ]
            nvml.answer("nvmlDeviceGetProcessUtilization", CARD, 0, value=samples)
            make_process(tmp_path, 77, 1)
            guard = guard_of(nvml, tmp_path, counts_other_cells=counts)
            reading = guard.read()
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        assert reading is not None
        assert reading.other_processes == others

    def test_a_new_launch_asks_at_once(self, tmp_path: Path) -> None:
        nvml = h200()
        guard = guard_of(nvml, tmp_path)
        guard.read()
        add_process(nvml, 60, busy=40)
        make_process(tmp_path, 60, 1)
        before = guard.read()
        guard.begin_launch()
        after = guard.read()
        assert before is not None
        assert after is not None
        assert (before.other_processes, after.other_processes) == (0, 1)

    def test_other_processes_are_polled_at_intervals(self, tmp_path: Path) -> None:
        nvml = h200()
        clock = Clock()
        guard = guard_of(nvml, tmp_path, clock=clock)
        guard.read()
        add_process(nvml, 60, busy=40)
        make_process(tmp_path, 60, 1)
        clock.now_s += OTHER_PROCESSES_EVERY_S / 2
        soon = guard.read()
        clock.now_s += OTHER_PROCESSES_EVERY_S
        later = guard.read()
        assert soon is not None
        assert later is not None
        assert (soon.other_processes, later.other_processes) == (0, 1)

    def test_a_block_during_computation_of_another_process_is_dirty(self) -> None:
        shared = GuardReading(other_gpu_processes=1)
        alone = GuardReading(other_gpu_processes=0)
        assert judge(shared, wall_ns=10**8, samples=20, threads=1) == (
            "others computed on the GPU",
        )
        assert judge(alone, wall_ns=10**8, samples=20, threads=1) == ()


class TestWhichGpu:
    """Torch's number and NVML's."""

    @pytest.mark.parametrize(
        ("device", "visible", "handle"),
        [
            ("cuda", None, "gpu0"),
            ("cuda:1", None, "gpu1"),
            ("cuda:1", "", "gpu1"),
            ("cuda:0", "3", "gpu3"),
            ("cuda:1", "2,0", "gpu0"),
            ("cuda:1", "2, 1", "gpu1"),
            ("cuda", "GPU-00000000-0000-0000-0000-000000000003", "gpu2"),
        ],
    )
    def test_the_card_is_found(self, device: str, visible: str | None, handle: str) -> None:
        environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        assert nvml_handle(h200(cards=4), device, environment).value == handle

    @pytest.mark.parametrize(
        ("device", "visible"),
        [
            ("cuda:1", "2"),
            ("cuda", "GPU-af31"),
            ("cuda", "GPU-00000000"),
            ("cuda", "MIG-2b3d"),
            ("cuda", "-1"),
        ],
    )
    def test_an_ambiguous_card_is_not_guessed(self, device: str, visible: str) -> None:
        handle = nvml_handle(h200(cards=4), device, {"CUDA_VISIBLE_DEVICES": visible})
        assert handle.value is None
        assert "CUDA_VISIBLE_DEVICES" in handle.because

    def test_a_number_beyond_the_last(self) -> None:
        assert nvml_handle(h200(), "cuda:9", {}).because == "NVML reports Invalid Argument"

    def test_cards_of_several_types_are_counted_by_speed(self) -> None:
        nvml = h200(cards=2)
        nvml.answer("nvmlDeviceGetName", "gpu1", value="Tesla T4")
        assert "CUDA_DEVICE_ORDER" in nvml_handle(nvml, "cuda:1", {}).because
        ordered = nvml_handle(nvml, "cuda:1", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
        assert ordered.value == "gpu1"

    def test_the_guard_says_why(self, tmp_path: Path) -> None:
        guard = guard_of(h200(), tmp_path, environment={"CUDA_VISIBLE_DEVICES": "MIG-1"})
        assert guard.read() is None
        assert "MIG-1" in guard.why_not


class TestAmd:
    """ROCm's torch says `cuda`, too."""

    def guard(self, files: FileTree) -> GpuGuard:
        return GpuGuard("cuda", libraries=GpuLibraries(nvml_because="no NVIDIA"), files=files)

    def test_one_card(self, tmp_path: Path) -> None:
        guard = self.guard(AmdDriver("mi300x", tmp_path))
        assert guard.why_not == ""
        assert guard.read() == GpuReading(
            sm_clock_mhz=800, temperature_c=41, power_w=139.0, other_processes=0
        )
        guard.close()
        assert guard.read() is None

    def test_several_cards_are_not_guessed(self, tmp_path: Path) -> None:
        make_card("mi300x", tmp_path)
        (tmp_path / "sys/class/drm/card0/device/vendor").write_text("0x1002\n")
        guard = self.guard(FileTree(tmp_path))
        assert guard.read() is None
        assert "several AMD GPUs" in guard.why_not

    def test_none(self, tmp_path: Path) -> None:
        assert self.guard(FileTree(tmp_path)).why_not == "no NVIDIA"

    def test_without_amdsmi_throttling_is_unknown_and_not_absent(self, tmp_path: Path) -> None:
        guard = self.guard(AmdDriver("mi300x", tmp_path))
        assert guard.why_no_reasons == "the Python package amdsmi of ROCm is not installed"
        assert guard.read_energy_j().because == guard.why_no_reasons

    @pytest.mark.parametrize(
        ("busy", "others"), [("7", 1), ("0", 0), (None, 1)], ids=["computes", "idle", "old kernel"]
    )
    def test_other_processes(self, tmp_path: Path, busy: str | None, others: int) -> None:
        driver = AmdDriver("mi300x", tmp_path)
        for pid, parent in ((os.getpid(), 1), (4711, 1)):
            driver.add_process(pid, 2**30)
            make_process(tmp_path, pid, parent=parent)
        if busy is not None:
            path = tmp_path / f"sys/class/kfd/kfd/proc/4711/stats_{GPU_ID}/cu_occupancy"
            path.parent.mkdir(parents=True)
            path.write_text(busy + "\n")
        reading = self.guard(driver).read()
        assert reading is not None
        assert reading.other_processes == others

    @pytest.mark.parametrize(
        ("metrics", "reasons"),
        [
            ({"indep_throttle_status": 0}, ()),
            ({"indep_throttle_status": 1 << 0 | 1 << 36}, ("power cap", "hardware thermal")),
            ({"indep_throttle_status": 1 << 47}, ("hardware slowdown",)),
            ({"indep_throttle_status": "N/A", "throttle_status": "N/A"}, ()),
        ],
    )
    def test_throttle_status(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        metrics: dict[str, Any],
        reasons: tuple[str, ...],
    ) -> None:
        with_amdsmi(monkeypatch, tmp_path / "rocm", metrics)
        guard = self.guard(AmdDriver("mi200", tmp_path / "machine"))
        reading = guard.read()
        assert reading is not None
        assert reading.throttle_reasons == reasons
        supported = metrics["indep_throttle_status"] != "N/A"
        assert bool(guard.why_no_reasons) is not supported
        guard.close()

    def test_counters_of_mi300_tell_what_held_the_clock_since_the_last_reading(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        metrics: dict[str, Any] = {
            "indep_throttle_status": "N/A",
            "prochot_residency_acc": 0,
            "ppt_residency_acc": 900,
            "socket_thm_residency_acc": 12,
            "vr_thm_residency_acc": 0,
            "hbm_thm_residency_acc": "N/A",
        }
        library = with_amdsmi(monkeypatch, tmp_path / "rocm", metrics)
        guard = self.guard(AmdDriver("mi300x", tmp_path / "machine"))
        first = guard.read()
        assert first is not None
        assert first.throttle_reasons == (), "what happened before the run does not count"
        library.METRICS["socket_thm_residency_acc"] = 15
        second, third = guard.read(), guard.read()
        assert second is not None
        assert second.throttle_reasons == ("hardware thermal",)
        assert third is not None
        assert third.throttle_reasons == ()
        assert guard.read_energy_j().value == pytest.approx(1.5259)
        guard.close()
        assert library.CLOSED == [True]

    def test_card_that_amdsmi_does_not_list(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        library = with_amdsmi(monkeypatch, tmp_path / "rocm", {}, address="0000:01:00.0")
        guard = self.guard(AmdDriver("mi300x", tmp_path / "machine"))
        assert "does not list the card at 0000:83:00.0" in guard.why_no_reasons
        assert library.CLOSED == [True]


AMDSMI = """
METRICS, ADDRESS, CLOSED = {metrics!r}, {address!r}, []
def amdsmi_init(): pass
def amdsmi_shut_down(): CLOSED.append(True)
def amdsmi_get_processor_handles(): return ["handle"]
def amdsmi_get_gpu_device_bdf(handle): return ADDRESS
def amdsmi_get_gpu_metrics_info(handle): return dict(METRICS)
def amdsmi_get_energy_count(handle):
    return dict(energy_accumulator=100000, counter_resolution=15.259, timestamp=1)
"""


def with_amdsmi(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    metrics: dict[str, Any],
    address: str = "0000:83:00.0",
) -> Any:
    """Return an installed package `amdsmi` that answers as release 7 does for one card."""
    folder.mkdir()
    (folder / "amdsmi.py").write_text(AMDSMI.format(metrics=metrics, address=address))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    library = importlib.import_module("amdsmi")
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    return library
