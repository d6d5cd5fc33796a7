"""Several shapes in one text: lists, ranges, combinations, and typing errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.bench.request import SpecText, WorkloadChoice
from torchyard.bench.study_assembly import assemble
from torchyard.bench.study_file import read_study_file
from torchyard.bench.workload_text import (
    MAX_GRID_SIZE,
    choose_workload,
    expand,
    grid_of,
    parse_parameter_value,
)
from torchyard.core.study import Mode
from torchyard.errors import UsageError


def labels(text: str, *modes: Mode) -> list[str]:
    choice = choose_workload(SpecText(text=text, where="--only", folder=Path()))
    return [workload.label for workload in expand(replace(choice, modes=modes))]


def values(text: str) -> list[object]:
    choice = WorkloadChoice(where="here", suite="kernels", name="x", parameters=(("size", text),))
    return [dict(each.parameters)["size"] for each in grid_of(choice, parse_parameter_value)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("256..2048", [256, 512, 1024, 2048]),
        ("256..2000", [256, 512, 1024]),
        ("1..100x10", [1, 10, 100]),
        ("100..400+100", [100, 200, 300, 400]),
        ("0..2+1", [0, 1, 2]),
        ("7..7", [7]),
        ("256|1024", [256, 1024]),
        ("64 | 256..1024 | 3000", [64, 256, 512, 1024, 3000]),
        ("8|8|16", [8, 16]),
        ("0.5|true|relu", [0.5, True, "relu"]),
        ("relu", ["relu"]),
        ("../weights", ["../weights"]),
        ("1..x", ["1..x"]),
    ],
)
def test_expansion_of_a_text(text: str, expected: list[object]) -> None:
    assert values(text) == expected


def test_a_list_becomes_workloads_in_its_order() -> None:
    assert labels("kernels/matmul:size=1024|256") == [
        "kernels/matmul inference size=1024",
        "kernels/matmul inference size=256",
    ]


def test_several_lists_give_every_combination_and_every_mode() -> None:
    workload_labels = labels("conv2d:channels=8|16,size=14..28", "inference", "training")
    assert len(workload_labels) == len(set(workload_labels)) == 8
    assert workload_labels[0] == "kernels/conv2d inference channels=8 size=14"
    assert workload_labels[1] == "kernels/conv2d training channels=8 size=14"
    assert workload_labels[2] == "kernels/conv2d inference channels=8 size=28"


def test_other_parameters_and_the_rest_of_the_choice_stay() -> None:
    choice = WorkloadChoice(
        where="here",
        suite="kernels",
        name="attention",
        batch_size=3,
        parameters=(("length", "128|256"), ("heads", 4)),
    )
    grid = grid_of(choice, parse_parameter_value)
    assert [each.parameters for each in grid] == [
        (("length", 128), ("heads", 4)),
        (("length", 256), ("heads", 4)),
    ]
    assert all(each.batch_size == 3 for each in grid)


def test_one_value_is_the_choice_itself() -> None:
    choice = WorkloadChoice(where="here", suite="models", name="gpt")
    assert grid_of(choice, parse_parameter_value) == [choice]


@pytest.mark.parametrize(
    ("text", "what", "why"),
    [
        ("matmul:size=512..256", "is not a range", "end is below its start"),
        ("matmul:size=0..256", "is not a range", "step does not increase"),
        ("matmul:size=1..256x1", "is not a range", "step does not increase"),
        ("matmul:size=1..256+0", "is not a range", "step does not increase"),
        ("matmul:size=256|", "empty value", ""),
        ("matmul:size=1..100000+1", "expands to", "at most"),
        ("conv2d:channels=1..40+1,size=1..40+1", "expands to 1600 workloads", "at most"),
    ],
)
def test_invalid_grids_are_refused(text: str, what: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        labels(text)
    assert what in caught.value.what
    assert "--only: " in caught.value.what
    assert why in caught.value.why
    assert caught.value.hint


def test_a_parameter_that_is_not_there_is_refused_before_it_is_spread() -> None:
    with pytest.raises(UsageError, match="no parameter 'sise'"):
        labels("matmul:sise=1|2")


def test_an_endless_range_is_refused_immediately() -> None:
    assert len(values(f"1..{MAX_GRID_SIZE}+1")) == MAX_GRID_SIZE
    with pytest.raises(UsageError):
        values("1..999999999999+1")


def test_a_study_file_takes_the_same_texts(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        'baseline = "eager"\ncandidates = ["inductor"]\n'
        '[[workloads]]\nname = "kernels/matmul"\nparameters = { size = "16..64" }\n'
        '[[workloads]]\nname = "kernels/attention:length=8|16"\n'
    )
    study = assemble(read_study_file(path), here="python")
    assert [workload.label for workload in study.workloads] == [
        "kernels/matmul inference size=16",
        "kernels/matmul inference size=32",
        "kernels/matmul inference size=64",
        "kernels/attention inference length=8",
        "kernels/attention inference length=16",
    ]
