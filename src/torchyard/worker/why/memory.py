"""Memory at the peak of one iteration, by the operator that allocated it.

The allocator of torch reports every allocation to the profiler. Workspaces of libraries and memory
that was allocated before the iteration (parameters, inputs) are not among them. Generated code
allocates its buffers just before the kernel that writes them, so these belong to that kernel.
"""

from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import torch
from torch.profiler import ProfilerActivity, profile

from torchyard.worker.bench.backend_names import uses_dynamo
from torchyard.worker.bench.variant import VariantRunner
from torchyard.worker.why.assignment import ITERATION, Assignment, Cost, Event
from torchyard.worker.why.kernels import GeneratedCode, Labels
from torchyard.worker.why.sources import TracedOperator, Unit


class Change(NamedTuple):
    """An allocation, or a release with negative size."""

    time_ns: int
    address: int
    size_bytes: int


class AllocatingEvent(Event):
    """An event with the allocations that it makes; they are its cost."""

    def __init__(self, name: str, start_ns: float, end_ns: float) -> None:
        super().__init__(name, start_ns, end_ns)
        self.allocations: List[int] = []
        """Indices of changes."""

    def costs(self) -> Iterator[Cost]:
        """Return its allocations and those of its children."""
        yield from self.own_costs()
        for child in self.children:
            yield from child.costs()

    def own_costs(self) -> Iterator[Cost]:
        """Return its allocations without those of its children."""
        for index in self.allocations:
            yield Cost("", float(index), 1, 0)


class SiteAssignment(Assignment):
    """Assigns allocations instead of times."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sites: Dict[int, Tuple[str, Tuple[Unit, ...]]] = {}

    def _add_cost(self, name: str, units: Tuple[Unit, ...], cost: Cost) -> None:
        self.sites[int(cost.duration_ns)] = (name, units)


def live_at_peak(changes: Sequence[Change]) -> List[int]:
    """Return the indices of the allocations that exist when their sum is largest.

    Memory that is released but was allocated before the first change does not count.
    """
    order = sorted(range(len(changes)), key=lambda index: changes[index].time_ns)
    totals = [total for total, _ in _replay(changes, order)]
    if not totals or max(totals) <= 0:
        return []
    *_, (_, live) = _replay(changes, order[: totals.index(max(totals)) + 1])
    return list(live.values())


def _replay(
    changes: Sequence[Change], order: Sequence[int]
) -> Iterator[Tuple[int, Dict[int, int]]]:
    """Yield total size and live allocations by address after each change."""
    live: Dict[int, int] = {}
    total = 0
    for index in order:
        one = changes[index]
        if one.size_bytes > 0:
            live[one.address] = index
            total += one.size_bytes
        elif one.address in live:
            total -= changes[live.pop(one.address)].size_bytes
        yield total, live


def allocating_tree(root: Any, device: str, changes: List[Change]) -> AllocatingEvent:
    """Return the events below `root` of the profiler's tree; add its memory changes to `changes`."""
    event = AllocatingEvent(root.name, float(root.start_time_ns), float(root.end_time_ns))
    loose: List[int] = []
    for child in sorted(root.children, key=lambda one: int(one.start_time_ns)):
        fields = child.extra_fields
        if hasattr(fields, "alloc_size"):
            if fields.device.type == device:
                if fields.alloc_size > 0:
                    loose.append(len(changes))
                changes.append(Change(child.start_time_ns, fields.ptr, fields.alloc_size))
            continue
        own = allocating_tree(child, device, changes)
        event.children.append(own)
        if not _is_operator(event):  # buffers of generated code
            own.allocations += loose
            loose = []
    event.allocations += loose
    return event


def _is_operator(event: Event) -> bool:
    return "::" in event.name and not event.name.startswith(("autograd::", "ty::"))


def peak_by_site(
    runner: VariantRunner, operators: Sequence[TracedOperator], code: GeneratedCode
) -> Dict[str, Any]:
    """Run one iteration; return the peak of its allocations and who made those that were live then."""
    labels: Labels = {}
    with runner.context():
        call = runner.caller()
        call()
        runner.model.forget_gradients()
        runner.synchronize()
        profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        iteration = torch.autograd.profiler.record_function(ITERATION)
        with code.labelled(labels), profiler, iteration:
            call()
            runner.synchronize()
    runner.model.forget_gradients()
    changes: List[Change] = []
    roots = _iterations(profiler.profiler.kineto_results.experimental_event_tree())
    device = str(runner.device).partition(":")[0]
    compiled = uses_dynamo(runner.backend)
    assignment = SiteAssignment(operators, code.calls(), labels, compiled=compiled)
    for root in roots:
        assignment.iteration(allocating_tree(root, device, changes))
    totals: Dict[Tuple[str, Tuple[Unit, ...]], int] = {}
    for index in live_at_peak(changes):
        site = assignment.sites.get(index, ("", ()))
        totals[site] = totals.get(site, 0) + changes[index].size_bytes
    sites = [[name, [list(unit) for unit in units], size] for (name, units), size in totals.items()]
    return {"peak_bytes": sum(totals.values()), "sites": sites}


def _iterations(roots: Sequence[Any]) -> List[Any]:
    iterations = [root for root in roots if root.name == ITERATION]
    return iterations or [one for root in roots for one in _iterations(root.children)]
