"""The corpus of candidates: wrong ones are detected, and correct ones pass."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import tracemalloc
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
WRONG_VALUES = {
    "text_ends_otherwise": ("WithText", "wrong"),
    "number_is_off": ("WithNumber", "wrong"),
    "number_is_off_late": ("WithNumber", "wrong"),
    "tokens_are_off_late": ("WithTokens", "wrong"),
    "tokens_of_the_first_call": ("WithTokens", "wrong"),
    "array_is_zero": ("WithArray", "wrong"),
    "set_is_off": ("WithSet", "wrong"),
    "slots_are_zero": ("WithSlots", "wrong"),
    "deque_is_zero": ("WithDeque", "wrong"),
    "iterator_is_zero": ("WithIterator", "untrusted"),
    "function_is_zero": ("WithFunction", "note"),
    "infinity_changes_sign_late": ("Masked", "wrong"),
    "infinity_becomes_nan_late": ("Masked", "wrong"),
    "parts_change_places": ("Parts", "wrong"),
    "computes_when_unpacked": ("Projected", "wrong"),
    "cached_by_version_counter": ("Wide", "untrusted"),
    "cached_by_version_counter ": ("WithoutInputs", "untrusted"),
}
SHARED = {
    "sets_attribute": ("Configured", "untrusted"),
    "sets_attribute_of_class": ("Configured", "untrusted"),
    "sets_attribute_late": ("Configured", "untrusted"),
    "sets_configuration": ("Configured", "untrusted"),
    "replaces_function_of_the_model_file": ("Configured", "untrusted"),
    "replaces_function_by_one_of_torch": ("Configured", "untrusted"),
    "hooks_a_parameter": ("Configured training", "untrusted"),
    "changes_layout_of_an_input": ("Configured", "untrusted"),
    "adds_to_an_input": ("FromDict", "untrusted"),
    "starts_a_thread": ("Configured", "untrusted"),
    "starts_a_process": ("Configured", "untrusted"),
    "hooks_all_modules": ("Configured", "note"),
    "hooks_saved_tensors": ("Configured training", "note"),
    "switches_fast_path_off": ("Configured", "note"),
    "uses_one_backward_thread": ("Configured training", "note"),
    "traces_allocations": ("Configured", "note"),
    "monitors_lines": ("Configured", "note"),
    "interrupts_itself": ("Configured", "note"),
    "sets_scheduling_policy": ("Configured", "note"),
    "configures_the_compiler": ("Configured", "note"),
}
RIGHT_VALUES = [
    "WithText",
    "WithNumber",
    "WithTokens",
    "WithArray",
    "WithSet",
    "WithSlots",
    "WithDeque",
    "WithConstants",
    "Masked",
    "Eighth",
    "Parts",
    "Configured",
    "Configured training",
    "FromDict",
    "WithoutInputs",
]
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
    ("compiled", "Plain"),
    ("compiled", "Net training"),
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
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
STRENGTH = ("pass", "note", "unchecked", "untrusted", "wrong")
SLOW = {"correct_when_checked", "kernels/adamw-step"}
"""Candidates and workloads that take several seconds."""
NOTED = {"documented_static_output", "documented_frozen", "refuses_other_batches"}


def run(name: str, where: str, file: str, workloads: str = "behavior_workloads.py") -> Launch:
    workload, *words = where.split()
    return launch(
        workload if "/" in workload else f"{CORPUS / workloads}:{workload}",
        f"{CORPUS / file}:{name.strip()}",
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
    sys.corpus_stop = False  # type: ignore[attr-defined]
    yield
    sys.corpus_stop = True  # type: ignore[attr-defined]
    thread = vars(sys).pop("corpus_thread", None)
    if thread is not None:
        thread.join()
    process = vars(sys).pop("corpus_process", None)
    if process is not None:
        process.kill()
        process.wait()
    if "corpus_clean_up" in vars(sys):  # inference mode was left on, and with it gradients off
        vars(sys).pop("corpus_clean_up")()
        torch.set_grad_enabled(True)
    for timer in TIMERS:
        assert signal.getitimer(timer)[1] == 0.0  # pytest may have set one alarm
    assert not tracemalloc.is_tracing()
    assert torch.backends.mha.get_fastpath_enabled()
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


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_values_are_detected(name: str) -> None:
    where, at_least = WRONG_VALUES[name]
    completed = run(name, where, "wrong_values.py", "value_workloads.py")
    assert STRENGTH.index(completed.word) >= STRENGTH.index(at_least), completed


@pytest.mark.parametrize("name", SHARED)
def test_changes_of_shared_state_are_detected(name: str) -> None:
    where, word = SHARED[name]
    completed = run(name, where, "changes_shared_state.py", "value_workloads.py")
    assert completed.word == word, completed


@pytest.mark.parametrize("where", RIGHT_VALUES)
def test_correct_values_pass(where: str) -> None:
    completed = run("wrapped", where, "correct_behavior.py", "value_workloads.py")
    assert completed.word == "pass", completed


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
    assert len(WRONG) + len(WRONG_VALUES) + len(SHARED) >= 80
    assert len(CORRECT) + len(RIGHT_VALUES) >= 50
