"""Ended profiles are freed: a hundred in one process must not prevent `fork`."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker.values.exchange import Options  # noqa: E402
from torchyard.worker.values.profiling_session import ProfilingSession  # noqa: E402

pytestmark = pytest.mark.torch


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
