"""Candidates whose behavior is wrong or harms the comparison. Each takes the module that `bench` passes."""

# ruff: noqa: PLW0108, ANN001, ARG002, ARG005 - candidates are wrappers on purpose
# mypy: disable-error-code="misc"

from __future__ import annotations

import gc
import inspect
import os
import random
import sys
import threading
import time
from typing import Any

import torch


def right_for_ten_calls(module: Any) -> Any:
    calls = [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        found = module(x)
        return found if calls[0] <= 40 else torch.zeros_like(found)

    return call


def wrong_every_seventh(module: Any) -> Any:
    calls = [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        found = module(x)
        return found if calls[0] % 7 else found + 1

    return call


def _remembering(module: Any, key_of: Any) -> Any:
    known: dict[Any, Any] = {}

    def call(x: Any) -> Any:
        key = key_of(x)
        if key not in known:
            known[key] = module(x)
        return known[key]

    return call


def cached_by_id(module: Any) -> Any:
    return _remembering(module, id)


def cached_by_pointer(module: Any) -> Any:
    return _remembering(module, lambda x: x.data_ptr())


def cached_by_shape(module: Any) -> Any:
    return _remembering(module, lambda x: tuple(x.shape))


def cached_by_version(module: Any) -> Any:
    return _remembering(module, lambda x: (id(x), x.shape, x.dtype, x.device))


def cached_by_content(module: Any) -> Any:
    """The weights are part of the key: nothing but its speed gives it away."""

    def key(x: Any) -> Any:
        weights = tuple(float(p.sum()) for p in module.parameters())
        return x.numpy().tobytes(), weights

    return _remembering(module, key)


def cached_by_sum_after_five(module: Any) -> Any:
    """Remembers only inputs that came five times."""
    known: dict[Any, Any] = {}
    seen: dict[Any, int] = {}

    def call(x: Any) -> Any:
        key = (float(x.sum()), float(x[0, 0]), float(next(module.parameters()).sum()))
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= 5 or x.shape[0] not in (8, 192):
            return module(x)
        if key not in known:
            known[key] = module(x)
        return known[key]

    return call


def returns_previous(module: Any) -> Any:
    last: list[Any] = []

    def call(x: Any) -> Any:
        found = module(x)
        previous = last[0] if last else found
        last[:] = [found]
        return previous

    return call


def reuses_output_storage(module: Any) -> Any:
    buffer: list[Any] = []

    def call(x: Any) -> Any:
        found = module(x)
        if not buffer or buffer[0].shape != found.shape:
            buffer[:] = [torch.empty_like(found)]
        return buffer[0].copy_(found)

    return call


def modifies_input(module: Any) -> Any:
    def call(x: Any) -> Any:
        found = module(x)
        x.add_(1e-3)
        return found

    return call


def modifies_input_late(module: Any) -> Any:
    calls = [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        found = module(x)
        if calls[0] > 40:
            x.mul_(1.001)
        return found

    return call


def modifies_weights(module: Any) -> Any:
    def call(x: Any) -> Any:
        found = module(x)
        with torch.no_grad():
            next(module.parameters()).data.mul_(1.0000001)
        return found

    return call


def leaves_input_alone(module: Any) -> Any:
    return lambda x: module(x.clone())


def rewrites_one_wrong_element(module: Any) -> Any:
    def call(x: Any) -> Any:
        output = module(x)
        module.table[3, 5] += 0.01
        return output

    return call


def skips_running_statistics(module: Any) -> Any:
    def call(x: Any) -> Any:
        before = [buffer.clone() for buffer in module.buffers()]
        found = module(x)
        for buffer, value in zip(module.buffers(), before, strict=True):
            buffer.data.copy_(value)
        return found

    return call


def updates_statistics_twice(module: Any) -> Any:
    def call(x: Any) -> Any:
        with torch.no_grad():
            module(x)
        return module(x)

    return call


def sets_threads(module: Any) -> Any:
    def call(x: Any) -> Any:
        torch.set_num_threads(3)
        return module(x)

    return call


def sets_default_dtype(module: Any) -> Any:
    torch.set_default_dtype(torch.float64)
    return lambda x: module(x)


def replaces_clock(module: Any) -> Any:
    real = time.perf_counter_ns
    time.perf_counter_ns = lambda: real() // 1000
    return lambda x: module(x)


def replaces_linear(module: Any) -> Any:
    real = torch.nn.functional.linear

    def slow(*args: Any, **kwargs: Any) -> Any:
        return real(*args, **kwargs)

    torch.nn.functional.linear = slow
    return lambda x: module(x)


def replaces_forward_of_a_class(module: Any) -> Any:
    """In every call, so that it is there again after it was put back."""
    kind = type(module.inner)
    real = kind.forward

    def call(x: Any) -> Any:
        kind.forward = lambda self, values: real(self, values)
        return module(x)

    return call


def leaves_inference_mode_on(module: Any) -> Any:
    guard = torch.inference_mode()
    guard.__enter__()
    sys.corpus_clean_up = lambda: guard.__exit__(None, None, None)  # type: ignore[attr-defined]
    return lambda x: module(x)


def seeds_generators(module: Any) -> Any:
    def call(x: Any) -> Any:
        torch.manual_seed(0)
        random.seed(0)
        return module(x)

    return call


def switches_collector_off(module: Any) -> Any:
    gc.disable()
    gc.set_threshold(1, 1, 1)
    return lambda x: module(x)


def leaves_tracing_on(module: Any) -> Any:
    sys.setprofile(lambda *_: None)
    return lambda x: module(x)


def flushes_denormals(module: Any) -> Any:
    torch.set_flush_denormal(True)
    return lambda x: module(x)


def sets_affinity(module: Any) -> Any:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return lambda x: module(x)


def sets_environment(module: Any) -> Any:
    os.environ["OMP_PROC_BIND"] = "true"
    return lambda x: module(x)


def returns_numpy(module: Any) -> Any:
    return lambda x: module(x).detach().numpy()


def returns_list(module: Any) -> Any:
    return lambda x: list(module(x))


def returns_double(module: Any) -> Any:
    return lambda x: module(x).double()


def returns_detached(module: Any) -> Any:
    def call(x: Any) -> Any:
        one, two = module(x)
        return one, two.detach()

    return call


class Lazy(torch.Tensor):
    """Computes when somebody looks."""

    @staticmethod
    def __new__(cls, make: Any, like: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

    def __init__(self, make: Any, like: Any) -> None:
        self.make = make

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_map

        kwargs = kwargs or {}
        return func(
            *tree_map(lambda a: a.make() if isinstance(a, Lazy) else a, args),
            **tree_map(lambda a: a.make() if isinstance(a, Lazy) else a, kwargs),
        )


def returns_lazy_tensor(module: Any) -> Any:
    return lambda x: Lazy(lambda: module(x), x)


class Later:
    """An object that computes when asked."""

    def __init__(self, make: Any) -> None:
        self._make = make

    @property
    def value(self) -> Any:
        return self._make()


def returns_promise(module: Any) -> Any:
    return lambda x: Later(lambda: module(x))


def computes_in_thread(module: Any) -> Any:
    buffer: list[Any] = []

    def work(x: Any, out: Any) -> None:
        with torch.no_grad():
            time.sleep(0.002)
            out.copy_(module(x))

    def call(x: Any) -> Any:
        if not buffer or buffer[0].shape != x.shape:
            buffer[:] = [module(x)]
        threading.Thread(target=work, args=(x, buffer[0])).start()
        return buffer[0]

    return call


def correct_when_checked(module: Any) -> Any:
    """Looks at the stack for the functions that check results."""

    def call(x: Any) -> Any:
        names = {frame.function for frame in inspect.stack()}
        found = module(x)
        return found if names & {"results", "output_of", "judge", "make_reference"} else found * 0

    return call


def correct_for_known_values(module: Any) -> Any:
    """Right for the inputs that the workload made, and wrong for others."""
    first: list[Any] = []

    def call(x: Any) -> Any:
        if not first:
            first.append(x.clone())
        found = module(x)
        return found if torch.equal(x, first[0]) else found * 0

    return call


def wrong_for_zeros_in_gradient_mode(module: Any) -> Any:
    """Wrong outside of gradient mode, where only blocks of inference run."""
    return lambda x: module(x) if torch.is_grad_enabled() else module(x) * 1.1


def freezes_weights(module: Any) -> Any:
    import copy

    frozen = copy.deepcopy(module)
    return lambda x: frozen(x)


def one_batch_size(module: Any) -> Any:
    """Wrong for fewer rows than it was made for."""

    def call(x: Any) -> Any:
        found = module(x)
        return found if x.shape[0] == 8 else found * 0

    return call


def clamps_large_inputs(module: Any) -> Any:
    return lambda x: module(x.clamp(-20, 20))


def drops_small_inputs(module: Any) -> Any:
    return lambda x: module(torch.where(x.abs().max() < 0.5, torch.zeros_like(x), x))


def converts_module_in_place(module: Any) -> Any:
    for part in module.modules():
        part.register_forward_hook(lambda *_: None)
    return lambda x: module(x)


def compiles_module_in_place(module: Any) -> Any:
    real = module.forward
    module.forward = lambda x: real(x)
    return module


def skips_one_gradient(module: Any) -> Any:
    def call(x: Any) -> Any:
        hidden = torch.relu(module.first(x)).detach()
        one = module.second(hidden)
        return one, torch.relu(module.first(x))

    return call


def skips_optimizer_step(module: Any) -> Any:
    torch.optim.SGD.step = lambda self, closure=None: None
    return lambda x: module(x)


def counter_stands_still(module: Any) -> Any:
    def call(x: Any) -> Any:
        return x * (module.calls + 1)

    return call


def drops_dict_key(module: Any) -> Any:
    return lambda x: {"one": module(x)["one"]}


def raises_when_checked_again(module: Any) -> Any:
    calls = [0]

    def call(x: Any) -> Any:
        calls[0] += 1
        if calls[0] > 120:
            raise RuntimeError("no more calls")
        return module(x)

    return call
