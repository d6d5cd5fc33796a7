"""The catalog imports no torch, and matches the suites; default batch sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchyard.worker import catalog, suites
from torchyard.worker.catalog.entry import BOTH, SCRIPT_SUITE, ListedWorkload
from torchyard.worker.suites import choices

pytestmark = pytest.mark.torch

ENTRIES = [(suite, entry) for suite, entries in catalog.SUITES.items() for entry in entries]


def test_catalogue_and_choices_do_not_import_torch() -> None:
    code = (
        "import sys, torchyard.worker.catalog, torchyard.worker.suites;"
        "from torchyard.worker.suites import choices;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_suite_is_in_the_catalogue() -> None:
    # Training scripts run in a service of their own.
    own = {SCRIPT_SUITE}
    assert set(suites.MODULES) | own == set(catalog.SUITES) | set(catalog.OPEN_SUITES)


def test_names_are_unique_and_described() -> None:
    labels = [f"{suite}/{entry.name}" for suite, entry in ENTRIES]
    assert len(labels) == len(set(labels))
    assert all(entry.about and entry.modes for _, entry in ENTRIES)


@pytest.mark.torch
@pytest.mark.parametrize("suite", catalog.SUITES)
def test_a_suite_lists_what_the_catalogue_says(suite: str) -> None:
    assert suites.names(suite) == [entry.name for entry in catalog.SUITES[suite]]


@pytest.mark.torch
def test_user_files_cannot_be_listed() -> None:
    assert suites.names("file") == []


def test_entry_of_finds_only_what_is_there() -> None:
    found = catalog.entry_of("kernels", "matmul")
    assert found is not None
    assert found.parameters == {"size": 1000}
    assert catalog.entry_of("kernels", "resnet") is None
    assert catalog.entry_of("huggingface", "BertForMaskedLM") is None


def test_parameters_override_defaults() -> None:
    chosen = choices.choose("kernels", "conv2d", "inference", None, {"size": 7})
    assert chosen.batch_size == 4
    assert (chosen["size"], chosen["channels"]) == (7, 64)
    assert choices.choose("kernels", "conv2d", "training", 9, {}).rows == 9


def test_parameters_do_not_change_the_catalogue() -> None:
    choices.choose("kernels", "matmul", "inference", None, {"size": 3})
    assert choices.choose("kernels", "matmul", "inference", None, {})["size"] == 1000


@pytest.mark.parametrize(("suite", "entry"), ENTRIES, ids=[entry.name for _, entry in ENTRIES])
def test_reference_page_matches_the_catalogue(suite: str, entry: catalog.Entry) -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "reference" / "workloads.md").read_text(encoding="utf-8")
    defaults = ", ".join(f"`{key}={value}`" for key, value in entry.parameters.items())
    batch = f"{entry.batch_size or ''} ".lstrip()
    assert f"| `{entry.name}` | {entry.about} | {batch}| {defaults} |" in page


def test_only_optimizer_steps_cannot_be_trained() -> None:
    without = [entry.name for _, entry in ENTRIES if "training" not in entry.modes]
    assert without
    assert all(name.endswith("-step") for name in without)
    assert all("inference" in entry.modes for _, entry in ENTRIES)


LISTED = ListedWorkload("x", BOTH, "x", 128, 32)
GIGABYTE = 10**9


def chosen(listed: ListedWorkload | None, device: str, otherwise: int = 8) -> int:
    from torchyard.worker.suites.choices import batch_size_for

    return batch_size_for(listed, device, otherwise)


@pytest.mark.parametrize(
    ("batch_size", "part", "share"),
    [
        (128, 1.0, 128),
        (128, 3.5, 128),
        (128, 0.5, 64),
        (128, 0.6, 64),
        (100, 0.99, 64),
        (5, 0.5, 2),
        (1, 0.01, 1),
        (3, 0.0, 1),
    ],
)
def test_shares_are_powers_of_two(batch_size: int, part: float, share: int) -> None:
    from torchyard.worker.suites.choices import share_of

    assert share_of(batch_size, part) == share


@pytest.mark.parametrize(("cores", "size"), [(64, 32), (32, 32), (16, 16), (2, 2), (1, 1)])
def test_on_a_cpu_by_the_cores_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, cores: int, size: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert chosen(LISTED, "cpu") == size


@pytest.mark.parametrize(("memory_gb", "size"), [(140, 128), (42, 128), (24, 64), (8, 16)])
def test_on_a_gpu_by_its_memory(monkeypatch: pytest.MonkeyPatch, memory_gb: int, size: int) -> None:
    from torchyard.worker import devices

    properties = SimpleNamespace(total_memory=memory_gb * GIGABYTE)
    monkeypatch.setattr(devices._torch_cuda, "get_device_properties", lambda _: properties)
    assert chosen(LISTED, "cuda") == chosen(LISTED, "cuda:0") == size


def test_what_is_not_listed_and_what_only_the_other_list_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    assert chosen(None, "cpu", 5) == 5
    assert chosen(LISTED._replace(cpu_batch_size=None), "cpu") == 128


def test_a_built_workload_says_its_batch_size() -> None:
    assert suites.build("kernels", "conv2d", parameters={"size": 7}).batch_size == 4
    assert suites.build("kernels", "conv2d", batch_size=3, parameters={"size": 7}).batch_size == 3
    assert suites.build("kernels", "matmul", parameters={"size": 7}).batch_size is None
