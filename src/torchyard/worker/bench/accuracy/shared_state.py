"""State that the variants of a process share: the module, its inputs, and the time of eager code.

A candidate that changes it changes the baseline, too, and neither results nor the state of the process show it.
"""

import glob
import os
import threading
import time
from typing import Any, Dict, List, Set, Tuple

import torch
from torch import nn

from torchyard.worker.bench.accuracy.tensors import describe
from torchyard.worker.bench.model import Model
from torchyard.worker.bench.timing import wait_until_idle
from torchyard.worker.bench.variant import VariantRunner

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
PLAIN = (bool, int, float, str, type(None))
"""Types of attributes whose values are compared."""
ATTRIBUTE = "attribute "
"""Start of the labels of what eager code often changes itself, such as counters."""
OF_TORCH = {"training", "_is_torch_compile"}
"""Attributes that are compared elsewhere, or that `torch.compile` sets on the module that it wraps."""
Facts = Tuple[Any, ...]
"""Labels and values, in turn."""


class ModuleState:
    """Snapshot of the structure of a module, its inputs and its optimizer; `changes` compares it with now."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._ignored: Set[Tuple[str, str]] = set()
        """Facts that eager code changes."""
        self._before = self._read()

    def changes(self, attributes: bool) -> List[str]:
        """Return descriptions of up to three changes; without `attributes`, of the structure only."""
        now = self._read()
        changes = []
        for name, facts in self._before.items():
            if name not in now:
                changes.append("%s was removed" % name)
                continue
            changes += [
                "%s of %s" % (label, name)
                for label in differing(facts, now[name])
                if (name, label) not in self._ignored
                and (attributes or not label.startswith(ATTRIBUTE))
            ]
        changes += ["%s was added" % name for name in now if name not in self._before]
        return changes[:3]

    def eager_ran(self) -> None:
        """Accept the current state, and ignore in future what eager code has changed since the last time."""
        now = self._read()
        for name, facts in self._before.items():
            labels = differing(facts, now.get(name, facts))
            self._ignored.update((name, label) for label in labels)
        self._before = now

    def accept(self) -> None:
        """Accept the current state, after its changes were reported."""
        self._before = self._read()

    def _read(self) -> Dict[str, Facts]:
        state: Dict[str, Facts] = {}
        module = self._model.module
        for name, part in module.named_modules():
            state["module %s" % (name or "(root)")] = _facts_of_module(part)
        for name, parameter in module.named_parameters():
            state["parameter " + name] = (
                "identity",
                id(parameter),
                *_facts_of_tensor(parameter),
            )
        for index, tensor in enumerate(self._model.inputs()):
            state["input %d" % index] = _facts_of_tensor(tensor)
        parts = describe((self._model.args, self._model.kwargs), False)
        state["the inputs"] = (
            ATTRIBUTE + "values",
            [(part.where, part.facts, part.number) for part in parts if part.kind != "tensor"],
        )
        optimizer = self._model.optimizer
        if optimizer is not None:
            kind = type(optimizer)
            groups = [dict(group, params=None) for group in optimizer.param_groups]
            state["the optimizer"] = (
                "type",
                kind,
                "step",
                (vars(optimizer).get("step"), vars(kind).get("step")),
                "settings",
                [_plain_items(group) for group in groups],
            )
        return state


def differing(before: Facts, now: Facts) -> List[str]:
    """Return the labels of facts that differ."""
    earlier = dict(zip(before[::2], before[1::2]))
    later = dict(zip(now[::2], now[1::2]))
    labels = list(dict.fromkeys([*earlier, *later]))
    return [label for label in labels if earlier.get(label) != later.get(label)]


def _facts_of_module(part: nn.Module) -> Facts:
    own = vars(part)
    facts: List[Any] = [
        "identity",
        id(part),
        "type",
        type(part),
        "training mode",
        part.training,
        "forward",
        (own.get("forward"), getattr(type(part), "forward", None)),
        "call",
        (own.get("__call__"), type(part).__call__, own.get("_compiled_call_impl")),
        "hooks",
        tuple(tuple(own.get(hooks) or ()) for hooks in HOOKS),
    ]
    for name, value in {**_of_class(type(part)), **_plain_items(own)}.items():
        if name not in OF_TORCH:
            facts += [ATTRIBUTE + name, value]
    for name, value in own.items():
        if hasattr(value, "__dict__") and not isinstance(value, (nn.Module, torch.Tensor)):
            for key, item in _plain_items(vars(value)).items():
                facts += [ATTRIBUTE + "%s.%s" % (name, key), item]
    return tuple(facts)


def _of_class(kind: type) -> Dict[str, Any]:
    """Return plain attributes of classes outside torch."""
    items: Dict[str, Any] = {}
    for one in reversed(kind.__mro__):
        if one.__module__.partition(".")[0] not in ("torch", "builtins"):
            items.update(_plain_items(vars(one)))
    return items


def _plain_items(values: Any) -> Dict[str, Any]:
    return {
        name: value
        for name, value in values.items()
        if not str(name).startswith("__")
        and (
            isinstance(value, PLAIN)
            or (isinstance(value, tuple) and all(isinstance(item, PLAIN) for item in value))
        )
    }


def _facts_of_tensor(tensor: Any) -> Facts:
    return (
        "data type",
        tensor.dtype,
        "shape",
        tuple(tensor.shape) if tensor.layout is torch.strided else (),
        "device",
        tensor.device,
        "memory layout",
        tensor.stride() if tensor.layout is torch.strided else (),
        "requires_grad",
        tensor.requires_grad,
        "hooks",
        (
            tuple(getattr(tensor, "_backward_hooks", None) or ()),
            tuple(getattr(tensor, "_post_accumulate_grad_hooks", None) or ()),
        ),
    )


SAMPLE_NS = 200_000
LONGEST_NS = 100_000_000
FEWEST_SAMPLES = 3
LONG_CALL_NS = 1_000_000_000
"""Of longer calls, a single one is timed."""
SLOWER = 2.0
"""Eager code that needs this factor more CPU time than before any candidate ran was changed by one."""
CONTROL_CALLS = 20
CONTROL_SAMPLES = 100
LEAST_NS = 3000.0
TRIALS = 4
IDLE_SAMPLES = 10
IDLE_SLEEP_S = 0.01
"""A thread that is runnable in half of the samples computes while no variant runs."""

_cpu_ns = time.process_time_ns
_clock_ns = time.perf_counter_ns
"""Bound before any user code runs."""


class EagerTime:
    """CPU time of an eager iteration before any candidate runs; `slower` compares it with now.

    CPU time depends less on other processes than wall time. How much it does is seen from operators that no
    candidate can change. On an accelerator it says little, and is not compared.
    """

    def __init__(self, peer: VariantRunner, state: ModuleState) -> None:
        """Run eager code; what it changes itself is ignored in `state` from now on."""
        self._peer = peer
        self._compared = peer.hardware.is_host
        with peer.context(), peer.model.without_optimizer():
            peer.caller()()
        peer.synchronize()
        peer.model.rewind()
        state.eager_ran()  # after one call: a counter may return to its value
        if self._compared:
            self._control_ns = _control_ns()
            self._before_ns = self._shortest_ns()
            state.eager_ran()

    def slower(self) -> str:
        """Describe how much slower eager code has become; empty if it has not."""
        if not self._compared:
            return ""
        now_ns = 0.0
        for _ in range(TRIALS):
            now_ns = self._shortest_ns()
            machine = max(1.0, _control_ns() / self._control_ns)
            if now_ns <= SLOWER * machine * self._before_ns:
                return ""
            if now_ns - self._before_ns <= LEAST_NS:
                return ""
        return "the CPU time of eager code from %.3g us to %.3g us" % (
            self._before_ns / 1e3,
            now_ns / 1e3,
        )

    def _shortest_ns(self) -> float:
        peer = self._peer
        peer.model.rewind()
        durations: List[float] = []
        with peer.context(), peer.model.without_optimizer():
            call = peer.caller()
            begin_ns, count = _clock_ns(), 1
            while not durations or _more(len(durations), _clock_ns() - begin_ns):
                start_ns = _cpu_ns()
                for _ in range(count):
                    call()
                    peer.forget_gradients()
                used_ns = _cpu_ns() - start_ns
                durations.append(used_ns / count)
                if used_ns < SAMPLE_NS:
                    count = min(1000, 2 * count)
        peer.model.rewind()
        return min(durations)


def _control_ns() -> float:
    """Return the CPU time of a few operators on tensors of their own."""
    durations: List[float] = []
    with torch.no_grad():
        weight, values = torch.ones(32, 32), torch.ones(32, 32)
        for _ in range(CONTROL_SAMPLES):
            start_ns = _cpu_ns()
            for _ in range(CONTROL_CALLS):
                torch.tanh(values @ weight)
            durations.append(float(_cpu_ns() - start_ns))
    return max(1.0, min(durations))


def _more(samples: int, elapsed_ns: float) -> bool:
    if elapsed_ns < LONGEST_NS:
        return True
    return samples < FEWEST_SAMPLES and elapsed_ns < LONG_CALL_NS


def computes_without_calls() -> bool:
    """Whether threads of this process, or processes that it started, compute while no variant runs.

    They are runnable then, also if other processes leave them no time.
    """
    for _ in range(TRIALS):
        wait_until_idle()
        counts: Dict[str, int] = {}
        for _ in range(IDLE_SAMPLES):
            time.sleep(IDLE_SLEEP_S)
            for task in _runnable_tasks(os.getpid()):
                counts[task] = counts.get(task, 0) + 1
        if max(counts.values(), default=0) < IDLE_SAMPLES / 2:
            return False
    return True


def _runnable_tasks(process: int) -> List[str]:
    """Return the runnable threads of a process and of its descendants, without the calling thread."""
    folders: List[str] = []
    own = "/%d" % threading.get_native_id()
    for folder in glob.glob("/proc/%d/task/*" % process):
        state = _read(folder + "/stat").rpartition(")")[2].split()[:1]
        if state == ["R"] and not folder.endswith(own):
            folders.append(folder)
        for child in _read(folder + "/children").split():
            folders += _runnable_tasks(int(child))
    return folders


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # the thread has ended, or the kernel does not list children
        return ""
