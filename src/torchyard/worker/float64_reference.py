"""The reference: the same iteration in float64. Runs inside the target.

The copy must not take the machine down with it: what it needs is estimated from the bytes of the
model and from the peak of an iteration, and it is not made when it does not fit what is free. Then
the check falls back to the cosine, and says so.
"""

import gc
import os
import resource
from typing import Any, Iterator, List, Optional, Tuple

import torch

from torchyard.worker import metrics
from torchyard.worker.devices import cuda_device
from torchyard.worker.side import Model, Side, convert
from torchyard.worker.tensor_distance import Results, shapes_of, to_plain

FREE_SHARE = 0.9
"""Of the free memory that the copy may take; the rest is for what the estimate leaves out."""
GIB = 1 << 30


def float64_results(
    side: Side, seed: int, like: Results, limit_bytes: Optional[int] = None
) -> Tuple[Optional[Results], str]:
    """Results of an eager float64 copy in the shapes of `like`, or why there are none.

    `limit_bytes` is what the whole process may hold, where the yard set such a limit.
    """
    try:
        reason = _why_it_does_not_fit(side, limit_bytes)
        if reason:
            return None, reason
        side.model.rewind()
        found = to_plain(_run_copy(side, seed), _place(like))
    except Exception as error:  # a model may raise anything when its numbers are of another type
        lines = str(error).strip().splitlines()
        return None, type(error).__name__ + (": " + lines[0][:200] if lines else "")
    finally:
        _give_back(side.device)
    if shapes_of(found) != shapes_of(like):
        return None, "in float64 the workload gives results of other shapes"
    return found, ""


def _place(like: Results) -> Any:
    """Where the other results are."""
    tensors = [tensor for group in like.values() for tensor in group]
    return tensors[0].device if tensors else torch.device("cpu")


def _why_it_does_not_fit(side: Side, limit_bytes: Optional[int]) -> str:
    free = free_bytes(side.device)
    held = _field("/proc/self/status", "VmRSS")
    if limit_bytes is not None and held is not None and torch.device(side.device).type == "cpu":
        left = max(0, limit_bytes - held)
        free = left if free is None else min(free, left)
    if free is None or _surely_fits(side, free):
        return ""
    needed = needed_bytes(side)
    if needed <= FREE_SHARE * free:
        return ""
    sizes = (needed / GIB, free / GIB)
    return "a float64 copy needs about %.2f GiB, and %.2f GiB are free" % sizes


def _surely_fits(side: Side, free: int) -> bool:
    """Whether even four times all that this process ever held is free: then nothing is measured.

    Four times is float16 made float64; an iteration has already run.
    """
    cuda = cuda_device(side.device)
    if cuda is not None:
        return 4 * cuda.peak_bytes() <= FREE_SHARE * free
    most = _field("/proc/self/status", "VmHWM")
    return most is not None and 4 * most <= FREE_SHARE * free


def _run_copy(side: Side, seed: int) -> Results:
    model = side.model
    copied = convert(model.built, torch.float64)
    exact = Model(copied, model.training, model.optimizer is not None)
    found, _ = Side(side.name, "eager", "float64", exact, side.device).results(seed)
    return found


def needed_bytes(side: Side) -> int:
    """What the copy takes: itself, how it began, its optimiser's state, and one iteration."""
    model = side.model
    parameters = _float64_bytes(list(model.module.parameters()))
    rest = _float64_bytes(list(model.module.buffers()) + model.inputs())
    copies = 2 if model.training or model.built.mutates else 1
    total = copies * parameters + 2 * rest
    if model.optimizer is not None:
        total += 2 * parameters
    side.first_call()
    peak, _, _ = metrics.peak_memory(side)
    model.rewind()
    widths = [p.element_size() for p in model.module.parameters() if p.is_floating_point()]
    widest = max(widths, default=4)
    return total + (peak or 0) * max(1, 8 // widest)


def _float64_bytes(tensors: List[Any]) -> int:
    total = 0
    for tensor in tensors:
        if tensor.is_complex():
            width = 16
        else:
            width = 8 if tensor.is_floating_point() else tensor.element_size()
        if tensor.layout is torch.strided:
            total += int(tensor.numel()) * width
    return total


def free_bytes(device: str) -> Optional[int]:
    """What can still be allocated: the least of the machine's, the group's and the process's."""
    cuda = cuda_device(device)
    if cuda is not None:
        return cuda.free_bytes() + cuda.reserved_bytes()
    return min(_host_limits(), default=None)


def _host_limits() -> Iterator[int]:
    available = _field("/proc/meminfo", "MemAvailable")
    if available is not None:
        yield available
    for folder in _control_groups():
        limit, used = (_number(os.path.join(folder, name)) for name in _GROUP_FILES)
        if limit is not None and used is not None:
            yield max(0, limit - used)
    for kind, field in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, _ = resource.getrlimit(kind)
        used = _field("/proc/self/status", field)
        if soft != resource.RLIM_INFINITY and used is not None:
            yield max(0, soft - used)


_GROUP_FILES = ("memory.max", "memory.current")


def _control_groups() -> List[str]:
    """This process's group of version 2 and those above it: each may have a limit of its own."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return []
    path = next((line[3:] for line in lines if line.startswith("0::")), "").strip("/")
    parts = path.split("/") if path else []
    return ["/sys/fs/cgroup/" + "/".join(parts[:end]) for end in range(len(parts), -1, -1)]


def _field(path: str, name: str) -> Optional[int]:
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _number(path: str) -> Optional[int]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _give_back(device: str) -> None:
    gc.collect()
    cuda = cuda_device(device)
    if cuda is not None:
        cuda.empty_cache()
