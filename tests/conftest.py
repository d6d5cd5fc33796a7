"""For all tests: signals as in a terminal, and which tests may run side by side.

A shell that starts a job in the background lets it ignore Ctrl-C, `nohup` lets it ignore a lost
terminal, and whatever it starts inherits that. The tests of interrupts must hold there too.
"""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# These change or watch the one kernel that all tests share: never two of them at once.
ONE_KERNEL = (
    "test_irqbalance_knob",
    "test_latency_device",
    "test_lookout_live",
    "test_quiet_machine",
    "test_real_isolation",
    "test_real_kernel",
    "test_real_machine",
    "test_tune_effect",
    "test_tune_measure",
)
LOCK = Path(tempfile.gettempdir()) / f"torchyard-tests-{os.getuid()}.lock"

signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _one_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests run side by side, file by file; these wait for each other."""
    if request.path.stem not in ONE_KERNEL:
        yield
        return
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
