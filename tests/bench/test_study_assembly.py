"""From requests to studies: defaults, precedence, contradictory requests, and checks of user files."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.command_line import program
from torchyard.bench.request import Request, SpecText, WorkloadChoice, merge
from torchyard.bench.study_assembly import assemble, check_user_file
from torchyard.core.study import Budget, Environment, MeasureSettings, Study, Target
from torchyard.errors import NothingToDo, TorchyardError, UsageError

GPT = WorkloadChoice(where="--only", suite="models", name="gpt")
PLAIN = Request(workloads=(GPT,))
TARGETS = {name: Target(name=name, python=f"/{name}/python") for name in ("old", "new", "next")}
ENVIRONMENTS = {name: Environment(name=name, preload=(f"{name}.so",)) for name in ("tc", "je")}


def spec(text: str) -> SpecText:
    return SpecText(text=text, where="here", folder=Path())


def made(request: Request) -> Study:
    return assemble(request, here="/here/python")


def pairs(study: Study) -> list[str]:
    return [variant.name for variant in study.variants]


def test_a_workload_alone_compares_eager_with_inductor() -> None:
    study = made(PLAIN)
    assert pairs(study) == ["eager", "inductor"]
    assert {v.target for v in study.variants} == {Target(name="here", python="/here/python")}
    assert (study.budget, study.settings) == (Budget(), MeasureSettings())
    assert [w.label for w in study.workloads] == ["models/gpt inference"]


def test_two_targets_and_more_are_compared_with_the_first() -> None:
    study = made(replace(PLAIN, targets=TARGETS))
    assert pairs(study) == ["old", "new", "next"]
    assert {v.backend for v in study.variants} == {"eager"}


def test_one_target_compares_eager_with_inductor() -> None:
    study = made(replace(PLAIN, targets={"old": TARGETS["old"]}))
    assert pairs(study) == ["eager", "inductor"]
    assert {v.target.name for v in study.variants} == {"old"}


def test_environments_are_compared_with_the_plain_one() -> None:
    study = made(replace(PLAIN, environments=ENVIRONMENTS))
    assert pairs(study) == ["default", "tc", "je"]
    one_target = replace(PLAIN, environments=ENVIRONMENTS, targets={"old": TARGETS["old"]})
    assert {v.target.name for v in made(one_target).variants} == {"old"}


def test_a_baseline_alone_is_compared_with_the_rest() -> None:
    request = replace(PLAIN, targets=TARGETS, baseline=spec("new"))
    assert pairs(made(request)) == ["new", "old", "next"]
    assert pairs(made(replace(PLAIN, baseline=spec("inductor")))) == ["inductor", "eager"]


def test_candidates_alone_are_compared_with_eager() -> None:
    request = replace(PLAIN, candidates=(spec("inductor:max-autotune"), spec("aot_eager")))
    assert pairs(made(request)) == ["eager", "inductor:max-autotune", "aot_eager"]


def test_targets_and_environments_without_variants_are_ambiguous() -> None:
    with pytest.raises(UsageError) as caught:
        made(replace(PLAIN, targets=TARGETS, environments=ENVIRONMENTS))
    assert "--candidate new+tc" in caught.value.hint


def test_a_variant_may_be_compared_with_itself() -> None:
    request = replace(PLAIN, baseline=spec("eager"), candidates=(spec("eager"),))
    assert pairs(made(request)) == ["eager", "eager-again"]


def test_options_for_all_workloads_override_each() -> None:
    choice = replace(GPT, modes=("inference",), device="cpu", batch_size=1, optimizer_step=True)
    below = Request(workloads=(choice,))
    above = Request(modes=("training",), device="cuda", batch_size=8, optimizer_step=False)
    (workload,) = made(merge(below, above)).workloads
    assert workload.label == "models/gpt training b8 cuda"


def test_the_same_workload_twice_is_one() -> None:
    assert len(made(Request(workloads=(GPT, GPT))).workloads) == 1


def test_fewer_launches_than_the_usual_minimum_lower_it() -> None:
    assert made(replace(PLAIN, budget={"max_launches": 1})).budget.min_launches == 1
    with pytest.raises(UsageError, match="max-launches is 2, below min-launches, which is 5"):
        made(replace(PLAIN, budget={"max_launches": 2, "min_launches": 5}))


@pytest.mark.parametrize(
    ("request_", "kind", "what"),
    [
        (Request(), NothingToDo, "no workload given"),
        (
            Request(workloads=(replace(GPT, suite="kernels", name="matmul"),), optimizer_step=True),
            UsageError,
            "--optimizer-step has no effect",
        ),
        (replace(PLAIN, targets={"eager": TARGETS["old"]}), UsageError, "the name 'eager'"),
        (replace(PLAIN, candidates=(spec("inductr"),)), UsageError, "'inductr' is not a backend"),
    ],
)
def test_contradictory_requests(request_: Request, kind: type[TorchyardError], what: str) -> None:
    with pytest.raises(kind) as caught:
        made(request_)
    assert what in caught.value.what


KEYS = st.sampled_from(["time_s", "margin", "precision_goal"])
TABLES = st.dictionaries(KEYS, st.floats(0.001, 0.5))


@given(TABLES, TABLES)
def test_the_higher_layer_overrides_and_the_rest_is_kept(
    below: dict[str, float], above: dict[str, float]
) -> None:
    budget = made(merge(replace(PLAIN, budget=below), Request(budget=above))).budget
    for key in ("time_s", "margin", "precision_goal"):
        assert getattr(budget, key) == above.get(key, below.get(key, getattr(Budget(), key)))


def test_merge_keeps_what_only_one_request_sets() -> None:
    below = Request(
        name="file",
        targets={"old": TARGETS["old"]},
        baseline=spec("old"),
        candidates=(spec("inductor"),),
        precision="amp",
        workloads=(GPT,),
        settings={"seed": 1, "threads": 2},
    )
    assert merge(below, Request()) == below
    assert merge(Request(), below) == below
    above = Request(targets={"new": TARGETS["new"]}, settings={"seed": 5}, precision="float16")
    both = merge(below, above)
    assert list(both.targets) == ["old", "new"]
    assert both.settings == {"seed": 5, "threads": 2}
    assert both.precision == "float16"
    assert both.candidates == below.candidates


def test_evaluation_mode_applies_to_training_only() -> None:
    choice = replace(GPT, modes=("inference", "training"), eval_mode=True)
    study = assemble(Request(workloads=(choice,)), here="python3")
    assert [one.eval_mode for one in study.workloads] == [False, True]
    assert study.workloads[1].label == "models/gpt training eval-mode"
    above = Request(workloads=(choice,), eval_mode=False)
    assert not any(one.eval_mode for one in assemble(above, here="python3").workloads)
    with pytest.raises(UsageError, match="--eval-mode has no effect"):
        assemble(Request(workloads=(GPT,), modes=("inference",), eval_mode=True), here="python3")


SOURCE = """
import torch.nn as nn
from elsewhere import Imported
class Net: ...
async def background(): ...
make = lambda: None
first, (second, *rest) = 1, (2, 3)
annotated: int = 1
try:
    import fast
except ImportError as failure:
    def fallback(inner): local = 1
with open(__file__) as opened:
    if (walrus := 1):
        for index in range(3): pass
def later():
    global late
    late = 1
"""


def check(path: Path, name: str = "", *, same_python: bool = True) -> None:
    check_user_file(path, name, where="--only", same_python=same_python)


def error_of(path: Path, name: str = "") -> UsageError:
    with pytest.raises(UsageError) as caught:
        check(path, name)
    assert caught.value.what.startswith(f"--only: {path} ")
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


@pytest.mark.parametrize(
    "name",
    [
        "Net",
        "background",
        "make",
        "second",
        "rest",
        "annotated",
        "fast",
        "fallback",
        "opened",
        "walrus",
        "index",
        "late",
        "later",
        "nn",
        "Imported",
    ],
)
def test_every_name_bound_at_module_level_is_accepted(path: Path, name: str) -> None:
    path.write_text(SOURCE)
    check(path, name)
    check(path)


@pytest.mark.parametrize("name", ["inner", "local", "torch", "elsewhere", "missing", "print"])
def test_other_names_are_rejected(path: Path, name: str) -> None:
    path.write_text(SOURCE)
    assert error_of(path, name).what.endswith(f"has no function or class {name!r}")


@pytest.mark.parametrize(
    ("source", "name", "hint"),
    [
        ("class Net: ...\ndef make(): ...\n", "Nte", "did you mean 'Net'?"),
        ("import x\nclass Net: ...\ndef _hidden(): ...\ndef make(): ...\n", "zzz", "make"),
        ("from models import Net\n", "Nte", "did you mean 'Net'?"),
        ("", "Net", "valid names: none"),
    ],
)
def test_the_hint_names_what_there_is(path: Path, source: str, name: str, hint: str) -> None:
    path.write_text(source)
    error = error_of(path, name)
    assert hint in error.hint
    assert "_hidden" not in error.hint
    assert "x" not in error.hint


@pytest.mark.parametrize(
    "source",
    [
        "from models import *\n",
        "globals()['Net'] = 1\n",
        "exec('class Net: ...')\n",
        "import sys\nsetattr(sys.modules[__name__], 'Net', 1)\n",
        "def __getattr__(name): return print\n",
    ],
)
def test_dynamic_names_are_left_to_the_worker(path: Path, source: str) -> None:
    path.write_text(source)
    check(path, "Net")


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        (b"x = 1\ndef f(:\n", 2, "invalid syntax"),
        (b"return 3\n", 1, "'return' outside function"),
        (b"# coding: latin-1\nx = '\xe9'\ny y\n", 3, "invalid syntax"),
    ],
)
def test_a_syntax_error_has_its_line(path: Path, source: bytes, line: int, why: str) -> None:
    path.write_bytes(source)
    error = error_of(path)
    assert error.what.endswith(f"has a syntax error in line {line}")
    assert why in error.why


def test_null_bytes_are_reported(path: Path) -> None:
    path.write_bytes(b"x = 1\0\n")
    assert "null bytes" in error_of(path).why


def test_syntax_that_another_python_may_accept_is_left_to_the_worker(path: Path) -> None:
    path.write_text("x = )\n")
    check(path, "Net", same_python=False)


def test_a_warning_of_the_compiler_is_not_shown(path: Path) -> None:
    path.write_text("pattern = '\\d'\nx = 1 is 1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(path)


def test_too_deep_nesting_is_left_to_the_worker(path: Path) -> None:
    path.write_text("x = " + "-" * 50_000 + "1\n")
    check(path, "Net")


def test_an_unreadable_file_is_reported(path: Path) -> None:
    path.mkdir()
    assert error_of(path).what.endswith("cannot be read")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["mine.py:Nte"], "did you mean 'Net'?"),
        (["--only", "mine.py:Nte"], "--only: "),
        (["broken.py"], "has a syntax error in line 1"),
        (["missing.py"], "no such file"),
        (["mine.py", "--candidate", "mine.py:Nte"], "the variant 'mine.py:Nte': "),
    ],
)
def test_bench_reports_it_before_a_run_folder_exists(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')\nclass Net: ...\n")
    (tmp_path / "broken.py").write_text("x = )\n")
    home = tmp_path / "home"
    completed = program("bench", *arguments, cwd=tmp_path, TORCHYARD_HOME=str(home))
    assert completed.code == 2, completed.err
    assert text in completed.err
    assert "imported" not in completed.err
    assert not home.exists()


def test_a_file_for_another_python_is_only_checked_for_names(tmp_path: Path) -> None:
    (tmp_path / "newer.py").write_text("x = )\n")
    (tmp_path / "python").symlink_to(sys.executable)
    target = f"new={tmp_path / 'python'}"
    completed = program("bench", "newer.py", "--target", target, "--dry-run", cwd=tmp_path)
    assert completed.code == 0, completed.err
