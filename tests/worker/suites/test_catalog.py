"""The catalog imports no torch, and matches the suites."""

import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.worker import catalog, suites
from torchyard.worker.suites import choices

ENTRIES = [(suite, entry) for suite, entries in catalog.SUITES.items() for entry in entries]


def test_catalogue_and_choices_do_not_import_torch() -> None:
    code = (
        "import sys, torchyard.worker.catalog, torchyard.worker.suites;"
        "from torchyard.worker.suites import choices;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_suite_is_in_the_catalogue() -> None:
    assert set(suites.MODULES) == set(catalog.SUITES) | set(catalog.OPEN_SUITES)


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
