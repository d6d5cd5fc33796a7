"""The corpus of candidates: wrong ones are detected, and correct ones pass."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator

import pytest

from tests.worker.in_process_launch import CORPUS, Launch, launch

pytestmark = pytest.mark.torch

WRONG = {
    # What a candidate does, on which workload, and the weakest word that may be said of it.
    "right_for_ten_calls": ("Plain", "wrong"),
    "wrong_every_seventh": ("Plain", "wrong"),
    "cached_by_id": ("Plain", "wrong"),
    "cached_by_pointer": ("Plain", "wrong"),
    "cached_by_shape": ("Plain", "wrong"),
    "cached_by_version": ("Plain", "wrong"),
    "cached_by_content": ("Heavy", "untrusted"),
    "cached_by_sum_after_five": ("Heavy", "untrusted"),
    "returns_previous": ("Plain", "wrong"),
    "reuses_output_storage": ("Plain", "wrong"),
    "modifies_input": ("Plain", "wrong"),
    "modifies_input_late": ("Plain", "wrong"),
    "modifies_weights": ("Plain", "wrong"),
    "leaves_input_alone": ("InPlace", "wrong"),
    "rewrites_one_wrong_element": ("Rewriting", "wrong"),
    "skips_running_statistics": ("Normed training", "wrong"),
    "updates_statistics_twice": ("Normed training", "wrong"),
    "sets_threads": ("Plain", "note"),
    "sets_default_dtype": ("Plain", "note"),
    "replaces_clock": ("Plain", "untrusted"),
    "replaces_linear": ("Plain", "untrusted"),
    "replaces_forward_of_a_class": ("Plain", "untrusted"),
    "state_at_import": ("Plain training", "note"),
    "leaves_inference_mode_on": ("Plain", "untrusted"),
    "seeds_generators": ("Plain", "note"),
    "switches_collector_off": ("Plain", "note"),
    "leaves_tracing_on": ("Plain", "note"),
    "flushes_denormals": ("Plain", "note"),
    "sets_environment": ("Plain", "note"),
    "returns_numpy": ("Plain", "wrong"),
    "returns_list": ("Net", "wrong"),
    "returns_double": ("Plain", "wrong"),
    "returns_detached": ("Net training", "wrong"),
    "returns_lazy_tensor": ("Plain", "wrong"),
    "returns_promise": ("Plain", "wrong"),
    "computes_in_thread": ("Plain", "wrong"),
    "correct_when_checked": ("Plain", "wrong"),
    "correct_for_known_values": ("Plain", "wrong"),
    "wrong_for_zeros_in_gradient_mode": ("Plain", "wrong"),
    "freezes_weights": ("Plain", "wrong"),
    "one_batch_size": ("Plain", "wrong"),
    "clamps_large_inputs": ("Plain", "wrong"),
    "drops_small_inputs": ("Plain", "wrong"),
    "converts_module_in_place": ("Plain", "untrusted"),
    "compiles_module_in_place": ("Plain", "untrusted"),
    "skips_one_gradient": ("Net training", "wrong"),
    "skips_optimizer_step": ("Plain training step", "untrusted"),
    "counter_stands_still": ("Counting", "wrong"),
    "drops_dict_key": ("InDict", "wrong"),
}
CORRECT = [
    ("same", "Plain"),
    ("wrapped", "Net"),
    ("wrapped", "Net training"),
    ("wrapped", "Plain training step"),
    ("wrapped", "Normed training"),
    ("wrapped", "Normed"),
    ("wrapped", "InPlace"),
    ("wrapped", "Counting"),
    ("wrapped", "KeyValueCache"),
    ("wrapped", "InDict"),
    ("wrapped", "InDataclass"),
    ("wrapped", "InList"),
    ("wrapped", "InNamedTuple"),
    ("wrapped", "Nested"),
    ("wrapped", "Views"),
    ("wrapped", "Tokens"),
    ("wrapped", "Bags"),
    ("wrapped", "Hooked"),
    ("wrapped", "Aliased"),
    ("wrapped", "Logarithm"),
    ("wrapped", "Large"),
    ("wrapped", "Recompiling"),
    ("wrapped", "kernels/adamw-step"),
    ("rewritten", "Plain"),
    ("rewritten", "Plain training"),
    ("rewrites_in_another_order", "Rewriting"),
    ("wrapped", "Rewriting"),
    ("caches_constants", "Plain"),
    ("fresh_copies", "Plain"),
    ("documented_static_output", "Plain"),
    ("documented_frozen", "Plain"),
    ("refuses_other_batches", "Plain"),
    ("scoped_settings", "Plain"),
    ("rebuilds_dataclass", "InDataclass"),
    ("uses_generator", "Plain"),
    ("lowers_to_double", "Plain"),
    ("steps_in_place", "InPlace"),
    ("counts_like_eager", "Counting"),
]
STRENGTH = ("pass", "note", "unchecked", "untrusted", "wrong")
SLOW = {"correct_when_checked", "kernels/adamw-step"}
"""Candidates and workloads that take several seconds."""
NOTED = {"documented_static_output", "documented_frozen", "refuses_other_batches"}


def run(name: str, where: str, file: str) -> Launch:
    workload, *words = where.split()
    return launch(
        workload,
        f"{CORPUS / file}:{name}",
        mode="training" if "training" in words else "inference",
        step="step" in words,
    )


@pytest.fixture(scope="module", autouse=True)
def _small_collections() -> Iterator[None]:
    """The checks collect garbage often; what pytest and torch hold need not be looked at each time."""
    import torch  # noqa: F401 - imported before it is frozen

    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """The process as it was, whatever a candidate did to it."""
    import torch

    step = torch.optim.SGD.step
    yield
    if "corpus_clean_up" in vars(sys):  # inference mode was left on, and with it gradients off
        vars(sys).pop("corpus_clean_up")()
        torch.set_grad_enabled(True)
    torch.set_num_threads(1)
    torch.optim.SGD.step = step
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
    assert gc.isenabled()
    assert sys.getprofile() is None
    assert "OMP_PROC_BIND" not in os.environ
    assert time.perf_counter_ns() > 0
    assert time.perf_counter_ns.__module__ == "time"


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in WRONG],
)
def test_wrong_candidates_are_detected(name: str) -> None:
    where, at_least = WRONG[name]
    completed = run(
        name, where, "wrong_at_import.py" if name == "state_at_import" else "wrong_behavior.py"
    )
    assert STRENGTH.index(completed.word) >= STRENGTH.index(at_least), completed
    if at_least == "note":
        assert completed.word == "note", completed


@pytest.mark.parametrize(
    ("name", "where"),
    [pytest.param(*case, marks=pytest.mark.slow if case[1] in SLOW else ()) for case in CORRECT],
)
def test_correct_candidates_pass(name: str, where: str) -> None:
    completed = run(name, where, "correct_behavior.py")
    assert completed.word == ("note" if name in NOTED else "pass"), completed


@pytest.mark.parametrize("workload", ["NotANumber", "Infinite", "Empty"])
def test_a_workload_without_finite_results_has_no_verdict(workload: str) -> None:
    assert run("wrapped", workload, "correct_behavior.py").word == "unchecked"


def test_correct_random_workloads_pass() -> None:
    completed = run("wrapped", "Dropping training", "correct_behavior.py")
    assert not completed.failure, completed
    assert completed.untrusted == []


def test_the_corpus_is_large_enough() -> None:
    assert len(WRONG) >= 25
    assert len(CORRECT) >= 20
