"""The NVML boundary: reasons for its absence, and exactly one shutdown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.machine.nvml_cards import h200
from tests.machine.recorded_nvml import NvmlRefuses, RecordedNvml
from torchyard.machine.gpu.library import GpuLibraries, ask, open_gpu_libraries
from torchyard.machine.system.file_tree import Answer, FileTree


class RunningMachine(FileTree):
    """A folder that says it is the machine itself."""

    @property
    def live(self) -> bool:
        return True


def test_a_copy_of_a_machine_has_no_library(tmp_path: Path) -> None:
    opened = open_gpu_libraries(FileTree(tmp_path))
    assert opened.nvml is None
    assert str(tmp_path) in opened.nvml_because


def test_without_the_package_and_without_a_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpu_libraries(RunningMachine(tmp_path)).nvml_because == "no NVIDIA driver is loaded"


def test_with_a_driver_the_missing_package_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    opened = open_gpu_libraries(RunningMachine(tmp_path))
    assert opened.nvml is None
    assert "torchyard[nvidia]" in opened.nvml_because


def test_a_driver_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = h200()

    def refuse() -> None:
        raise NvmlRefuses(9)

    monkeypatch.setattr(nvml, "nvmlInit", refuse)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    opened = open_gpu_libraries(RunningMachine(tmp_path))
    assert opened.nvml is None
    assert "NVML cannot be initialized" in opened.nvml_because


def test_it_is_shut_down_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a library that somebody else uses, too
    nvml = h200()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    # WHEN it is opened and closed twice
    with open_gpu_libraries(RunningMachine(tmp_path)) as opened:
        assert nvml.running == 2
    opened.close()
    # THEN the other one's use is left
    assert nvml.running == 1


def test_a_library_that_is_gone_closes_quietly() -> None:
    nvml = h200()
    nvml.running = 0
    GpuLibraries(nvml=nvml).close()
    GpuLibraries(nvml_because="none").close()


class TestAsking:
    """One question under several names."""

    def test_the_first_name_that_is_known(self) -> None:
        assert ask(h200(), "nvmlDeviceGetName", of=("gpu0",)).value == "NVIDIA H200"

    def test_a_name_that_the_package_lacks(self) -> None:
        nvml = h200()
        nvml.forget("nvmlDeviceGetTemperatureV")
        names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        assert ask(nvml, *names, of=("gpu0", 0)) == Answer(value=37)

    def test_a_name_that_the_driver_lacks(self) -> None:
        nvml = h200()
        nvml.refuse("nvmlDeviceGetTemperatureV", "gpu0", 0, code=13)
        names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        assert ask(nvml, *names, of=("gpu0", 0)) == Answer(value=37)

    def test_another_refusal_ends_the_search(self) -> None:
        nvml = h200()
        nvml.refuse("nvmlDeviceGetTemperatureV", "gpu0", 0, code=15)
        names = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
        answer = ask(nvml, *names, of=("gpu0", 0))
        assert answer == Answer(because="NVML reports GPU is lost", code=15)

    def test_no_name_is_known(self) -> None:
        nvml: RecordedNvml = h200()
        nvml.forget("nvmlDeviceGetName")
        answer = ask(nvml, "nvmlDeviceGetName", of=("gpu0",))
        assert answer.value is None
        assert "nvmlDeviceGetName is not in this release" in answer.because

    def test_a_reason_stays_when_the_form_changes(self) -> None:
        none: Answer[int] = Answer(because="why", code=3)
        assert none.map(str) == Answer(because="why", code=3)
        assert Answer(value=3).map(str) == Answer(value="3")
