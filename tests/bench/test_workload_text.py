"""Workloads from text: the catalogue, files, parameters and modes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.bench.request import SpecText, WorkloadChoice, WorkloadSettings
from torchyard.bench.workload_text import choose_workload, expand, parse_parameter_value
from torchyard.core.study import Mode, Workload
from torchyard.errors import UsageError
from torchyard.worker.catalog import LISTS, SUITES


def choose(text: str, folder: Path = Path()) -> WorkloadChoice:
    return choose_workload(SpecText(text=text, where="--only", folder=folder))


def expanded(choice: WorkloadChoice, *modes: Mode) -> list[Workload]:
    return expand(replace(choice, modes=modes))


@pytest.mark.parametrize("text", ["kernels/matmul", "matmul"])
def test_a_built_in_workload_by_full_and_short_name(text: str) -> None:
    choice = choose(text)
    assert (choice.suite, choice.name, choice.parameters) == ("kernels", "matmul", ())


def test_parameters_follow_a_colon() -> None:
    assert choose("kernels/conv2d:channels=8,size=3").parameters == (("channels", 8), ("size", 3))


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("-5", -5), ("0.5", 0.5), ("true", True), ("false", False), ("relu", "relu")],
)
def test_parameter_values_take_the_plainest_type(text: str, value: object) -> None:
    found = parse_parameter_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["huggingface/BertForMaskedLM", "timm/resnet18.a1_in1k"])
def test_open_suites_take_any_name(text: str) -> None:
    assert f"{choose(text).suite}/{choose(text).name}" == text


def test_a_file_of_the_users_becomes_an_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "mine.py").touch()
    assert choose("mine.py", tmp_path).name == f"{tmp_path}/mine.py"
    assert choose("file/mine.py:thing", tmp_path).name == f"{tmp_path}/mine.py:thing"
    choice = choose("mine.py:thing:size=5", tmp_path)
    assert (choice.suite, choice.name) == ("file", f"{tmp_path}/mine.py:thing")
    assert choice.parameters == (("size", 5),)
    assert choose("mine.py:size=5", tmp_path).parameters == (("size", 5),)


def test_a_folder_name_with_py_is_part_of_the_path(tmp_path: Path) -> None:
    (tmp_path / ".pyenv").mkdir()
    (tmp_path / ".pyenv" / "mine.py").touch()
    assert choose(".pyenv/mine.py:thing", tmp_path).name == f"{tmp_path}/.pyenv/mine.py:thing"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("kernels/matmull", "the suite 'kernels' has no workload 'matmull'", "mean 'matmul'?"),
        ("matmull", "unknown workload 'matmull'", "did you mean 'matmul'?"),
        ("BertForMaskedLM", "unknown workload", "in full"),
        ("kernel/matmul", "unknown suite 'kernel'", "did you mean 'kernels'?"),
        ("kernels", "'kernels' is a suite", "--suite kernels"),
        (
            "timm",
            "'timm' is a suite",
            "--suite timm, or one of its workloads: timm/adv_inception_v3",
        ),
        ("kernels/", "names no workload", "kernels/matmul"),
        ("timm/", "names no workload", "timm/resnet18"),
        ("matmul:size", "'size' in 'matmul:size' is not a parameter", "key=value"),
        ("matmul:size=", "is not a parameter", "key=value"),
        ("matmul:", "is not a parameter", "key=value"),
        ("matmul:size=1,size=2", "gives 'size' twice", "keep one"),
        ("missing.py", "no such file: 'missing.py'", "Python file"),
        ("missing.py:a:b", "'b' in 'missing.py:a:b' is not a name in a file", "FILE.py:THING"),
    ],
)
def test_invalid_workloads_are_refused_with_a_hint(text: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose(text)
    assert caught.value.what.startswith("--only: ")
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_an_ambiguous_short_name_must_be_written_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUITES, "more", [SUITES["kernels"][0]])
    with pytest.raises(UsageError) as caught:
        choose("matmul")
    assert caught.value.hint == "use kernels/matmul or more/matmul"


def test_a_whole_suite_is_every_entry_that_offers_the_mode() -> None:
    suite = WorkloadChoice(where="--suite", suite="kernels")
    both = expanded(suite, "inference", "training")
    offered = [(e.name, mode) for e in SUITES["kernels"] for mode in e.modes]
    assert [(w.name, w.mode) for w in both] == offered
    assert "optimizer-step" not in {w.name for w in expanded(suite, "training")}


def test_a_whole_list_is_every_name_with_the_modes_it_offers() -> None:
    suite = WorkloadChoice(where="--suite", suite="huggingface")
    both = expanded(suite, "inference", "training")
    offered = [(each.name, mode) for each in LISTS["huggingface"] for mode in each.modes]
    phases = expanded(suite, "prefill", "decode")
    assert {"DistillGPT2", "Llama-3.2-1B", "Qwen3-0.6B"} < {w.name for w in phases}
    assert "BertForMaskedLM" not in {w.name for w in phases}
    offered = [one for one in offered if one[1] in {"inference", "training"}]
    assert [(w.name, w.mode) for w in both] == offered
    assert ("gpt-oss-20b", "training") not in offered
    assert all(w.batch_size is None and not w.parameters for w in both)


@pytest.mark.parametrize(("device", "count"), [("cpu", 54), ("cuda", 18), ("cuda:1", 18)])
def test_a_list_is_that_of_the_device(device: str, count: int) -> None:
    cells = expand(WorkloadChoice(where="--suite", suite="timm", device=device))
    assert len(cells) == count
    assert {w.device for w in cells} == {device}


def test_a_named_model_of_a_list_may_be_asked_for_any_mode() -> None:
    (workload,) = expanded(choose("huggingface/gpt-oss-20b"), "training")
    assert (workload.name, workload.mode) == ("gpt-oss-20b", "training")


def test_a_configuration_file_becomes_a_whole_path(tmp_path: Path) -> None:
    choice = choose("huggingface/auto:config=mine.json,length=9", tmp_path)
    assert choice.parameters == (("config", f"{tmp_path}/mine.json"), ("length", 9))
    assert choose("timm/resnet18:config=x", tmp_path).parameters == (("config", "x"),)


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        (WorkloadChoice(where="x", suite="file"), "has no fixed set of workloads"),
        (WorkloadChoice(where="x", suite="nope"), "unknown suite 'nope'"),
        (
            WorkloadChoice(where="x", suite="kernels", name="matmul", parameters=(("siz", 1),)),
            "kernels/matmul has no parameter 'siz'",
        ),
        (
            WorkloadChoice(where="x", suite="kernels", parameters=(("size", 1),)),
            "parameters need the name of a workload",
        ),
        (
            WorkloadChoice(where="x", suite="timm", parameters=(("size", 1),)),
            "parameters need the name of a workload",
        ),
    ],
)
def test_choices_that_cannot_be_expanded(choice: WorkloadChoice, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        expanded(choice)
    assert what in caught.value.what


def test_a_named_workload_must_offer_the_mode() -> None:
    with pytest.raises(UsageError) as caught:
        expanded(choose("optimizer-step"), "training")
    assert "has no mode 'training'" in caught.value.what
    assert caught.value.hint == "supported modes: inference"


def test_the_optimizer_step_belongs_to_training_only() -> None:
    settings = WorkloadSettings(modes=("inference", "training"), device="cuda", optimizer_step=True)
    cells = expand(choose("gpt").overridden(settings))
    assert [(w.mode, w.optimizer_step, w.device) for w in cells] == [
        ("inference", False, "cuda"),
        ("training", True, "cuda"),
    ]


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("models/gpt:prompt=64", "inference", "no effect in mode inference"),
        ("huggingface/DistillGPT2:static=0", "training", "no effect in mode training"),
        ("models/gpt:prompt=0", "prefill", "invalid parameter prompt: 0"),
        ("models/gpt:generate=1.5", "decode", "invalid parameter generate: 1.5"),
        ("huggingface/DistillGPT2:static=2", "decode", "invalid parameter static: 2"),
        ("models/gpt:static=true", "decode", "invalid parameter static: True"),
    ],
)
def test_parameters_of_generation_are_checked(text: str, mode: Mode, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        expanded(choose(text), mode)
    assert error.value.hint
