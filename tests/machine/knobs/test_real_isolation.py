"""Core isolation on the machine that runs the tests, for processes of the test only.

A group of our own holds them; the knob is told to look at nothing outside of it. Nobody else's
process is ever moved.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.machine.real_machine import (
    alone_on_machine,
    needs_root,
    quieted_by_another,
    wait_until,
    wait_until_restored,
)
from torchyard.core.cpu_lists import cpu_list, cpus_of_list
from torchyard.errors import MissingTool
from torchyard.machine.knob import Machine
from torchyard.machine.knobs import KNOBS
from torchyard.machine.knobs.cores import Isolation, join
from torchyard.machine.model import QuietRequest
from torchyard.machine.system.file_tree import FileTree
from torchyard.machine.system.tasks import Cpusets, find_cpusets, read_allowed, remove_groups

pytestmark = needs_root

FILES = FileTree()
MACHINE = Machine()

_THREADS = """
import os, sys, threading
first = min(os.sched_getaffinity(0))
ready = threading.Barrier(3)
def run(pinned):
    if pinned:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    ready.wait()
    threading.Event().wait()
for pinned in (False, True):
    threading.Thread(target=run, args=(pinned,), daemon=True).start()
ready.wait()
print("ready", flush=True)
sys.stdin.read()
"""
"""A process of three threads, the last one pinned to the last processor."""


@dataclass
class Shelter:
    """A group with some processes that may be moved about."""

    cpusets: Cpusets
    name: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"{self.cpusets.top}/{self.name}"

    @property
    def ours(self) -> str:
        return f"{self.path}/torchyard"

    @property
    def cores(self) -> tuple[int, ...]:
        return cpus_of_list(FILES.read(f"{self.path}/cpuset.cpus").value or "")[-1:]

    @property
    def housekeeping(self) -> str:
        every = cpus_of_list(FILES.read(f"{self.path}/cpuset.cpus").value or "")
        return cpu_list(tuple(cpu for cpu in every if cpu not in self.cores))

    @property
    def request(self) -> QuietRequest:
        return QuietRequest(only=("isolation",), cores=self.cores)

    def group(self, name: str) -> str:
        path = f"{self.path}/{name}".rstrip("/")
        if "/" in name:
            self.group(name.rpartition("/")[0])
        if not FILES.exists(path):
            FILES.make_folder(path)
            for file in ("cpuset.cpus", "cpuset.mems"):
                parent = path.rpartition("/")[0]
                FILES.write(f"{path}/{file}", FILES.read(f"{parent}/{file}").value or "")
        return path

    def start(self, group: str, code: str = "") -> int:
        """A process in a group below ours."""
        place = str(FILES.path(f"{self.group(group)}/cgroup.procs"))
        enter = f"open({place!r}, 'w').write('0')\n"
        wait = "import sys\nprint('ready', flush=True)\nsys.stdin.read()\n"
        process = subprocess.Popen(
            [sys.executable, "-c", enter + (code or wait)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process.pid

    def where(self) -> dict[int, tuple[str | None, str | None]]:
        """Group and processors of every thread of every process."""
        return {
            int(task): (self.cpusets.group_of(FILES, task), read_allowed(FILES, task))
            for process in self.processes
            if process.poll() is None
            for task in os.listdir(f"/proc/{process.pid}/task")  # noqa: PTH208
        }

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()
        remove_groups(FILES, self.cpusets, self.ours)
        for group in ("outer/inner", "outer", ""):
            self.cpusets.remove(FILES, f"{self.path}/{group}".rstrip("/"))


@pytest.fixture
def shelter() -> Iterator[Shelter]:
    try:
        cpusets = find_cpusets(FILES)
    except MissingTool as error:
        pytest.skip(error.what)
    if cpusets.version != 1:
        pytest.skip("a partition of version 2 takes processors from the whole machine")
    if not FILES.writable(f"{cpusets.top}/tasks"):
        pytest.skip("control groups are read-only here")
    if len(cpus_of_list(FILES.read(f"{cpusets.top}/cpuset.cpus").value or "")) < 2:
        pytest.skip("one processor cannot be divided")
    with alone_on_machine():
        groups = set(FILES.names(cpusets.top))
        shelter = Shelter(cpusets, f"torchyard-test-{os.getpid()}")
        try:
            shelter.group("")
            yield shelter
        finally:
            shelter.close()
        assert set(FILES.names(cpusets.top)) == groups


def nobody_else_moved(shelter: Shelter, before: list[int]) -> bool:
    """Whether all who were in the topmost group, and still live, are there."""
    top = shelter.cpusets.top
    return all(shelter.cpusets.group_of(FILES, number) in (top, None) for number in before)


def test_moved_joined_and_back(shelter: Shelter) -> None:
    first, second = shelter.start(""), shelter.start("outer/inner")
    third = shelter.start("outer", _THREADS)
    places, elsewhere = shelter.where(), shelter.cpusets.numbers(FILES, shelter.cpusets.top)
    assert len(places) == 5
    knob = Isolation(base=shelter.name)
    state = knob.survey(MACHINE, shelter.request)
    (setting,) = state.settings
    assert setting.wanted == f"shield {cpu_list(shelter.cores)}"
    assert "5 tasks are moved to the housekeeping cores" in state.notes[-1]
    knob.write(MACHINE, setting)
    assert knob.read(MACHINE, setting.place) == setting.wanted

    moved = shelter.where()
    assert {allowed for _, allowed in moved.values()} == {shelter.housekeeping}
    assert moved[second][0] == f"{shelter.ours}/house/outer/inner"
    assert nobody_else_moved(shelter, elsewhere)

    join(MACHINE, third, base=shelter.name)
    join(MACHINE, first, base=shelter.name)
    joined = shelter.where()
    assert joined[first] == (f"{shelter.ours}/measure", cpu_list(shelter.cores))
    assert joined[third][0] == f"{shelter.ours}/measure/outer"
    assert [allowed for _, allowed in joined.values()].count(cpu_list(shelter.cores)) == 4

    knob.restore(MACHINE, setting)
    knob.restore(MACHINE, setting)
    assert knob.read(MACHINE, setting.place) == "absent"
    assert shelter.where() == places


def test_children_and_deaths_meanwhile(shelter: Shelter) -> None:
    parent = shelter.start(
        "outer",
        "import subprocess, sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
        "child = subprocess.Popen(['sleep', '60'])\nprint(child.pid, flush=True)\nsys.stdin.read()\n",
    )
    victim = shelter.start("outer/inner")
    knob = Isolation(base=shelter.name)
    (setting,) = knob.survey(MACHINE, shelter.request).settings
    knob.write(MACHINE, setting)
    process = shelter.processes[0]
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    child = int(process.stdout.readline())
    try:
        os.kill(victim, signal.SIGKILL)
        shelter.processes[1].wait()
        assert shelter.cpusets.group_of(FILES, child) == f"{shelter.ours}/house/outer"
        knob.restore(MACHINE, setting)
        assert shelter.cpusets.group_of(FILES, child) == f"{shelter.path}/outer"
        assert shelter.cpusets.group_of(FILES, parent) == f"{shelter.path}/outer"
        assert not FILES.exists(shelter.ours)
    finally:
        os.kill(child, signal.SIGKILL)


def test_tasks_that_start_others_all_the_time(shelter: Shelter) -> None:
    """A process that starts while others are moved is moved, too."""
    shelter.start(
        "outer",
        "import subprocess, sys, threading\n"
        "def run():\n"
        "    while True: subprocess.run(['true'])\n"
        "for _ in range(2): threading.Thread(target=run, daemon=True).start()\n"
        "print('ready', flush=True)\nsys.stdin.read()\n",
    )
    knob = Isolation(base=shelter.name)
    (setting,) = knob.survey(MACHINE, shelter.request).settings
    for _ in range(5):
        knob.write(MACHINE, setting)
        assert shelter.cpusets.numbers(FILES, f"{shelter.path}/outer") == []
        knob.restore(MACHINE, setting)
        assert not FILES.exists(shelter.ours)


@pytest.mark.parametrize("after", [2, 5, 7, 9])
def test_killed_in_the_middle(after: int, shelter: Shelter, tmp_path: Path) -> None:
    shelter.start("")
    shelter.start("outer", _THREADS)
    places = shelter.where()
    knobs = f"{{'isolation': Isolation(base={shelter.name!r})}}"
    with quieted_by_another(tmp_path, repr(shelter.request), knobs=knobs, after=after):
        wait_until_restored(tmp_path)
    assert shelter.where() == places
    assert not FILES.exists(shelter.ours)


def test_killed_while_measuring(shelter: Shelter, tmp_path: Path) -> None:
    pid = shelter.start("outer", _THREADS)
    places = shelter.where()
    knobs = f"{{'isolation': Isolation(base={shelter.name!r})}}"
    with quieted_by_another(tmp_path, repr(shelter.request), knobs=knobs) as owner:
        join(MACHINE, pid, base=shelter.name)
        assert shelter.where() != places
        os.kill(owner, signal.SIGKILL)
        wait_until_restored(tmp_path)
    assert shelter.where() == places


def test_a_command_joins_before_it_runs(shelter: Shelter, tmp_path: Path) -> None:
    """`join_setting` puts the command in, not the process that starts it."""
    answer = tmp_path / "answer"
    script = (
        "import os\n"
        f"open({str(FILES.path(f'{shelter.path}/cgroup.procs'))!r}, 'w').write('0')\n"
        "from torchyard.machine.quieting.quiet_run import run_command\n"
        "from torchyard.machine.knob import Machine\n"
        "from torchyard.machine.knobs.cores import join_setting\n"
        f"setting = join_setting(Machine(), base={shelter.name!r})\n"
        "assert not setting.unavailable, setting.unavailable\n"
        f"end = run_command(['sh', '-c', 'cat /proc/self/cgroup > {answer}'],"
        " [('isolation', setting)])\n"
        "assert end.exit_code == 0 and end.refused == (), end\n"
        "print(os.sched_getaffinity(0))\n"
    )
    knob = Isolation(base=shelter.name)
    (setting,) = knob.survey(MACHINE, shelter.request).settings
    knob.write(MACHINE, setting)
    completed = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    assert f":cpuset:/{shelter.name}/torchyard/measure\n" in answer.read_text()
    knob.restore(MACHINE, setting)


def test_pinned_tasks_are_remembered_and_pinned_again() -> None:
    """What kernels before 6.2 forget; here somebody else changes it."""
    knob = KNOBS["affinities"]
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one processor leaves nothing to pin")
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            os.sched_setaffinity(process.pid, {allowed[0]})
            places = {
                setting.place: setting for setting in knob.survey(MACHINE, QuietRequest()).settings
            }
            (setting,) = [
                one for place, one in places.items() if place.startswith(f"proc/{process.pid} ")
            ]
            assert (setting.found, setting.wanted) == (str(allowed[0]), None)
            os.sched_setaffinity(process.pid, set(allowed))
            knob.restore(MACHINE, setting)
            assert os.sched_getaffinity(process.pid) == {allowed[0]}
            process.kill()
            wait_until(lambda: process.poll() is not None)
            knob.restore(MACHINE, setting)
            assert knob.read(MACHINE, setting.place) == "gone"
        finally:
            process.kill()
