"""A short real measurement of the peak of this machine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.bench.roofline.machine_peak import PeakRequest, machine_of, measure_peak
from torchyard.core.events import Event
from torchyard.core.study import Target
from torchyard.errors import MissingTool, UsageError
from torchyard.machine.system.cores import available_cores

HERE = Target(name="here", python=sys.executable)
BRIEF = PeakRequest(target=HERE, threads=1, duration_factor=0.02, longest_call_s=0.002)


@pytest.mark.torch
def test_a_brief_peak() -> None:
    events: list[Event] = []
    peak = measure_peak(BRIEF, listener=events.append)
    assert (peak.device, peak.precision, peak.threads) == ("cpu", "float32", 1)
    assert peak.flops_per_second == max(one.flops_per_second for one in peak.products)
    assert 1e8 < peak.flops_per_second < 1e13
    assert 1e8 < peak.bytes_per_second < 1e13
    largest = max(one.working_set_bytes for one in peak.streams)
    beyond = [one.bytes_per_second for one in peak.streams if one.working_set_bytes == largest]
    assert largest >= 2**27
    assert peak.bytes_per_second == max(beyond)
    assert {one.kind for one in peak.streams} == {"copy", "triad"}
    sizes = [one.size for one in peak.products]
    assert sizes == sorted(sizes)
    assert sizes[0] == 128
    assert peak.torch_version
    assert peak.machine != "unknown"
    fractions = [event.fraction for event in events if event.fraction is not None]
    assert fractions == sorted(fractions)
    assert 0 <= fractions[0] < fractions[-1] < 1


@pytest.mark.torch
def test_a_device_that_the_target_does_not_see() -> None:
    with pytest.raises(UsageError) as caught:
        measure_peak(replace(BRIEF, device="xpu"))
    assert "'xpu'" in caught.value.what
    assert "cpu" in caught.value.why


def test_an_interpreter_without_torch_is_a_missing_tool(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(MissingTool) as caught:
        measure_peak(replace(BRIEF, target=Target(name="bare", python=str(python))))
    assert "--target" in caught.value.hint


def test_threads_matter_on_the_processor_only() -> None:
    assert PeakRequest(target=HERE).threads_used == available_cores()
    assert PeakRequest(target=HERE, threads=3).threads_used == 3
    assert PeakRequest(target=HERE, device="cuda:1", threads=3).threads_used == 0
    assert PeakRequest(target=HERE, device="cuda:1").kind == "cuda"


def test_the_name_is_that_of_a_run_on_the_canonical_device() -> None:
    facts = {"architecture": "aarch64", "cpu": "Example 9000", "cores": "4"}
    hello = {"devices": ["cpu", "cuda:0 NVIDIA H200"]}
    assert machine_of(facts, hello, "cpu").startswith("example-9000-4c-")
    assert machine_of(facts, hello, "cuda").startswith("nvidia-h200-")
    assert machine_of(facts, hello, "cpu") == machine_of(facts, {"devices": ["cpu"]}, "cpu")
