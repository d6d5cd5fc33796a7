"""Only supported devices are accepted; others are refused before anything is measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchyard.bench.target_checks import check_seen
from torchyard.cli.main import run as run_command
from torchyard.core.variant_parts import PROFILED_DEVICES, check_device
from torchyard.errors import UsageError

BAD = [
    *(
        "meta",
        "meta:0",
        "cpu:3",
        "cpu:0",
        "gpu",
        "",
        " ",
        "CUDA",
        "cuda:",
        "cuda:-1",
        "cuda:01",
    ),
    *("cuda:1.5", "cuda:1000", "cuda:x", "cuda 1", " cuda", "cuda\n", "hip:0", "XPU", "2pu", "a b"),
]


@pytest.mark.parametrize("text", ["cpu", "cuda", "cuda:0", "cuda:1", "cuda:999", "xpu", "my_npu:7"])
def test_devices_that_a_target_may_have(text: str) -> None:
    assert check_device(text, where="--device") == text


@pytest.mark.parametrize("text", BAD)
def test_others_are_refused_with_a_reason_and_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_device(text, where="--device")
    assert caught.value.exit_code == 2
    assert repr(text) in caught.value.what
    assert caught.value.why
    assert "cuda:N" in caught.value.hint


@pytest.mark.parametrize("text", ["xpu", "mps:0", "my_npu"])
def test_profilers_refuse_what_they_cannot_profile(text: str) -> None:
    with pytest.raises(UsageError, match="cannot measure") as caught:
        check_device(text, where="--device", kinds=PROFILED_DEVICES)
    assert "cannot be profiled" in caught.value.why
    assert check_device("cuda:1", where="--device", kinds=PROFILED_DEVICES) == "cuda:1"


MEASURING = [
    ("bench", "--only", "kernels/matmul"),
    ("sweep", "run", "--suites", "kernels"),
    ("tune", "kernels/matmul"),
    ("batch-size", "kernels/mlp"),
    ("perf-test",),
    ("machine", "peak"),
]


@pytest.mark.parametrize("command", [*MEASURING, ("values", "sweep")])
@pytest.mark.parametrize("device", ["meta", "", "cpu:3"])
def test_every_command_refuses_them_before_it_keeps_anything(
    command: tuple[str, ...],
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert run_command([*command, "--device", device]) == 2
    assert "hint: use cpu, cuda or cuda:N" in capsys.readouterr().err
    assert list(tmp_path.rglob("*.json*")) == []


def test_a_device_of_a_study_file_is_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = tmp_path / "study.toml"
    study.write_text('[[workloads]]\nname = "kernels/matmul"\ndevice = "meta"\n')
    assert run_command(["bench", str(study), "--dry-run"]) == 2
    assert "'meta'" in capsys.readouterr().err


def test_an_index_beyond_the_last_card_is_refused_by_what_the_target_sees() -> None:
    facts = {"devices": ["cpu", "cuda:0 NVIDIA H200", "cuda:1 NVIDIA H200"]}
    for device in ("cpu", "cuda", "cuda:0", "cuda:1"):
        check_seen(device, facts)
    for device in ("cuda:2", "cuda:10", "cuda:99"):
        with pytest.raises(UsageError, match=f"'{device}' is not visible") as caught:
            check_seen(device, facts)
        assert "cuda:1 NVIDIA H200" in caught.value.why
    with pytest.raises(UsageError):
        check_seen("cuda", {"devices": ["cpu"]})
    with pytest.raises(UsageError):
        check_seen("cuda", {})


@pytest.mark.torch
@pytest.mark.parametrize(
    ("command", "device"),
    [(command, "xpu" if k % 2 else "cuda:99") for k, command in enumerate(MEASURING)],
)
def test_a_target_without_the_device_refuses_it_before_a_run_is_made(
    command: tuple[str, ...],
    device: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert run_command([*command, "--device", device]) == 2
    assert f"'{device}' is not visible to the target" in capsys.readouterr().err
    assert not list(tmp_path.rglob("run.json"))
