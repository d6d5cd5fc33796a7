"""The GPU's clock: which GPU is meant, and why there is no answer."""

from __future__ import annotations

import pytest

from torchyard.measure.gpu_clock import GpuClock, _physical_index


def test_the_cpu_has_no_gpu_clock_and_says_so() -> None:
    clock = GpuClock("cpu")
    assert clock.read() is None
    assert "not a CUDA device" in clock.why_not


@pytest.mark.parametrize(
    ("index", "visible", "physical"),
    [(1, None, 1), (1, "", 1), (0, "3", 3), (1, "2,0", 0), (1, "2", None), (0, "GPU-af31", None)],
)
def test_torchs_index_is_turned_into_nvmls(
    index: int, visible: str | None, physical: int | None
) -> None:
    assert _physical_index(index, visible) == physical


def test_gpus_shown_by_name_are_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-af31")
    clock = GpuClock("cuda")
    assert clock.read() is None
    assert "CUDA_VISIBLE_DEVICES" in clock.why_not
