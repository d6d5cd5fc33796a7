"""Pairs of programs with known truth: what differs is detected, and what is equal is not called wrong.

The tables give the workload, the candidate, and what it runs with. Most were judged correctly before any of the
checks knew them (`..._AT_ONCE`), and are in the slow lane; the others are in the long one.
"""

from __future__ import annotations

import pytest

from tests.worker.in_process_launch import CORPUS, Launch, launch

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

FILE, FURTHER_FILE = "program_pairs.py", "further_program_pairs.py"
WRONG = """
    Square ring_of_two
    Square ring_of_six
    Square wrong_first_call
    Square corrupted_later_by_a_thread
    Copying aliases_parameter
    StatefulCell drops_state
    ties_topk topk_values_of_other_rows
    Rotary rotary_in_bfloat16 bfloat16
"""
WRONG_AT_ONCE = """
    Square last_row_uninitialised
    Square wrong_third_call
    Square cached_by_first_element
    Square gradient_doubles_late training
    Square bias_gradient_twice training
    Square input_requires_grad_left
    Square bfloat16_inside
    Square one_element_in_a_hundred_thousandth
    strided assumes_contiguous
    Copying aliases_input
    out_argument out_not_written
    out_only out_only_last_row_missing
    argmax_of_logits argmax_of_bfloat16
    layer_norm layer_norm_eps
    layer_norm_offset layer_norm_one_pass
    deviation deviation_biased
    gelu gelu_tanh
    denormal denormal_flushed
    half_sum half_sum_in_steps bfloat16
    multinomial multinomial_greedy
    noisy noisy_too_wide
    Dropping checkpointed_without_state training
    Dropping dropout_unscaled training
    strange strange_key_wrong
    strange strange_bytes
    strange strange_fraction
    strange strange_size
    strange strange_none
    as_list as_list_one_wrong
    as_item as_item_wrong
    distribution distribution_wrong
    deep deep_wrong
    jagged jagged_wrong
    quantised_output quantised_output_scale
    conjugate conjugate_missing
    empties empties_wrong_type
    empties empties_wrong_shape
    positives positives_one_less
    bytes_image bytes_image_wraps
    Normed other_momentum training
    Normed counts_no_batches training
    InputGradient input_detached training
    Fused experts_by_second_choice_when_close
"""
FURTHER_WRONG = """
    Plain slots_of_one_buffer
    Plain wrong_in_the_second_call
    Plain half_in_another_thread
    Averaging returns_the_buffer
    argsort_with_ties argsort_of_other_rows
    argsort_with_ties argsort_wrong_in_a_quarter
    Normed norm_accumulates_in_short bfloat16
    Positions positions_in_short float16
"""
FURTHER_WRONG_AT_ONCE = """
    StaticCache writes_one_place_later
    Tied one_use_detached training
    ReturnsWeight with_stale_parameters
    rounded rounded_to_six_places
    counting counting_last_missing
    running running_short
"""
RIGHT = """
    expanded reads_one_row
    StatefulCell wrapped
    ties_topk topk_by_sort
    strange strange_order
    Lazy wrapped training
    Lazy wrapped
"""
RIGHT_AT_ONCE = """
    Square in_float64
    Square slices_of_one_buffer
    Square transposed_strides
    Square split_reduction
    Square split_reduction training
    Copying wrapped
    LiveBuffer wrapped
    LiveBuffer returns_a_copy_of_the_buffer
    SideEffect wrapped
    History wrapped
    out_argument out_in_another_order
    out_argument wrapped
    out_only wrapped
    out_only out_only_in_another_order
    argmax_of_logits argmax_in_float64
    sign_mask mask_in_float64
    softmax_by_hand softmax_stable
    logsumexp_by_hand logsumexp_stable
    softplus_by_hand softplus_stable
    norm_overflows norm_in_float32 float16
    gelu gelu_by_hand
    convolution convolution_by_fft
    half_sum half_sum_in_float32 bfloat16
    multinomial multinomial_by_gumbel
    noisy noisy_other_generator
    Dropping checkpointed training
    Dropping dropout_by_hand training
    strange wrapped
    as_list as_list_in_float64
    as_array as_array_in_float64
    as_item as_item_in_float64
    distribution wrapped
    deep wrapped
    jagged wrapped
    quantised_output wrapped
    conjugate conjugate_resolved
    uncoalesced wrapped
    uncoalesced coalesced
    empties wrapped
    positives wrapped
    negative_zero positive_zero
    Normed norm_by_hand training
    InputGradient wrapped training
    Fused experts_gathered training
    Fused experts_gathered
"""
FURTHER_RIGHT = """
    Plain half_in_another_thread_awaited
    Plain packs_weights_at_first_call
    Plain split_reduction bfloat16 training
    Averaging other_order_of_keys
    argsort_with_ties argsort_stable
    Normed norm_fused bfloat16
    Attention attention_fused bfloat16
    Remembering wrapped
"""
FURTHER_RIGHT_AT_ONCE = """
    StaticCache wrapped
    Tied by_matrix training
    ReturnsWeight with_functional_call training
    ReturnsWeight with_functional_call
    ReturnsWeight compiled_eager training
    counting counting_by_one_hot
    running running_in_float64
    running running_in_blocks
"""
UNDECIDED = {"StatefulCell", "Remembering", "norm_overflows", "multinomial", "noisy", "Dropping"}
"""Workloads whose results depend on earlier calls, are random or contain NaN: these may stay unchecked."""


def cases(text: str, *marks: pytest.MarkDecorator) -> list[object]:
    return [pytest.param(line.strip(), marks=marks) for line in text.strip().splitlines()]


def run(case: str, file: str) -> Launch:
    workload, candidate, *words = case.split()
    precision = next((word for word in words if word in ("bfloat16", "float16")), "float32")
    return launch(
        f"{CORPUS / file}:{workload}",
        f"{CORPUS / file}:{candidate}",
        mode="training" if "training" in words else "inference",
        precision=precision,
    )


def is_wrong(case: str, file: str) -> None:
    completed = run(case, file)
    assert completed.word in ("wrong", "untrusted"), completed


def is_right(case: str, file: str) -> None:
    completed = run(case, file)
    accepted = ["pass", "note"]
    if case.split(maxsplit=1)[0] in UNDECIDED:
        accepted.append("unchecked")
    assert completed.word in accepted, completed


@pytest.mark.parametrize("case", [*cases(WRONG), *cases(WRONG_AT_ONCE, pytest.mark.slow)])
def test_wrong_programs_are_detected(case: str) -> None:
    is_wrong(case, FILE)


@pytest.mark.parametrize(
    "case", [*cases(FURTHER_WRONG), *cases(FURTHER_WRONG_AT_ONCE, pytest.mark.slow)]
)
def test_further_wrong_programs_are_detected(case: str) -> None:
    is_wrong(case, FURTHER_FILE)


@pytest.mark.parametrize("case", [*cases(RIGHT), *cases(RIGHT_AT_ONCE, pytest.mark.slow)])
def test_correct_programs_are_not_called_wrong(case: str) -> None:
    is_right(case, FILE)


@pytest.mark.parametrize(
    "case", [*cases(FURTHER_RIGHT), *cases(FURTHER_RIGHT_AT_ONCE, pytest.mark.slow)]
)
def test_further_correct_programs_are_not_called_wrong(case: str) -> None:
    is_right(case, FURTHER_FILE)


def test_an_attribute_that_is_not_assigned_is_noted() -> None:
    completed = run("SideEffect no_side_effect", FILE)
    assert completed.notes == ["does not assign what eager code does: last"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["Fused", "logsumexp_by_hand", "out_argument"])
def test_inductor_is_not_called_wrong(case: str) -> None:
    completed = launch(f"{CORPUS / FILE}:{case}", "inductor")
    assert completed.word in ("pass", "note"), completed
