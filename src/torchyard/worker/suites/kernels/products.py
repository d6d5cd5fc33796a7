"""Kernels of the suite `kernels` that multiply matrices: products, perceptrons, attention."""

import math
from typing import Any, Callable, Dict, Tuple

import torch
from torch import nn
from torch.nn import functional

from torchyard.worker.suites.choices import Choices, require
from torchyard.worker.suites.kernels.kernel import Kernel, need_torch


class Matmul(nn.Module):
    """Matrix product."""

    def forward(self, left: Any, right: Any) -> Any:
        """Return left times right."""
        return torch.matmul(left, right)


class Mlp(nn.Module):
    """Flatten, two wide hidden layers, one narrow output layer."""

    def __init__(self, inputs: int, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(inputs, width),
            nn.ReLU(),
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Any) -> Any:
        """Logits."""
        return self.layers(images)


DISTINCT_WEIGHTS = 8
SETTLING_ROUNDS = 8
MEASURED_ROUNDS = 8


class LayeredMlp(nn.Module):
    """`layers` times Linear and ReLU; the weights do not depend on how many layers there are."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.count = layers
        self.weights = nn.ModuleList(nn.Linear(width, width) for _ in range(DISTINCT_WEIGHTS))
        for linear in self.weights:
            nn.init.normal_(linear.weight, std=(2.0 / width) ** 0.5)
            nn.init.zeros_(linear.bias)
        self._level()

    def forward(self, values: Any) -> Any:
        """The values after the last layer."""
        for index in range(self.count):
            values = functional.relu(self.weights[index % DISTINCT_WEIGHTS](values))
        return values

    def _level(self) -> None:
        """Scale the weights so that activations neither grow nor shrink along the chain.

        In a long chain they must not become denormal numbers, which are slow, nor overflow a
        half-precision type. Without bias the chain is proportional to its input, so the growth per
        round in steady state can be divided out.
        """
        values = torch.ones(1, self.weights[0].in_features)
        growth = 0.0
        with torch.no_grad():
            for round_index in range(SETTLING_ROUNDS + MEASURED_ROUNDS):
                for linear in self.weights:
                    values = functional.relu(linear(values))
                size = float(values.norm())
                if size == 0.0:  # so narrow that every activation is zero: nothing to scale
                    return
                values = values / size
                if round_index >= SETTLING_ROUNDS:
                    growth += math.log(size) / (MEASURED_ROUNDS * DISTINCT_WEIGHTS)
            for linear in self.weights:
                linear.weight.mul_(math.exp(-growth))


class Attention(nn.Module):
    """Scaled dot-product attention over heads."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        """Return the attended values."""
        return functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)


class GroupedAttention(nn.Module):
    """Grouped-query attention: several heads share one key and value."""

    def forward(self, query: Any, key: Any, value: Any) -> Any:
        """Return the attended values."""
        return functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


def _product(choices: Choices, height: int, inner: int, columns: int) -> Kernel:
    batch: Tuple[int, ...] = () if choices.batch_size is None else (choices.batch_size,)
    operands = (torch.randn((*batch, height, inner)), torch.randn((*batch, inner, columns)))
    rows = choices.rows
    return Kernel(
        Matmul(),
        operands,
        rows * height * columns,
        2.0 * rows * height * inner * columns,
        operands_train=True,
    )


def _matmul(choices: Choices) -> Kernel:
    return _product(choices, choices["size"], choices["size"], choices["size"])


def _matmul_tall(choices: Choices) -> Kernel:
    return _product(choices, choices["height"], choices["width"], choices["width"])


def _matmul_vector(choices: Choices) -> Kernel:
    return _product(choices, choices["size"], choices["size"], 1)


def _mlp(choices: Choices) -> Kernel:
    size, width, hidden, classes = (choices[key] for key in ("size", "width", "hidden", "classes"))
    images = torch.rand(choices.rows, size, size)
    flops = 2.0 * choices.rows * (size * size * width + width * hidden + hidden * classes)
    return Kernel(
        Mlp(size * size, width, hidden, classes), (images,), choices.rows * classes, flops
    )


def _layered_mlp(choices: Choices) -> Kernel:
    layers, width = choices["layers"] + choices["extra_layers"], choices["width"]
    module = LayeredMlp(layers, width)
    inputs = torch.randn(choices.rows, width)
    flops = 2.0 * choices.rows * width**2 * layers
    return Kernel(module, (inputs,), choices.rows * width, flops)


def _attention(choices: Choices) -> Kernel:
    return _plain_attention(choices, choices["length"], bool(choices["causal"]))


def _attention_causal(choices: Choices) -> Kernel:
    return _plain_attention(choices, choices["length"], True)


def _attention_decode(choices: Choices) -> Kernel:
    return _plain_attention(choices, 1, False)


def _plain_attention(choices: Choices, queries: int, causal: bool) -> Kernel:
    heads, length, width = choices["heads"], choices["length"], choices["width"]
    query = torch.randn(choices.rows, heads, queries, width)
    key, value = (torch.randn(choices.rows, heads, length, width) for _ in range(2))
    # With a causal mask only these pairs count; an implementation may compute the others, too.
    pairs = length * (length + 1) // 2 if causal else queries * length
    flops = 4.0 * choices.rows * heads * pairs * width
    return Kernel(Attention(causal), (query, key, value), query.numel(), flops, operands_train=True)


def _attention_grouped(choices: Choices) -> Kernel:
    heads, shared, length, width = (
        choices[key] for key in ("heads", "key_heads", "length", "width")
    )
    require(
        heads % shared == 0,
        choices.label,
        "heads is not a multiple of key_heads",
        "give heads as a multiple of key_heads",
    )
    need_torch(2, 5, choices.label, "grouped attention")
    query = torch.randn(choices.rows, heads, length, width)
    key, value = (torch.randn(choices.rows, shared, length, width) for _ in range(2))
    flops = 4.0 * choices.rows * heads * length**2 * width
    return Kernel(
        GroupedAttention(), (query, key, value), query.numel(), flops, operands_train=True
    )


BUILDERS: Dict[str, Callable[[Choices], Kernel]] = {
    "matmul": _matmul,
    "matmul-tall": _matmul_tall,
    "matmul-batched": _matmul,
    "matmul-vector": _matmul_vector,
    "mlp": _mlp,
    "layered-mlp": _layered_mlp,
    "attention": _attention,
    "attention-causal": _attention_causal,
    "attention-grouped": _attention_grouped,
    "attention-decode": _attention_decode,
}
