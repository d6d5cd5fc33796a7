"""Pairs of programs with known truth: each workload is followed by candidates for it."""

# ruff: noqa: ARG004, ARG005, PLW0108 - candidates are wrappers on purpose
# mypy: disable-error-code="misc"

from __future__ import annotations

import copy
import enum
import threading
import time
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Square(nn.Module):
    """One tensor in, one out; wide enough that buffers are reused."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.inner(x))

    def example_inputs(self) -> Any:
        return (torch.randn(32, 64),)

    def loss(self, output: Any) -> Any:
        return output.square().mean()

    def optimizer(self, parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1)


# ---- wrong on Square
def ring_of_two(module: Any) -> Any:
    ring, calls = [torch.empty(32, 64), torch.empty(32, 64)], [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        out = ring[calls[0] % 2]
        if x.shape[0] != 32:
            return module(x)
        return out.copy_(module(x))

    return call


def ring_of_six(module: Any) -> Any:
    ring, calls = [torch.empty(32, 64) for _ in range(6)], [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        out = ring[calls[0] % 6]
        if x.shape[0] != 32:
            return module(x)
        return out.copy_(module(x))

    return call


def last_row_uninitialised(module: Any) -> Any:
    def call(x: Any) -> Any:
        out = torch.empty(x.shape[0], 64)
        out[:-1] = module(x[:-1])
        return out

    return call


def wrong_first_call(module: Any) -> Any:
    calls = [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        return module(x) * (0.5 if calls[0] == 1 else 1.0)

    return call


def wrong_third_call(module: Any) -> Any:
    calls = [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        return module(x) * (0.5 if calls[0] == 3 else 1.0)

    return call


def cached_by_first_element(module: Any) -> Any:
    known = {}

    def call(x: Any) -> Any:
        key = (float(x[0, 0]), tuple(x.shape))
        if key not in known:
            known[key] = module(x)
        return known[key].clone()

    return call


def corrupted_later_by_a_thread(module: Any) -> Any:
    def call(x: Any) -> Any:
        out = module(x)

        def later() -> Any:
            time.sleep(0.02)
            with torch.no_grad():
                out.detach()[0].zero_()

        threading.Thread(target=later, daemon=True).start()
        return out

    return call


def gradient_doubles_late(module: Any) -> Any:
    calls = [0]

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * (2.0 if calls[0] > 60 else 1.0)

    def call(x: Any) -> Any:
        calls[0] += 1
        return Double.apply(module(x))

    return call


def bias_gradient_twice(module: Any) -> Any:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    def call(x: Any) -> Any:
        return torch.tanh(functional.linear(x, module.inner.weight, Twice.apply(module.inner.bias)))

    return call


def input_requires_grad_left(module: Any) -> Any:
    def call(x: Any) -> Any:
        x.requires_grad_(True)
        return module(x)

    return call


def bfloat16_inside(module: Any) -> Any:
    def call(x: Any) -> Any:
        inner = module.inner
        y = functional.linear(x.bfloat16(), inner.weight.bfloat16(), inner.bias.bfloat16())
        return torch.tanh(y.float())

    return call


def one_element_in_a_hundred_thousandth(module: Any) -> Any:
    def call(x: Any) -> Any:
        y = module(x).clone()
        y[5, 7] *= 1.001
        return y

    return call


# ---- right on Square
def in_float64(module: Any) -> Any:
    double = copy.deepcopy(module).double()

    def call(x: Any) -> Any:
        for ours, theirs in zip(double.parameters(), module.parameters(), strict=True):
            with torch.no_grad():
                ours.copy_(theirs)
        return double(x.double()).float()

    return call


def slices_of_one_buffer(module: Any) -> Any:
    def call(x: Any) -> Any:
        buffer = torch.empty(2 * x.shape[0], 64)
        out = buffer[x.shape[0] :]
        out.copy_(module(x))
        return out

    return call


def transposed_strides(module: Any) -> Any:
    def call(x: Any) -> Any:
        return module(x).t().contiguous().t()

    return call


def split_reduction(module: Any) -> Any:
    def call(x: Any) -> Any:
        w = module.inner.weight
        return torch.tanh(
            x[:, :20] @ w[:, :20].t() + (x[:, 20:] @ w[:, 20:].t() + module.inner.bias)
        )

    return call


# ---- strided input
def strided() -> Any:
    return (lambda x: x.sum(1) + x[:, 0]), torch.randn(64, 32).t()


def assumes_contiguous(module: Any) -> Any:
    def call(x: Any) -> Any:
        y = torch.as_strided(x, x.shape, (x.shape[1], 1))
        return y.sum(1) + y[:, 0]

    return call


def expanded() -> Any:
    return (lambda x: (x * torch.arange(64.0)).cumsum(1)), torch.randn(1, 64).expand(16, 64)


def reads_one_row(module: Any) -> Any:
    def call(x: Any) -> Any:
        row = torch.as_strided(x, (1, 64), (64, 1))
        return (row * torch.arange(64.0)).cumsum(1).expand(x.shape[0], 64).clone()

    return call


# ---- aliases
class Copying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self, x: Any) -> Any:
        return x @ self.weight, x.clone(), self.weight.detach().clone()

    def example_inputs(self) -> Any:
        return (torch.randn(32, 64),)


def aliases_input(module: Any) -> Any:
    return lambda x: (x @ module.weight, x, module.weight.detach().clone())


def aliases_parameter(module: Any) -> Any:
    return lambda x: (x @ module.weight, x.clone(), module.weight.detach())


class LiveBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(64))

    def forward(self, x: Any) -> Any:
        self.state.mul_(0.9).add_(x.mean(0))
        return self.state

    def example_inputs(self) -> Any:
        return (torch.randn(32, 64),)


def returns_a_copy_of_the_buffer(module: Any) -> Any:
    return lambda x: module(x).clone()


class SideEffect(nn.Module):
    """Keeps its last hidden state for the code that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.last: Any = None

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.inner(x))
        self.last = hidden.detach()
        return hidden.sum(1)

    def example_inputs(self) -> Any:
        return (torch.randn(32, 64),)


def no_side_effect(module: Any) -> Any:
    return lambda x: torch.relu(module.inner(x)).sum(1)


class History(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.history: list[float] = []

    def forward(self, x: Any) -> Any:
        y = self.inner(x)
        self.history.append(float(y.detach().mean()))
        return y

    def example_inputs(self) -> Any:
        return (torch.randn(32, 64),)


class StatefulCell(nn.Module):
    """A recurrent cell that keeps its hidden state as a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 16)
        self.hidden: Any = None

    def forward(self, x: Any) -> Any:
        if self.hidden is None or self.hidden.shape[0] != x.shape[0]:
            self.hidden = torch.zeros(x.shape[0], 16)
        self.hidden = self.cell(x, self.hidden).detach()
        return self.hidden

    def example_inputs(self) -> Any:
        return (torch.randn(8, 16),)


def wrapped(module: Any) -> Any:
    return lambda *args, **kwargs: module(*args, **kwargs)


def drops_state(module: Any) -> Any:
    def call(x: Any) -> Any:
        return module.cell(x, torch.zeros(x.shape[0], 16)).detach()

    return call


# ---- out argument
def out_argument() -> Any:
    def f(x: Any, w: Any, out: Any) -> Any:
        torch.tanh(x @ w, out=out)
        return out

    return f, (torch.randn(32, 64), torch.randn(64, 64) / 8, torch.empty(32, 64))


def out_in_another_order(module: Any) -> Any:
    def call(x: Any, w: Any, out: Any) -> Any:
        out.copy_(torch.tanh(x[:, :20] @ w[:20] + x[:, 20:] @ w[20:]))
        return out

    return call


def out_not_written(module: Any) -> Any:
    return lambda x, w, out: torch.tanh(x @ w)


def out_only() -> Any:
    def f(x: Any, w: Any, out: Any) -> Any:
        torch.tanh(x @ w, out=out)

    return f, (torch.randn(32, 64), torch.randn(64, 64) / 8, torch.zeros(32, 64))


def out_only_in_another_order(module: Any) -> Any:
    def call(x: Any, w: Any, out: Any) -> Any:
        out.copy_(torch.tanh(x[:, :20] @ w[:20] + x[:, 20:] @ w[20:]))

    return call


def out_only_last_row_missing(module: Any) -> Any:
    def call(x: Any, w: Any, out: Any) -> Any:
        out[:-1].copy_(torch.tanh(x[:-1] @ w))

    return call


# ---- ties
def ties_topk() -> Any:
    return (lambda x: torch.topk(x, 5)), torch.randint(0, 8, (64, 100)).float()


def topk_by_sort(module: Any) -> Any:
    def call(x: Any) -> Any:
        values, order = torch.sort(x, dim=1, descending=True, stable=True)
        return torch.return_types.topk((values[:, :5].clone(), order[:, :5].clone()))

    return call


def topk_values_of_other_rows(module: Any) -> Any:
    def call(x: Any) -> Any:
        values, order = module(x)
        return torch.return_types.topk((values, order.roll(1, 0)))

    return call


TABLE = torch.randn(64, 200, generator=torch.Generator().manual_seed(5)) / 8


def argmax_of_logits() -> Any:
    return (lambda x: (x @ TABLE).argmax(1)), torch.randn(96, 64)


def argmax_in_float64(module: Any) -> Any:
    w = TABLE.double()
    return lambda x: (x.double() @ w).argmax(1)


def argmax_of_bfloat16(module: Any) -> Any:
    w = TABLE.bfloat16()
    return lambda x: (x.bfloat16() @ w).argmax(1)


def sign_mask() -> Any:
    return (lambda x: (x @ TABLE) > 0), torch.randn(96, 64)


def mask_in_float64(module: Any) -> Any:
    w = TABLE.double()
    return lambda x: (x.double() @ w) > 0


# ---- numerics
def softmax_by_hand() -> Any:
    return (lambda x: x.exp() / x.exp().sum(-1, keepdim=True)), torch.randn(32, 100)


def softmax_stable(module: Any) -> Any:
    return lambda x: x.softmax(-1)


def logsumexp_by_hand() -> Any:
    return (lambda x: x.exp().sum(-1).log()), torch.randn(32, 100)


def logsumexp_stable(module: Any) -> Any:
    return lambda x: x.logsumexp(-1)


def softplus_by_hand() -> Any:
    return (lambda x: torch.log(1 + torch.exp(x))), 3 * torch.randn(32, 100)


def softplus_stable(module: Any) -> Any:
    return lambda x: torch.logaddexp(x, torch.zeros(()))


def norm_overflows() -> Any:
    """In float16 the squares overflow."""
    return (lambda x: (x * x).sum(-1).sqrt()), torch.linspace(1, 200, 64)[:, None] * (
        1 + torch.rand(64, 8)
    )


def norm_in_float32(module: Any) -> Any:
    return lambda x: x.float().norm(dim=-1).to(x.dtype)


def layer_norm() -> Any:
    return (lambda x: functional.layer_norm(x, (256,), eps=1e-5)), torch.randn(64, 256)


def layer_norm_eps(module: Any) -> Any:
    return lambda x: functional.layer_norm(x, (256,), eps=1e-6)


def layer_norm_offset() -> Any:
    return (lambda x: functional.layer_norm(x, (256,))), 100 + torch.randn(64, 256)


def layer_norm_one_pass(module: Any) -> Any:
    def call(x: Any) -> Any:
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) * torch.rsqrt(variance + 1e-5)

    return call


def deviation() -> Any:
    return (lambda x: x.std(1)), torch.randn(200, 4096)


def deviation_biased(module: Any) -> Any:
    return lambda x: x.std(1, unbiased=False)


def gelu() -> Any:
    return (lambda x: functional.gelu(x)), torch.randn(64, 256)


def gelu_tanh(module: Any) -> Any:
    return lambda x: functional.gelu(x, approximate="tanh")


def gelu_by_hand(module: Any) -> Any:
    return lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))


def convolution() -> Any:
    return (lambda x, w: functional.conv1d(x, w)), (torch.randn(4, 1, 512), torch.randn(1, 1, 33))


def convolution_by_fft(module: Any) -> Any:
    def call(x: Any, w: Any) -> Any:
        n = x.shape[-1]
        product = torch.fft.rfft(x) * torch.fft.rfft(w, n).conj()
        return torch.fft.irfft(product, n)[..., : n - w.shape[-1] + 1].contiguous()

    return call


def denormal() -> Any:
    return (lambda x: x * 1e-39), 1 + torch.rand(64, 64)


def denormal_flushed(module: Any) -> Any:
    return lambda x: torch.zeros_like(x)


def half_sum() -> Any:
    """Sums many numbers; run in bfloat16."""
    return (lambda x: x.sum(-1)), 1 + torch.rand(16, 4096)


def half_sum_in_float32(module: Any) -> Any:
    return lambda x: x.float().sum(-1).to(x.dtype)


def half_sum_in_steps(module: Any) -> Any:
    def call(x: Any) -> Any:
        total = torch.zeros(x.shape[0], dtype=x.dtype)
        for part in x.split(16, 1):
            total = total + part.sum(-1)
        return total

    return call


class Rotary(nn.Module):
    """Rotary positions computed in float32, whatever the precision of the model."""

    def forward(self, x: Any) -> Any:
        length = x.shape[1]
        inverse = 1.0 / 10000 ** (torch.arange(0, 64, 2, dtype=torch.float32) / 64)
        angle = torch.arange(length, dtype=torch.float32)[:, None] * inverse
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat([even * cosine - odd * sine, even * sine + odd * cosine], -1)

    def example_inputs(self) -> Any:
        return (torch.randn(2, 1024, 64),)


def rotary_in_bfloat16(module: Any) -> Any:
    def call(x: Any) -> Any:
        length = x.shape[1]
        inverse = (1.0 / 10000 ** (torch.arange(0, 64, 2).float() / 64)).bfloat16()
        angle = torch.arange(length).bfloat16()[:, None] * inverse
        cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat([even * cosine - odd * sine, even * sine + odd * cosine], -1)

    return call


# ---- random
def multinomial() -> Any:
    return (lambda x: torch.multinomial(x.softmax(-1), 1)[:, 0]), torch.randn(512, 50)


def multinomial_by_gumbel(module: Any) -> Any:
    def call(x: Any) -> Any:
        return (x - torch.rand_like(x).log().neg().log()).argmax(-1)

    return call


def multinomial_greedy(module: Any) -> Any:
    return lambda x: x.argmax(-1)


def noisy() -> Any:
    return (lambda x: x + torch.randn_like(x)), torch.randn(64, 256)


def noisy_other_generator(module: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    return lambda x: x + torch.randn(x.shape, generator=generator)


def noisy_too_wide(module: Any) -> Any:
    generator = torch.Generator().manual_seed(3)
    return lambda x: x + 1.2 * torch.randn(x.shape, generator=generator)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return self.second(functional.dropout(torch.relu(self.first(x)), 0.5, self.training))

    def example_inputs(self) -> Any:
        return (torch.randn(32, 64),)

    def loss(self, output: Any) -> Any:
        return output.square().mean()


def checkpointed(module: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return lambda x: checkpoint(module, x, use_reentrant=False)


def checkpointed_without_state(module: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return lambda x: checkpoint(module, x, use_reentrant=False, preserve_rng_state=False)


def dropout_unscaled(module: Any) -> Any:
    def call(x: Any) -> Any:
        hidden = torch.relu(module.first(x))
        return module.second(hidden * (torch.rand_like(hidden) > 0.5))

    return call


def dropout_by_hand(module: Any) -> Any:
    def call(x: Any) -> Any:
        hidden = torch.relu(module.first(x))
        return module.second(hidden * (torch.rand_like(hidden) > 0.5) * 2)

    return call


# ---- containers and values
class Color(enum.Enum):
    RED = 1
    BLUE = 2


def strange() -> Any:
    def f(x: Any) -> Any:
        y = x.tanh()
        return {1: y, "a": [y.sum(1), None], (2, 3): b"ab", Color.RED: Fraction(1, 3), 2.5: y.shape}

    return f, torch.randn(8, 16)


def strange_key_wrong(module: Any) -> Any:
    def call(x: Any) -> Any:
        out = module(x)
        out[1] = out[1] * 1.01
        return out

    return call


def strange_bytes(module: Any) -> Any:
    return lambda x: {**module(x), (2, 3): b"ac"}


def strange_fraction(module: Any) -> Any:
    return lambda x: {**module(x), Color.RED: Fraction(1, 4)}


def strange_size(module: Any) -> Any:
    return lambda x: {**module(x), 2.5: torch.Size([16, 8])}


def strange_none(module: Any) -> Any:
    return lambda x: {**module(x), "a": [None, x.tanh().sum(1)]}


def strange_order(module: Any) -> Any:
    return lambda x: dict(reversed(list(module(x).items())))


def as_list() -> Any:
    return (lambda x: (x @ x).tolist()), torch.randn(16, 16)


def as_list_in_float64(module: Any) -> Any:
    return lambda x: (x.double() @ x.double()).float().tolist()


def as_list_one_wrong(module: Any) -> Any:
    def call(x: Any) -> Any:
        rows = module(x)
        rows[3][4] *= 1.01
        return rows

    return call


def as_array() -> Any:
    return (lambda x: (x @ x).numpy()), torch.randn(16, 16)


def as_array_in_float64(module: Any) -> Any:
    return lambda x: (x.double() @ x.double()).float().numpy()


def as_item() -> Any:
    return (lambda x: (x @ x).sum().item()), torch.rand(16, 16)


def as_item_in_float64(module: Any) -> Any:
    return lambda x: float((x.double() @ x.double()).sum().float())


def as_item_wrong(module: Any) -> Any:
    return lambda x: module(x) * 1.001


def distribution() -> Any:
    def f(x: Any) -> Any:
        return torch.distributions.Normal(x.tanh(), x.exp())

    return f, torch.randn(8, 16)


def distribution_wrong(module: Any) -> Any:
    return lambda x: torch.distributions.Normal(x.tanh(), (x * 1.01).exp())


def deep() -> Any:
    def f(x: Any) -> Any:
        out: Any = x.tanh()
        for number in range(40):
            out = [out] if number % 2 else {"k": out}
        return out

    return f, torch.randn(8, 16)


def deep_wrong(module: Any) -> Any:
    def call(x: Any) -> Any:
        out: Any = x.tanh() * 1.01
        for number in range(40):
            out = [out] if number % 2 else {"k": out}
        return out

    return call


def jagged() -> Any:
    def f(x: Any) -> Any:
        return torch.nested.as_nested_tensor([x[:2].tanh(), x[2:].tanh()], layout=torch.jagged)

    return f, torch.randn(8, 16)


def jagged_wrong(module: Any) -> Any:
    def f(x: Any) -> Any:
        return torch.nested.as_nested_tensor([x[:2].tanh(), x[2:].sin()], layout=torch.jagged)

    return f


def quantised_output() -> Any:
    return (lambda x: torch.quantize_per_tensor(x, 0.1, 10, torch.quint8)), torch.randn(8, 16)


def quantised_output_scale(module: Any) -> Any:
    def f(x: Any) -> Any:
        q = module(x)
        return torch._make_per_tensor_quantized_tensor(q.int_repr(), 0.2, 10)

    return f


def conjugate() -> Any:
    return (lambda x: (x * x).conj()), torch.randn(8, 16, dtype=torch.complex64)


def conjugate_resolved(module: Any) -> Any:
    return lambda x: (x * x).conj().resolve_conj()


def conjugate_missing(module: Any) -> Any:
    return lambda x: x * x


def uncoalesced() -> Any:
    def f(x: Any) -> Any:
        index = torch.tensor([[0, 1, 1, 2]])
        return torch.sparse_coo_tensor(index, x, (4, 16))

    return f, torch.randn(4, 16)


def coalesced(module: Any) -> Any:
    return lambda x: module(x).coalesce()


def empties() -> Any:
    return (lambda x: (x.tanh(), x[:0])), torch.randn(8, 16)


def empties_wrong_type(module: Any) -> Any:
    return lambda x: (x.tanh(), x[:0].double())


def empties_wrong_shape(module: Any) -> Any:
    return lambda x: (x.tanh(), x[:0, :3])


def positives() -> Any:
    """A result whose shape depends on the data."""
    return (lambda x: x[(x @ x.t())[:, :16] > 0].tanh()), torch.randn(64, 16)


def positives_one_less(module: Any) -> Any:
    return lambda x: module(x)[:-1]


def bytes_image() -> Any:
    def f(x: Any) -> Any:
        return (x.int() + 50).clamp(max=255).to(torch.uint8)

    return f, torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)


def bytes_image_wraps(module: Any) -> Any:
    return lambda x: x + 50


def negative_zero() -> Any:
    return (lambda x: x * -0.0 + x.relu()), torch.rand(64, 64).neg()


def positive_zero(module: Any) -> Any:
    return lambda x: x * 0.0 + x.relu()


# ---- training
class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 8), nn.BatchNorm1d(8)

    def forward(self, x: Any) -> Any:
        return self.norm(self.linear(x))

    def example_inputs(self) -> Any:
        return (torch.randn(32, 16),)

    def loss(self, output: Any) -> Any:
        return output.square().mean() + output[:, 0].mean()


def other_momentum(module: Any) -> Any:
    norm = module.norm

    def call(x: Any) -> Any:
        y = module.linear(x)
        norm.num_batches_tracked.add_(1)
        return functional.batch_norm(
            y, norm.running_mean, norm.running_var, norm.weight, norm.bias, True, 0.11, norm.eps
        )

    return call


def counts_no_batches(module: Any) -> Any:
    norm = module.norm

    def call(x: Any) -> Any:
        y = module.linear(x)
        return functional.batch_norm(
            y, norm.running_mean, norm.running_var, norm.weight, norm.bias, True, 0.1, norm.eps
        )

    return call


def norm_by_hand(module: Any) -> Any:
    norm = module.norm

    def call(x: Any) -> Any:
        y = module.linear(x)
        mean, variance = y.mean(0), y.var(0, unbiased=False)
        with torch.no_grad():
            n = y.shape[0]
            norm.running_mean.lerp_(mean, 0.1)
            norm.running_var.lerp_(variance * n / (n - 1), 0.1)
            norm.num_batches_tracked.add_(1)
        return (y - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias

    return call


class InputGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return self.linear(x).tanh()

    def example_inputs(self) -> Any:
        return (torch.randn(32, 16, requires_grad=True),)

    def loss(self, output: Any) -> Any:
        return output.square().mean()


def input_detached(module: Any) -> Any:
    return lambda x: module(x.detach())


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.LazyLinear(8), nn.LazyBatchNorm1d()

    def forward(self, x: Any) -> Any:
        return self.norm(self.linear(x))

    def example_inputs(self) -> Any:
        return (torch.randn(32, 16),)

    def loss(self, output: Any) -> Any:
        return output.square().mean() + output[:, 0].mean()


class Fused(nn.Module):
    """Rounding decides the index, and its value follows."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Any) -> Any:
        choice = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out = torch.where((choice == number)[:, None], expert(x), out)
        return out

    def example_inputs(self) -> Any:
        return (torch.randn(512, 64),)

    def loss(self, output: Any) -> Any:
        return output.square().mean()


def experts_gathered(module: Any) -> Any:
    def call(x: Any) -> Any:
        choice = module.router(x).argmax(-1)
        out = torch.empty_like(x)
        for number, expert in enumerate(module.experts):
            rows = (choice == number).nonzero()[:, 0]
            out = out.index_copy(0, rows, expert(x[rows]))
        return out

    return call


def experts_by_second_choice_when_close(module: Any) -> Any:
    """Chooses the second expert in one row."""

    def call(x: Any) -> Any:
        out = module(x).clone()
        second = module.router(x[:1]).topk(2).indices[0, 1]
        out[:1] = module.experts[int(second)](x[:1])
        return out

    return call
