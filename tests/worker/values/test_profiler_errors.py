"""An internal error of the profiler ends the profile, not the program."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torchyard.worker.values.exchange import Options  # noqa: E402
from torchyard.worker.values.profiling_session import ProfilingSession  # noqa: E402

pytestmark = pytest.mark.torch


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
