"""The list of operators to sweep is complete, well-formed, and large enough."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

LEAST_CASES = 200
LEAST_BYTES = 64 << 10
NOT_LARGE = {"ctc_loss", "diag_embed", "combinations", "one_hot", "affine_grid", "fold", "kron"}
"""Cases whose inputs are smaller than what they make of them."""


def test_there_are_many_cases_and_each_has_a_name_of_its_own() -> None:
    from torchyard.worker.values.operator_cases import all_cases

    names = [case.name for case in all_cases()]

    assert len(names) >= LEAST_CASES
    assert len(set(names)) == len(names)
    assert not [name for name in names if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", name)]


def test_every_module_beside_the_list_is_a_family_of_it() -> None:
    from torchyard.worker.values import operator_cases

    folder = Path(operator_cases.__file__).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}

    assert modules == set(operator_cases.FAMILIES.values())
    assert {case.family for case in operator_cases.all_cases()} == set(operator_cases.FAMILIES)


def test_most_cases_have_a_backward_and_large_tensors() -> None:
    import torch

    from torchyard.worker.values.operator_cases import Draw, all_cases

    learning, small = 0, []
    for case in all_cases():
        made = case.make(Draw("cpu", 1))
        tensors = [value for value in made if isinstance(value, torch.Tensor)]
        modules = [value for value in made if isinstance(value, torch.nn.Module)]
        learning += any(tensor.requires_grad for tensor in tensors)
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if not modules and tensors and size < LEAST_BYTES and case.name not in NOT_LARGE:
            small.append(case.name)

    assert learning >= LEAST_CASES
    # What takes a vector and makes a matrix of it is large where it counts.
    assert set(small) <= {"outer", "meshgrid", "cartesian_prod", "vander", "pdist", "cdist.p1"}


def test_a_seed_draws_the_same_values_again_and_another_seed_others() -> None:
    import torch

    from torchyard.worker.values.operator_cases import Draw

    first, again, other = (Draw("cpu", seed).floats(64, 64) for seed in (1, 1, 2))

    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert sorted(Draw("cpu", 3).order(50).tolist()) == list(range(50))
    assert set(Draw("cpu", 3).signs(500).tolist()) == {-1.0, 1.0}
    assert int(Draw("cpu", 3).integers_from(5, 7, 100).min()) == 5


def test_what_a_torch_does_not_have_is_reported_by_name() -> None:
    from torchyard.worker.values.operator_cases import Missing, case

    unknown = case("unknown", "nn.functional.loss_of_the_future", lambda _: [])

    with pytest.raises(Missing, match=r"no torch\.nn\.functional\.loss_of_the_future"):
        unknown.function()


def test_cases_are_chosen_by_pattern_and_taken_from_a_file(tmp_path: Path) -> None:
    from torchyard.worker.values.operator_sweep import chosen_cases

    own = tmp_path / "own.py"
    own.write_text(
        "from torchyard.worker.values.operator_cases import case\n"
        "CASES = [case('own.relu', 'relu', lambda d: [d.learned(64, 64)])]\n"
    )

    losses = chosen_cases("*_loss")
    assert losses
    assert all(fnmatch.fnmatch(case.name, "*_loss") for case in losses)
    (found,) = chosen_cases("own.*", str(own))
    assert (found.name, found.family) == ("own.relu", "own")
    assert chosen_cases("nothing*") == []
