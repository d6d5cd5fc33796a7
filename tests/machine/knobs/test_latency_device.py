"""The latency device of the real kernel: held, visible to others, and released by the kernel.

Only root may open it. Nothing else of the machine is touched, and each test ends with the device as
it was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine.real_machine import alone_on_machine, wait_until
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import cpu_power
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.quieting.apply_settings import apply_until_restore
from torchyard.machine.quieting.journal import JOURNAL_VARIABLE, read_journal
from torchyard.machine.quieting.restoring import restore, write_setting

DEVICE = Path("/dev/cpu_dma_latency")
WANTED_US = 37
"""Unlike what any other program would hold."""

HOLD = """
import sys
from torchyard.machine.model import Setting
from torchyard.machine.knob import Machine
from torchyard.machine.knobs.cpu_power import IDLE_LATENCY_KNOB
IDLE_LATENCY_KNOB.write(Machine(), Setting(knob="idle-latency", place="dev/cpu_dma_latency", found="", wanted="37"))
print("held", flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(DEVICE, os.R_OK | os.W_OK),
    reason="only root may open /dev/cpu_dma_latency, and not every machine has it",
)


def _seen_by_another_process() -> int:
    """As any other program sees it: not by our code and not in our process."""
    words = [
        sys.executable,
        "-c",
        "import sys; print(int.from_bytes(open(sys.argv[1], 'rb').read(4), sys.byteorder))",
        str(DEVICE),
    ]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@pytest.fixture
def before() -> Iterator[int]:
    latency = _seen_by_another_process()
    if latency <= WANTED_US:
        pytest.skip(f"another program holds {latency} us")
    yield latency
    assert _seen_by_another_process() == latency


@pytest.fixture
def holder(before: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def _setting() -> Setting:
    state = cpu_power.IDLE_LATENCY_KNOB.survey(Machine(), QuietRequest(latency_us=WANTED_US))
    assert state.unavailable == ""
    (setting,) = state.settings
    assert setting.changes
    return setting


def test_it_is_held_visible_to_others_and_released(before: int) -> None:
    machine, setting = Machine(), _setting()
    try:
        change = write_setting(machine, setting)
        assert change.state == "written", change.reason
        assert _seen_by_another_process() == WANTED_US
        assert cpu_power.IDLE_LATENCY_KNOB.read(machine, setting.place) == str(WANTED_US)
    finally:
        cpu_power.IDLE_LATENCY_KNOB.restore(machine, setting)
    assert _seen_by_another_process() == before
    assert cpu_power.IDLE_LATENCY_KNOB.same(
        setting.place, cpu_power.IDLE_LATENCY_KNOB.read(machine, setting.place), setting.found
    )
    cpu_power.IDLE_LATENCY_KNOB.restore(machine, setting)
    assert _seen_by_another_process() == before


def test_programs_that_are_started_do_not_hold_it(before: int) -> None:
    machine, setting = Machine(), _setting()
    cpu_power.IDLE_LATENCY_KNOB.write(machine, setting)
    child = subprocess.Popen(["sleep", "60"])
    try:
        cpu_power.IDLE_LATENCY_KNOB.restore(machine, setting)
        assert _seen_by_another_process() == before
    finally:
        child.kill()
        child.wait()


def test_a_copy_of_the_process_does_not_hold_it(before: int) -> None:
    """fork() copies the descriptor; what was asked for is taken back before it is closed."""
    machine, setting = Machine(), _setting()
    cpu_power.IDLE_LATENCY_KNOB.write(machine, setting)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        cpu_power.IDLE_LATENCY_KNOB.restore(machine, setting)
        assert _seen_by_another_process() == before
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def test_the_kernel_undoes_it_when_the_holder_is_killed(
    before: int, holder: subprocess.Popen[str]
) -> None:
    assert _seen_by_another_process() == WANTED_US
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert _seen_by_another_process() == before


def test_the_least_of_several_limits_is_in_force(
    before: int, holder: subprocess.Popen[str]
) -> None:
    machine = Machine()
    lower = Setting(
        knob="idle-latency", place="dev/cpu_dma_latency", found=str(WANTED_US), wanted="5"
    )
    cpu_power.IDLE_LATENCY_KNOB.write(machine, lower)
    assert _seen_by_another_process() == 5
    cpu_power.IDLE_LATENCY_KNOB.restore(machine, lower)
    assert _seen_by_another_process() == WANTED_US, "the other one's is still there"
    # And another one's lower limit is left to it.
    state = cpu_power.IDLE_LATENCY_KNOB.survey(machine, QuietRequest(latency_us=100))
    assert state.settings[0].changes is False


@pytest.mark.parametrize("killed", [False, True])
def test_persistent_quieting_holds_it_until_it_is_restored(
    killed: bool, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restore process holds it when the quieting command has ended."""
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path))
    machine, request = Machine(), QuietRequest(only=("idle-latency",), latency_us=WANTED_US)
    with alone_on_machine():
        tuned = apply_until_restore(machine, request)
        try:
            assert [change.state for change in tuned.changes] == ["written"]
            own = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
            assert DEVICE not in own, "not held by this process"
            assert _seen_by_another_process() == WANTED_US
            if killed:
                text = read_journal(tmp_path)
                assert text is not None
                assert text.holder is not None
                os.kill(int(text.holder["pid"]), signal.SIGKILL)
                wait_until(lambda: _seen_by_another_process() == before)
        finally:
            restored = restore(machine)
        assert restored.complete
        assert _seen_by_another_process() == before
        assert read_journal(tmp_path) is None
