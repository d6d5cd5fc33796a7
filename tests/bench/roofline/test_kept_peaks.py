"""Stored peaks: lookup, safe file names, damaged files."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.sample_records import made_peak
from torchyard.bench.roofline.machine_peak import (
    FORMAT,
    age_days,
    find_peak,
    peak_path,
    peaks_home,
    read_peaks,
    write_peak,
)
from torchyard.core.roofline import MachinePeak, ProductRate, StreamRate
from torchyard.errors import NotAllowed, StepFailed

PEAK = made_peak(
    1e11,
    2e10,
    threads=2,
    products=(ProductRate(size=512, flops_per_second=1e11),),
    streams=(StreamRate(kind="copy", working_set_bytes=2**27, bytes_per_second=2e10),),
    notes=("a note",),
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    return tmp_path


def found(
    *,
    machine: str = "example-2c-abcd",
    device: str = "cpu",
    precision: str = "float32",
    threads: int = 2,
    torch_version: str = "",
) -> MachinePeak | None:
    return find_peak(machine, device, precision, threads, torch_version=torch_version)


def test_what_is_written_is_read() -> None:
    assert read_peaks() == []
    path = write_peak(PEAK)
    assert path == peak_path(PEAK)
    assert path.parent == peaks_home()
    assert read_peaks() == [PEAK]


def test_a_peak_is_found_by_everything_that_sets_it() -> None:
    write_peak(PEAK)
    assert found() == PEAK
    assert found(machine="other") is None
    assert found(device="cuda") is None
    assert found(precision="bfloat16") is None
    assert found(threads=1) is None


def test_the_same_torch_comes_first_and_another_one_is_better_than_none() -> None:
    newer = replace(PEAK, torch_version="2.10.0", measured="2026-02-01T00:00:00+00:00")
    write_peak(PEAK)
    write_peak(newer)
    assert len(read_peaks()) == 2
    assert found(torch_version="2.9.0") == PEAK
    assert found(torch_version="2.10.0") == newer
    assert found(torch_version="1.0") == newer
    assert found() == newer


def test_a_new_measurement_replaces_the_old_one() -> None:
    write_peak(PEAK)
    again = replace(PEAK, measured="2026-03-01T00:00:00+00:00", flops_per_second=1.2e11)
    write_peak(again)
    assert read_peaks() == [again]


def test_the_first_gpu_has_two_names() -> None:
    gpu = replace(PEAK, device="cuda", threads=0)
    write_peak(gpu)
    assert found(device="cuda:0", threads=0) == gpu
    assert found(device="cuda", threads=0) == gpu
    assert found(device="cuda:1", threads=0) is None
    assert peak_path(gpu) == peak_path(replace(gpu, device="cuda:0"))


def test_names_from_outside_stay_in_the_folder() -> None:
    hostile = replace(PEAK, machine="../../etc/passwd\n\x00 " + "x" * 500, torch_version="../2")
    path = write_peak(hostile)
    assert path.parent == peaks_home()
    assert len(path.name) < 100
    assert read_peaks() == [hostile]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        '{"format": 1}',
        '{"format": 1, "peak": {"machine": "x"}}',
        '{"format": "x", "peak": {}}',
        "[" * 100_000,
    ],
)
def test_damaged_files_are_ignored(text: str) -> None:
    write_peak(PEAK)
    (peaks_home() / "a-damaged.json").write_text(text)
    assert read_peaks() == [PEAK]


def test_peaks_of_a_newer_format_or_without_a_rate_are_left_alone() -> None:
    path = write_peak(PEAK)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "format": FORMAT + 1}))
    assert read_peaks() == []
    document["peak"]["flops_per_second"] = 0.0
    path.write_text(json.dumps(document))
    assert read_peaks() == []


def test_keys_of_a_newer_version_are_skipped() -> None:
    path = write_peak(PEAK)
    document = json.loads(path.read_text())
    document["peak"]["colour"] = "blue"
    path.write_text(json.dumps(document))
    assert read_peaks() == [PEAK]


def test_age() -> None:
    now = datetime(2026, 1, 12, 3, 4, 5, tzinfo=UTC)
    assert age_days(PEAK, now) == pytest.approx(10.0)
    assert age_days(replace(PEAK, measured="2026-01-02T03:04:05"), now) == pytest.approx(10.0)
    assert age_days(replace(PEAK, measured="soon"), now) == float("inf")


def test_a_results_directory_that_is_a_file_is_an_error_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("TORCHYARD_HOME", str(blocked))
    with pytest.raises((StepFailed, NotAllowed)) as caught:
        write_peak(PEAK)
    assert caught.value.hint
    assert read_peaks() == []
