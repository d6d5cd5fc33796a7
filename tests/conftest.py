"""For all tests: signals as in a terminal, and which tests may run side by side.

A shell that starts a job in the background lets it ignore Ctrl-C, `nohup` lets it ignore a lost
terminal, and whatever it starts inherits that. The tests of interrupts must hold there too.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

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

signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """Tests of one file stay together, for they share fixtures that are dear."""
    for item in items:
        name = "one-kernel" if item.path.stem in ONE_KERNEL else item.path.stem
        item.add_marker(pytest.mark.xdist_group(name))
