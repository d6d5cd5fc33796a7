"""An ended profile leaves no memory and no hook in the process."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

import pytest
import torch

from torchyard.worker.values import unobserved
from torchyard.worker.values.exchange import Options
from torchyard.worker.values.profiling_session import ProfilingSession

pytestmark = pytest.mark.torch

PROFILES = 4


def address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def profile() -> ProfilingSession:
    session = ProfilingSession(Options())
    session.start()
    tensor = torch.ones(1000)
    tensor.zero_()
    session.step()
    session.stop()
    return session


def test_ended_profiles_hold_no_address_space() -> None:
    """A block of address space larger than the machine's memory makes every later fork fail."""
    kept = [profile()]
    before = address_space_bytes()
    kept += [profile() for _ in range(PROFILES)]
    grown = address_space_bytes() - before
    assert grown < Options().memory_bytes, f"{PROFILES} profiles took {grown} bytes"


def test_ended_profiles_can_be_freed() -> None:
    references = [weakref.ref(profile()) for _ in range(PROFILES)]
    gc.collect()
    assert [reference() for reference in references] == [None] * PROFILES


def test_fork_hooks_run_until_they_are_removed() -> None:
    calls: list[str] = []
    hooks = unobserved.ForkHooks(lambda: calls.append("parent"), lambda: os._exit(7))
    try:
        child = os.fork()
        if child == 0:
            os._exit(0)  # the hook has ended this process before
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        hooks.remove()
        hooks.remove()
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert calls == ["parent"]


def test_a_session_that_ended_is_freed() -> None:
    session = ProfilingSession(Options(graph=False))
    session.start()
    torch.zeros(64, 64).add_(1.0)
    session.stop()
    assert session.mode.available_bytes() <= session.options.memory_bytes
    assert session.mode._copies.copy(torch.zeros(64).data_ptr(), 64) is None, "its block is gone"
    gone = weakref.ref(session)
    del session
    gc.collect()
    assert gone() is None


def test_training_continues_and_findings_are_kept() -> None:
    model = torch.nn.Linear(128, 128)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = ProfilingSession(Options(prove=False))

    def fails() -> None:
        if session.mode.step == 3:
            raise ZeroDivisionError("ours")

    session.patterns[0].end_step = fails
    session.start()
    try:
        for _ in range(6):
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(64, 128)).square().mean().backward()
            optimizer.step()
    finally:
        session.stop()
    result = session.result("finished")
    (note,) = (one for one in result["notes"] if "started before profiling" not in one)
    assert note == (
        "the profile ends after step 3, because the profiler failed: ZeroDivisionError: ours"
    )
    assert session.mode.off
    assert result["steps"] == 3
    assert "dead initialisation" in {found["pattern"] for found in result["findings"]}
