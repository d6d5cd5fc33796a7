"""Start a command with process settings, and report the settings that it got."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.knobs.process_knobs import ProcessKnob, ProcessSetting
from torchyard.machine.quieting.quiet_run import run_command

LIVE = Machine()
_ASK = """
import ctypes, json, os, sys
print(json.dumps({
    "cpus": sorted(os.sched_getaffinity(0)),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "personality": ctypes.CDLL(None).personality(ctypes.c_ulong(0xFFFFFFFF)),
    "stack": next(line for line in open("/proc/self/maps") if "[stack]" in line).split()[0],
    "omp": {name: value for name, value in os.environ.items() if name.startswith(("OMP", "KMP"))},
}))
"""


def knob(name: str) -> ProcessKnob:
    found = KNOBS[name]
    assert isinstance(found, ProcessKnob)
    return found


def answer_of(
    capfd: pytest.CaptureFixture[str], *settings: tuple[str, ProcessSetting]
) -> dict[str, Any]:
    """What a command sees that was started with these settings."""
    end = run_command([sys.executable, "-c", _ASK], settings)
    assert (end.exit_code, end.refused) == (0, ())
    document: dict[str, Any] = json.loads(capfd.readouterr().out)
    return document
