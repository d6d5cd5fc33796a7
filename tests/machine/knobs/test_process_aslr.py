"""Address space randomization of one command, and a seccomp filter that refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine.command_settings import LIVE, answer_of, knob
from torchyard.machine.model import QuietRequest


def test_kept_unless_asked_for() -> None:
    setting = knob("process-aslr").prefix(LIVE, QuietRequest())
    assert (setting.words, setting.unavailable) == ((), "")
    assert knob("process-aslr").described.default is False
    state = knob("process-aslr").survey(LIVE, QuietRequest())
    assert state.settings[0].found == state.settings[0].wanted
    assert "kept: set it with --aslr" in state.notes[0]


def test_without_randomization_every_launch_is_equal(capfd: pytest.CaptureFixture[str]) -> None:
    setting = knob("process-aslr").prefix(LIVE, QuietRequest(randomize="off"))
    if setting.unavailable:
        pytest.skip(setting.unavailable)
    assert setting.words == ("setarch", os.uname().machine, "-R")
    answers = [answer_of(capfd, ("process-aslr", setting)) for _ in range(2)]
    assert answers[0]["stack"] == answers[1]["stack"]
    assert answers[0]["personality"] & 0x0040000
    ours = Path("/proc/self/personality").read_text()
    assert not int(ours, 16) & 0x0040000, "trying it left this process as it was"


def test_randomisation_again_inside_of_a_process_without(tmp_path: Path) -> None:
    """For a shell that was started by `setarch -R`."""
    program = (
        "import ctypes, json, os, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.personality(ctypes.c_ulong(0x0040000))\n"
        "from torchyard.machine.model import QuietRequest\n"
        "from torchyard.machine.knob import Machine\n"
        "from torchyard.machine.knobs import KNOBS\n"
        "setting = KNOBS['process-aslr'].prefix(Machine(), QuietRequest(randomize='on'))\n"
        "assert not setting.unavailable, setting.unavailable\n"
        "setting.apply()\n"
        "print(libc.personality(ctypes.c_ulong(0xFFFFFFFF)))\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert completed.stdout == "0\n", completed.stderr


def test_a_refusing_seccomp_filter_is_detected(tmp_path: Path) -> None:
    """The usual filter of containers lets the question pass and refuses the change."""
    program = (
        "import ctypes, struct, sys\n"
        "from torchyard.machine.model import QuietRequest\n"
        "from torchyard.machine.knob import Machine\n"
        "from torchyard.machine.knobs import KNOBS\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"number = {_PERSONALITY.get(os.uname().machine, -1)}\n"
        "def op(code, jt, jf, k): return struct.pack('HBBI', code, jt, jf, k)\n"
        "filters = b''.join([\n"
        "    op(0x20, 0, 0, 0),\n"  # the number of the call
        "    op(0x15, 0, 4, number),\n"  # another call is allowed
        "    op(0x20, 0, 0, 16),\n"  # its argument
        "    op(0x15, 2, 0, 0xFFFFFFFF),\n"  # the question is allowed
        "    op(0x45, 0, 1, 0x0040000),\n"  # without randomisation
        "    op(0x06, 0, 0, 0x00050001),\n"  # EPERM
        "    op(0x06, 0, 0, 0x7FFF0000),\n"  # allowed
        "])\n"
        "buffer = ctypes.create_string_buffer(filters)\n"
        "program = struct.pack('HxxxxxxQ', len(filters) // 8, ctypes.addressof(buffer))\n"
        "assert libc.prctl(38, 1, 0, 0, 0) == 0\n"
        "if libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0) != 0: sys.exit(3)\n"
        "knob = KNOBS['process-aslr']\n"
        "print(knob.survey(Machine(), QuietRequest(randomize='off')).unavailable)\n"
        "print(knob.prefix(Machine(), QuietRequest()).unavailable)\n"
    )
    if os.uname().machine not in _PERSONALITY:
        pytest.skip("the number of the call is not known here")
    completed = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    if completed.returncode == 3:
        pytest.skip("this kernel takes no filters")
    assert completed.stderr == ""
    first, second = completed.stdout.split("\n")[:2]
    assert "seccomp" in first
    assert second == ""


_PERSONALITY = {"aarch64": 92, "x86_64": 135}
