"""Configuration of all tests: default signal handlers, exclusive tests, and checks of leftover state.

A shell that starts a job in the background lets it ignore Ctrl-C, `nohup` lets it ignore a lost
terminal, and whatever it starts inherits that. The tests of interrupts must hold there too.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.process_state import MOST_GROWTH_BYTES, differences, private_bytes, process_state

ROOT = Path(__file__).parents[1]
# These change or observe the kernel, which all tests share: never two of them at once.
ONE_KERNEL = {
    "tests/audit/test_command_quiet.py",
    "tests/audit/test_quieting_effect.py",
    "tests/machine/knobs/test_irqbalance.py",
    "tests/machine/knobs/test_latency_device.py",
    "tests/machine/knobs/test_real_isolation.py",
    "tests/machine/knobs/test_real_kernel.py",
    "tests/machine/test_load_monitor_live.py",
    "tests/machine/quieting/test_quiet_run.py",
    "tests/machine/quieting/test_real_machine.py",
}
LONG_LANE_FILE = Path(__file__).with_name("long_lane.txt")
LONG_LANE = {
    line
    for line in LONG_LANE_FILE.read_text("utf-8").splitlines()
    if line and not line.startswith("#")
}
hypothesis.settings.register_profile("any-machine", deadline=None)
hypothesis.settings.load_profile("any-machine")
LOCK = Path(tempfile.gettempdir()) / f"torchyard-tests-{os.getuid()}.lock"

# pytest-xdist and some shells set the width of the terminal, which output to a pipe follows.
os.environ.pop("COLUMNS", None)
# Without collections, collecting takes a quarter less time.
gc.disable()
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)


def _path_in_repository(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name long bytes by their argument: an archive differs with the second in which it is made.

    Processes that collect at different times must agree on the names.
    """
    return argname if isinstance(val, bytes) and len(val) > 32 else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the files of other lanes; importing all takes each process 10 s."""
    name = os.path.relpath(collection_path, ROOT)
    markers = str(config.option.markexpr)
    of_other_lane = (name in LONG_LANE and "not long" in markers) or (
        name.startswith("tests/gpu/") and "not gpu" in markers
    )
    named = any(name in argument for argument in config.args)
    return True if of_other_lane and not named else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the long lane before markers select tests."""
    for item in items:
        if _path_in_repository(item.path) in LONG_LANE:
            item.add_marker("long")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is marked `fresh_process` in one, if other tests have loaded compiled code in this one."""
    if pyfuncitem.get_closest_marker("fresh_process") is None:
        return None
    from torchyard.worker.values.unobserved import untracked_libraries

    if not untracked_libraries():
        return None
    variables = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", ""]
    ended = subprocess.run(
        [*command, pyfuncitem.nodeid],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return True


def pytest_collection_finish() -> None:
    """Exclude what pytest collected from garbage collections, which take 0.2 s otherwise."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _one_kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests run side by side, file by file; these wait for each other."""
    if _path_in_repository(request.path) not in ONE_KERNEL:
        yield
        return
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True)
def _leaves_the_process_as_it_was() -> Iterator[None]:
    """Fail the test that changes the pytest process, not a later one that trips over it."""
    before = process_state()
    yield
    changes = differences(before, process_state())
    assert not changes, "the test left the pytest process changed:\n" + "\n".join(changes)


@pytest.fixture(autouse=True, scope="module")
def _leaves_the_memory_free() -> Iterator[None]:
    """Fail the file whose tests leave so much memory reserved that later ones cannot fork."""
    before = private_bytes()
    yield
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return  # the driver reserves memory of its own
    grown = private_bytes() - before
    assert grown < MOST_GROWTH_BYTES, f"{grown >> 20} MiB of memory stayed behind"


@pytest.fixture(autouse=True, scope="module")
def _one_thread_of_torch(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute with one thread where torch runs in the pytest process: as many run side by side."""
    if not _path_in_repository(request.path).startswith(("tests/worker/", "tests/values/")):
        yield
        return
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
