"""The ranks of one process key, which act as one worker.

Rank 0 receives the requests. While it processes one, the other ranks execute its commands
(`worker/bench/ranks`). If a rank crashes, raises or hangs, a collective operation of the others never
ends, so the controller monitors all of them: after the first failure the others have a short time to
answer, then every rank is killed, and the failure names the rank that caused it.
Ranks on several nodes run in the Slurm allocation of this process.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final

from torchyard.errors import UsageError
from torchyard.process.ending import WorkerFailure
from torchyard.process.nodes import END_LIMIT_S
from torchyard.process.programs import capture
from torchyard.process.worker_process import WorkerProcess, WorkersAsOne
from torchyard.worker.wire import LED, phase_of

_ALL_RANKS: Final = frozenset({"hello", "join", "build", "reseat"})
GRACE_S: Final = 3.0
"""How long the other ranks may take to answer after one has failed; longer on other nodes."""
_STACKS_S: Final = 0.5
_BY_ITSELF: Final = ("out-of-memory", "killed", "crashed", "protocol", "no-torch", "no-python")
"""Kinds of failures that other ranks do not cause, most specific first."""
_LOST_PEER: Final = re.compile(
    r"connection (closed|reset|refused)|broken pipe|rank 0 has ended|peer|socket", re.IGNORECASE
)
"""Message of a rank when another one has ended."""
_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_TAIL: Final = 1500


class RankGroup(WorkersAsOne):
    """The workers of a process group, rank 0 first."""

    def __init__(
        self, workers: Sequence[WorkerProcess], *, rendezvous: Path, nodes: int = 1
    ) -> None:
        """`rendezvous` is the folder for the rendezvous of one node; several nodes use the network."""
        super().__init__(workers)
        self._rendezvous = str(rendezvous)
        self._ranks_per_node = len(workers) // nodes
        self._grace_s = GRACE_S if nodes == 1 else GRACE_S + END_LIMIT_S

    def ask(self, verb: str, *, limit_s: float, **fields: object) -> dict[str, Any]:
        """Return the merged answer of all ranks; raise the failure that caused the others."""
        address = self._workers[-1].controller_address
        if verb == "join" and address:
            # Rank 0 is on the node of the controller.
            met = self._workers[0].ask("meet", limit_s=limit_s, address=address)
            self._rendezvous = f"{address}:{met['port']}"
        threads = ThreadPoolExecutor(max_workers=len(self._workers))
        try:
            answers = [
                threads.submit(self._ask_one, rank, verb, limit_s, fields)
                for rank in range(len(self._workers) if verb in {*LED, *_ALL_RANKS} else 1)
            ]
            answered, waiting = wait(answers, timeout=limit_s, return_when=FIRST_EXCEPTION)
            failed = any(answer.exception() is not None for answer in answered)
            if failed:
                wait(waiting, timeout=self._grace_s)
                raise self._cause(answers)
            if waiting:
                raise self._timed_out(verb, limit_s, answers)
            return merge_ranks(
                verb, [answer.result() for answer in answers], ranks_per_node=self._ranks_per_node
            )
        finally:
            # Not joined after a failure: the workers are killed then.
            threads.shutdown(wait=False, cancel_futures=True)

    def _ask_one(
        self, rank: int, verb: str, limit_s: float, fields: Mapping[str, object]
    ) -> dict[str, Any]:
        worker = self._workers[rank]
        # The group has the time limit: it needs the stacks of all ranks before any of them is killed.
        limit_s += 10 * GRACE_S
        if rank and verb in LED:
            try:
                return worker.ask("follow", limit_s=limit_s)
            except WorkerFailure as failure:
                raise _during(verb, failure) from failure
        if verb == "join":
            place = {"ranks": len(self._workers), "rendezvous": self._rendezvous}
            fields = {**fields, **place, "rank": rank, "ranks_per_node": self._ranks_per_node}
        return worker.ask(verb, limit_s=limit_s, on_note=None, **fields)

    def _cause(self, answers: Sequence[Future[dict[str, Any]]]) -> BaseException:
        """Return the failure that caused the others; kill the group if a rank still waits for another."""
        failures = [
            answer.exception() for answer in answers if answer.done() and answer.exception()
        ]
        if not all(answer.done() for answer in answers) or not self.is_alive:
            self.kill()
        return min(failures, key=_order) or RuntimeError("no rank failed")

    def _timed_out(
        self, verb: str, limit_s: float, answers: Sequence[Future[dict[str, Any]]]
    ) -> WorkerFailure:
        """Kill all ranks; return a failure with the stacks of all, and name those outside of torch."""
        for worker in self._workers:
            worker.print_stacks()
        time.sleep(_STACKS_S)
        tails = [worker.log_tail for worker in self._workers]
        self.kill()
        wait(answers, timeout=self._grace_s)
        places = [_place(tail) for tail in tails]
        own = [
            f"rank {rank} is in {place}"
            for rank, place in enumerate(places)
            if place and not _waits(place)
        ]
        return WorkerFailure(
            f"{self._workers[0].name}: timed out after {limit_s:g} s during {phase_of(verb)}",
            kind="timeout",
            why="; ".join(own) or "all ranks wait for each other or for a device",
            hint="the last lines of the log show where each rank was; try a higher limit",
            log=str(self._workers[0].log_path),
            log_tail="\n".join(f"rank {rank}:\n{tail[-_TAIL:]}" for rank, tail in enumerate(tails)),
        )


def _during(verb: str, failure: WorkerFailure) -> WorkerFailure:
    """Return the failure of a following rank with the phase of rank 0's request."""
    return WorkerFailure(
        failure.message.replace(phase_of("follow"), phase_of(verb)),
        kind=failure.kind,
        traceback=failure.traceback,
        log_tail=failure.log_tail,
        why=failure.why,
        hint=failure.hint,
        log=failure.log,
    )


def merge_ranks(
    verb: str, answers: Sequence[dict[str, Any]], *, ranks_per_node: int | None = None
) -> dict[str, Any]:
    """Merge the answers of the ranks: the times of a block are those of the slowest rank.

    Nodes have different clocks, so a block starts when it does on the first one.
    """
    merged = dict(answers[0])
    here = ranks_per_node or len(answers)
    if verb == "block":
        blocks = [merged, *(answer["block"] for answer in answers[1:])]
        slowest = max(blocks, key=lambda block: sum(block["samples_ns"]))
        merged["samples_ns"] = slowest["samples_ns"]
        merged["started_ns"] = min(int(block["started_ns"]) for block in blocks[:here])
        merged["wall_ns"] = max(int(block["wall_ns"]) for block in blocks)
        readings = [_of_node(block["readings"], rank // here) for rank, block in enumerate(blocks)]
        merged["readings"] = _sums(readings, merged["wall_ns"])
    elif verb == "reseat":
        for name in ("moved_bytes", "held_bytes"):
            merged[name] = sum(int(answer[name]) for answer in answers)
    return merged


_OTHERS_SHARE: Final = 0.05
"""Share of a block in which other programs may compute, if waiting for a core is caused by the ranks."""
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def _sums(readings: Sequence[Mapping[str, Any]], wall_ns: int) -> dict[str, Any]:
    """Return the sums of the counters over all ranks, and the slowest frequency probe.

    Ranks have more threads than cores: those of the communication and of backward passes. They wait
    for each other, which is part of an iteration, so waiting counts only if other programs computed.
    """
    merged: dict[str, Any] = {}
    for name in readings[0]:
        values = [reading.get(name) for reading in readings]
        numbers = [value for value in values if value is not None]
        if len(numbers) < len(values):
            merged[name] = None
        elif name == "busy_ns":
            merged[name] = {
                cpu: max(ns[cpu] for ns in numbers if cpu in ns) for cpu in set().union(*numbers)
            }
        else:
            merged[name] = max(numbers) if name.startswith("probe_") else sum(numbers)
    busy, own_ns = merged.get("busy_ns"), merged.get("cpu_ns")
    if busy is not None and own_ns is not None:
        # Busy time is counted in ticks, by every core that computes.
        rounding_ns = _TICK_NS * min(sum(ns > 0 for ns in busy.values()), 2 * len(readings))
        if sum(busy.values()) - own_ns - rounding_ns < _OTHERS_SHARE * wall_ns:
            merged["run_queue_wait_ns"] = 0
    return merged


def _of_node(readings: Mapping[str, Any], node: int) -> dict[str, Any]:
    """Return the readings with distinct names of CPUs for each node."""
    busy = readings.get("busy_ns")
    if not node or busy is None:
        return dict(readings)
    return {**readings, "busy_ns": {f"{node}/{cpu}": ns for cpu, ns in busy.items()}}


def _order(failure: BaseException | None) -> tuple[int, bool]:
    """Sort failures by how likely they are the cause; the sort is stable, so lower ranks come first."""
    if not isinstance(failure, WorkerFailure):
        return (-1, False)
    if failure.kind in _BY_ITSELF:
        return (_BY_ITSELF.index(failure.kind), False)
    return (len(_BY_ITSELF), bool(_LOST_PEER.search(failure.message)))


def _place(tail: str) -> str:
    """Return the innermost Python frame of the main thread in a printed stack, as `FILE:LINE in NAME`."""
    main = tail.rpartition("Current thread")[2] or tail
    frame = _FRAME.search(main)
    return "" if frame is None else f"{frame[1]}:{frame[2]} in {frame[3]}"


def _waits(place: str) -> bool:
    """Whether the frame belongs to torch or to Torchyard, which wait for other ranks there."""
    return "/torch/" in place or "/torchyard/worker/" in place


_LIMIT_S = 30.0


def allocated_nodes(count: int) -> tuple[str, ...]:
    """Return the names of `count` nodes of the allocation, this one first. Raises UsageError."""
    names = os.environ.get("SLURM_JOB_NODELIST", "")
    here = os.environ.get("SLURMD_NODENAME", "")
    if not names or not here:
        raise UsageError(
            f"{count} nodes need a Slurm allocation, and this process does not run on a node of one",
            hint=f"submit it: sbatch --nodes={count} --wrap 'torchyard bench ...', or a sweep with "
            "--executor slurm",
        )
    others = [name for name in _expanded(names) if name != here]
    if len(others) < count - 1:
        raise UsageError(
            f"the Slurm allocation has {len(others) + 1} nodes, and {count} are requested",
            hint=f"request --nodes={count} from Slurm, or use fewer nodes",
        )
    return (here, *others[: count - 1])


def _expanded(names: str) -> list[str]:
    """Return the names of a list such as `node[1-3,7]`."""
    program = shutil.which("scontrol")
    if program is None:
        raise UsageError(
            "there is no scontrol on this node, which lists the nodes of an allocation",
            hint="install Slurm's programs on the compute nodes",
        )
    try:
        completed = capture([program, "show", "hostnames", names], limit_s=_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError("scontrol does not list the nodes", why=str(error)) from error
    return completed.stdout.split()
