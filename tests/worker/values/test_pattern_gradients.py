"""Sparse gradients: embeddings, indexed parameters, and split tensors."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from tests.worker.values.pattern_profiles import names, only, profile_patterns  # noqa: E402

pytestmark = pytest.mark.torch

SPARSE = "sparse gradient"


def _of(program: Any, *, deep: bool = False) -> list[str]:
    return [
        operator
        for pattern, operator in names(profile_patterns(program, deep=deep))
        if pattern == SPARSE
    ]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("words", "wanted"), [(20, True), (150, False)])
def test_embeddings_by_the_share_of_rows(words: int, wanted: bool, deep: bool) -> None:
    def program() -> None:
        embedding = nn.Embedding(1000, 16)
        for _ in range(2):
            embedding(torch.randperm(1000)[:words]).square().mean().backward()
            embedding.zero_grad()

    assert _of(program, deep=deep) == (["embedding_dense_backward"] if wanted else [])


def test_the_rows_are_counted() -> None:
    def program() -> None:
        embedding = nn.Embedding(1000, 16)
        embedding(torch.arange(25)).exp().mean().backward()

    found = only(profile_patterns(program), SPARSE)
    assert found.detail == "25 of 1000 rows have a gradient"
    assert found.bytes_wasted == int(1000 * 16 * 4 * 0.975)
    assert found.evidence["zero_rows"] == pytest.approx(0.975)
    assert found.place.backward


def test_sparse_embeddings_are_as_they_should_be() -> None:
    def program() -> None:
        embedding = nn.Embedding(1000, 16, sparse=True)
        optimizer = torch.optim.SparseAdam(embedding.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            embedding(torch.arange(25)).exp().mean().backward()
            optimizer.step()

    assert _of(program) == []


def test_only_parameters_count_when_indexed() -> None:
    rows = torch.arange(20)

    def parameter() -> None:
        table = nn.Parameter(torch.randn(1000, 16))
        table[rows].square().mean().backward()

    def activation() -> None:
        table = nn.Parameter(torch.randn(1000, 16))
        (table.exp() * 2)[rows].square().mean().backward()

    assert _of(parameter) == ["index_put"]
    assert _of(activation) == []


@pytest.mark.parametrize(
    ("apart", "wanted"),
    [
        (lambda x: x[0] * x[1] + x[2], True),
        (lambda x: x[0] + x[1], False),  # the third is not used
        (lambda x: x[0] + x[-1] * x[1], True),
        (lambda x: x[:1] * x[1:2] + x[2:], True),
        (lambda x: x[:2].sum(0) * x[1:].sum(0), False),  # they overlap
        (lambda x: x[::2].sum(0) * x[1], False),  # with gaps
        (lambda x: x.unbind(0)[0] * x.unbind(0)[1], False),
        (lambda x: x.split(1)[0] * x.chunk(3)[1], False),
        (lambda x: x[2], False),
    ],
)
def test_tensors_taken_apart(apart: Any, wanted: bool) -> None:
    layer = nn.Linear(32, 32)

    def program() -> None:
        for _ in range(2):
            hidden = layer(torch.randn(3, 64, 32)).tanh()
            apart(hidden).exp().mean().backward()

    assert bool(_of(program)) == wanted


def test_two_tensors_are_not_taken_for_one() -> None:
    def program() -> None:
        first = torch.randn(2, 64, 64, requires_grad=True)
        second = torch.randn(2, 64, 64, requires_grad=True)
        (first[0] * second[1]).mean().backward()

    assert _of(program) == []


def test_parameters_taken_apart_are_found_too() -> None:
    def program() -> None:
        both = nn.Parameter(torch.randn(2, 64, 64))
        (both[0] @ both[1]).mean().backward()

    found = only(profile_patterns(program), SPARSE)
    assert found.operator == "aten::select_backward"
    assert found.detail == "2 parts, each with a gradient of the full size"
    assert found.bytes_wasted == 2 * 64 * 64 * 4


def test_ordinary_zero_gradients_are_not_reported() -> None:
    def program() -> None:
        for _ in range(2):
            logits = torch.randn(64, 512, requires_grad=True)
            F.cross_entropy(logits, torch.randint(0, 512, (64,))).backward()
            image = torch.randn(4, 8, 32, 32, requires_grad=True)
            F.max_pool2d(image, 4).mean().backward()
            hidden = torch.randn(8, 64, 32, requires_grad=True)
            hidden[:, -1].mean().backward()
            torch.randn(64, 512, requires_grad=True).gather(
                1, torch.randint(0, 512, (64, 1))
            ).mean().backward()

    assert profile_patterns(program) == []
