"""From requests to studies: defaults, precedence, and contradictory requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.bench.request import Request, SpecText, WorkloadChoice, merge
from torchyard.bench.study_assembly import assemble
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
