"""Which runs count as made on the same machine."""

from __future__ import annotations

from typing import Any

import pytest

from torchyard.machine.identity import machine_name, machine_text

FACTS = {
    "architecture": "x86_64",
    "cpu": "AMD EPYC 9654 96-Core Processor",
    "cores": "96",
    "memory": "377.1 GiB",
    "kernel": "6.1.0",
    "governor": "performance",
    "load": "0.1 0.2 0.3",
}
CPU_STUDY = {"workloads": [{"suite": "kernels", "name": "matmul", "device": "cpu"}]}
GPU_STUDY = {"workloads": [{"suite": "kernels", "name": "matmul", "device": "cuda:1"}]}
H200 = {"new+default": {"devices": ["cpu", "cuda:0 NVIDIA H200"]}}


def info(**changes: Any) -> dict[str, Any]:
    """What `run.json` says of a run on the CPU."""
    return {"machine": FACTS, "owner": {"host": "one"}, "study": CPU_STUDY, "targets": {}} | changes


def facts(**changes: str) -> dict[str, Any]:
    return info(machine=FACTS | changes)


@pytest.mark.parametrize(
    "other",
    [
        info(owner={"host": "another"}),
        info(owner={}),
        facts(kernel="6.12.1", load="9 9 9", governor="powersave"),
        facts(memory="376.9 GiB"),
        info(targets={"t": {"torch": "2.9.0", "devices": ["cpu"]}}),
        info(targets=H200),
        info(machine={**FACTS, "tune": {"settings": []}}),
    ],
)
def test_equal_machines(other: dict[str, Any]) -> None:
    """Host, kernel, load and settings change on one machine; a GPU that is not used is no matter."""
    assert machine_name(other) == machine_name(info())


@pytest.mark.parametrize(
    "other",
    [
        facts(cpu="AMD EPYC 7763 64-Core Processor"),
        facts(cores="48"),
        facts(architecture="aarch64"),
        info(study=GPU_STUDY, targets=H200),
        info(machine={}),
    ],
)
def test_different_machines(other: dict[str, Any]) -> None:
    assert machine_name(other) != machine_name(info())


def test_gpus_count_when_they_are_used() -> None:
    def name(*devices: str) -> str:
        targets = {"t+default": {"devices": ["cpu", *devices]}}
        return machine_name(info(study=GPU_STUDY, targets=targets))

    assert name("cuda:0 NVIDIA H200").startswith("nvidia-h200-")
    assert name("cuda:0 NVIDIA H200") != name("cuda:0 NVIDIA H100")
    assert name("cuda:0 NVIDIA H200") != name("cuda:0 NVIDIA H200", "cuda:1 NVIDIA H200")
    assert name("cuda:0 A", "cuda:1 B") == name("cuda:0 B", "cuda:1 A")


def test_the_torch_that_sees_most_says_which_gpus_there_are() -> None:
    both = {"old+default": {"devices": ["cpu"]}, **H200}
    assert machine_name(info(study=GPU_STUDY, targets=both)) == machine_name(
        info(study=GPU_STUDY, targets=H200)
    )


@pytest.mark.parametrize(
    ("cpu", "beginning"),
    [
        ("AMD EPYC 9654 96-Core Processor", "amd-epyc-9654-96-core-96c-"),
        ("Intel(R) Xeon(R) Platinum 8480+", "intel-xeon-platinum-8480-96c-"),
        ("Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz", "intel-core-i7-8650u-96c-"),
        ("Arm implementer 0x41 part 0xd0c", "arm-0x41-0xd0c-96c-"),
        ("<script>alert('x')</script>", "script-alert-x-script-96c-"),
        ("../../etc/passwd\n\x1b[31m", "etc-passwd-31m-96c-"),
        ("x" * 500, "x" * 24 + "-96c-"),
    ],
)
def test_names_are_short_and_plain(cpu: str, beginning: str) -> None:
    name = machine_name(facts(cpu=cpu))
    assert name.startswith(beginning)
    assert len(name) == len(beginning) + 4


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"machine": None},
        {"machine": {"cpu": "unavailable, because cpuinfo: No such file or directory"}},
        {"machine": [], "targets": 3, "study": "x", "owner": []},
        {"machine": {}, "targets": {"a": 1}, "study": {"workloads": 3}},
    ],
)
def test_runs_without_the_information(broken: dict[str, Any]) -> None:
    assert machine_name(broken) == "unknown"
    assert machine_text(broken) == ""


def test_text_for_people() -> None:
    assert machine_text(info()) == "one: AMD EPYC 9654 96-Core Processor, 96 cores, 377.1 GiB"
    assert machine_text(facts(cores="1")).endswith("Processor, 1 core, 377.1 GiB")
    assert machine_text(info(targets=H200)).endswith("377.1 GiB; NVIDIA H200")
    two = {"t": {"devices": ["cpu", "cuda:0 NVIDIA T4", "cuda:1 NVIDIA T4"]}}
    assert machine_text(info(targets=two)).endswith("; 2 x NVIDIA T4")
    assert machine_text({"owner": {"host": "one"}}) == "one"
    arm = "Arm implementer 0x41 part 0xd0c"
    assert machine_text(facts(cpu=arm)).startswith("one: Arm Neoverse-N1, 96 cores")
    # The name that keeps histories apart does not change.
    assert machine_name(facts(cpu=arm)).startswith("arm-0x41-0xd0c-96c-")
    assert machine_text(facts(cpu="Arm implementer 0x41 part 0xfff")).startswith("one: Arm impl")


def test_a_name_stays_what_it_was() -> None:
    """Histories would break: another rule for names must be wanted."""
    assert machine_name(info()) == "amd-epyc-9654-96-core-96c-132e"
