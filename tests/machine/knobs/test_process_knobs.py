"""Knobs of one process: the settings that a command gets, and notes where it gets none."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine.command_settings import LIVE, answer_of, knob
from tests.machine.trees import make_tree
from torchyard.errors import NotAllowed
from torchyard.machine.knob import Machine
from torchyard.machine.model import QuietRequest, Setting
from torchyard.machine.quieting.quiet_run import shell_line
from torchyard.machine.system.file_tree import FileTree

NAMES = ("pinning", "priority", "process-aslr", "openmp")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("OMP_", "KMP_", "GOMP_")) or name == "LD_PRELOAD":
            monkeypatch.delenv(name)


def tree(kind: str, folder: Path) -> Machine:
    return Machine(files=FileTree(make_tree(kind, folder)))


# All of them.


@pytest.mark.parametrize("kind", ["cgroup-v1", "cgroup-v2", "smt-off-at-boot"])
def test_a_survey_never_fails_and_never_writes(kind: str, tmp_path: Path) -> None:
    machine = tree(kind, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    wishes = (QuietRequest(), QuietRequest(cores=(1,), randomize="off"))
    for name, request in ((name, request) for name in NAMES for request in wishes):
        state = knob(name).survey(machine, request)
        setting = knob(name).prefix(machine, request)
        assert bool(state.unavailable) == bool(setting.unavailable)
        assert all(item.wanted is not None for item in state.settings)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_machine_says_why(name: str, tmp_path: Path) -> None:
    machine = Machine(files=FileTree(tmp_path))
    state = knob(name).survey(machine, QuietRequest())
    assert state.unavailable
    assert state.settings == ()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_of_a_process_and_needs_no_root(name: str) -> None:
    one = knob(name)
    assert (one.name, one.reach, one.needs_root, one.profile) == (name, "process", False, "cpu")
    setting = Setting(knob=name, place="", found="", wanted="")
    with pytest.raises(NotAllowed):
        one.write(LIVE, setting)
    one.restore(LIVE, setting)
    assert len(one.described.about) < 60


@pytest.mark.parametrize("name", ["pinning", "priority", "openmp"])
def test_why_says_what_noise_is_left(name: str) -> None:
    assert any(word in knob(name).described.why for word in ("still", "does not keep"))


# Pinning.


def test_one_thread_of_each_core(tmp_path: Path) -> None:
    machine = tree("amd-acpi", tmp_path)
    assert knob("pinning").prefix(machine, QuietRequest()).words == ("taskset", "-c", "0-3")
    (setting,) = knob("pinning").survey(machine, QuietRequest()).settings
    assert (setting.found, setting.wanted) == ("0-7", "0-3")
    assert knob("pinning").read(machine, setting.place) == "0-7"


def test_of_a_core_the_thread_that_is_allowed(tmp_path: Path) -> None:
    machine = tree("amd-acpi", tmp_path)
    status = machine.files.path("proc/self/status")
    status.write_text(status.read_text().replace("0-7", "1,4-6"))
    assert knob("pinning").prefix(machine, QuietRequest()).words == ("taskset", "-c", "1,4,6")


def test_nothing_to_pin_without_second_threads(tmp_path: Path) -> None:
    setting = knob("pinning").prefix(tree("arm-bare", tmp_path), QuietRequest())
    assert setting.words == ()
    assert setting.unavailable == ""


def test_cores_that_are_not_online(tmp_path: Path) -> None:
    setting = knob("pinning").prefix(tree("smt-off-at-boot", tmp_path), QuietRequest(cores=(2, 6)))
    assert setting.unavailable == "CPUs 6 are not online"


def test_a_command_is_pinned(capfd: pytest.CaptureFixture[str]) -> None:
    core = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    setting = knob("pinning").prefix(LIVE, QuietRequest(cores=(core,)))
    assert answer_of(capfd, ("pinning", setting))["cpus"] == [core]
    assert os.sched_getaffinity(0) == before
    assert shell_line([("pinning", setting)], ("true",)) == f"taskset -c {core} true"


# Priority.


def _status(machine: Machine, capabilities: str, limit: str, users: str = "") -> None:
    files = machine.files
    status = files.path("proc/self/status")
    status.write_text(status.read_text() + f"CapEff:\t{capabilities}\n")
    files.path("proc/self/limits").write_text(
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max nice priority         0                    {limit:<20} \n"
    )
    if users:
        files.path("proc/self/uid_map").write_text(users)


_FULL, _NONE = "000001ffffffffff", "0000000000000000"
_ALL_USERS = "         0          0 4294967295\n"
_SOME_USERS = "         0     100000      65536\n"


@pytest.mark.parametrize(
    ("capabilities", "limit", "users", "words"),
    [
        (_FULL, "0", _ALL_USERS, ("nice", "-n", "-20")),
        (_FULL, "0", "", ("nice", "-n", "-20")),
        (_NONE, "40", _ALL_USERS, ("nice", "-n", "-20")),
        (_NONE, "30", _ALL_USERS, ("nice", "-n", "-10")),
        (_NONE, "unlimited", _ALL_USERS, ("nice", "-n", "-20")),
        (_FULL, "25", _SOME_USERS, ("nice", "-n", "-5")),
    ],
)
def test_the_highest_priority_that_is_allowed(
    capabilities: str, limit: str, users: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    machine = tree("amd-acpi", tmp_path)
    _status(machine, capabilities, limit, users)
    assert knob("priority").prefix(machine, QuietRequest()).words == words


@pytest.mark.parametrize(
    ("capabilities", "limit", "users"),
    [(_NONE, "0", _ALL_USERS), (_FULL, "0", _SOME_USERS), (_NONE, "20", _ALL_USERS)],
)
def test_a_priority_that_is_not_allowed(
    capabilities: str, limit: str, users: str, tmp_path: Path
) -> None:
    """Also root of a container without privileges, whose capability counts for nothing."""
    machine = tree("amd-acpi", tmp_path)
    _status(machine, capabilities, limit, users)
    state = knob("priority").survey(machine, QuietRequest())
    assert "may not go below nice 0" in state.unavailable


def test_automatic_grouping_is_reported(tmp_path: Path) -> None:
    machine = tree("amd-acpi", tmp_path)
    _status(machine, _FULL, "0")
    state = knob("priority").survey(machine, QuietRequest())
    assert "autogroup" in state.notes[0]
    assert (state.settings[0].found, state.settings[0].wanted) == ("0", "-20")


def test_a_command_gets_its_priority(capfd: pytest.CaptureFixture[str]) -> None:
    setting = knob("priority").prefix(LIVE, QuietRequest())
    if setting.unavailable:
        pytest.skip(setting.unavailable)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    expected = max(-20, before + int(setting.words[2])) if setting.words else before
    assert answer_of(capfd, ("priority", setting))["nice"] == expected
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_the_kernel_agrees_about_limits() -> None:
    """A process without the capability, with a limit of its own: the command gets what we say."""
    if os.geteuid() != 0:
        pytest.skip("only root may give a capability up and keep a limit")
    program = (
        "import ctypes, json, os, resource, sys\n"
        "from torchyard.machine.model import QuietRequest\n"
        "from torchyard.machine.knob import Machine\n"
        "from torchyard.machine.knobs import KNOBS\n"
        "os.setuid(65534)\n"
        "setting = KNOBS['priority'].prefix(Machine(), QuietRequest())\n"
        "refused = ''\n"
        "try: setting.apply()\n"
        "except OSError as error: refused = str(error)\n"
        "print(json.dumps([setting.unavailable, os.getpriority(os.PRIO_PROCESS, 0), refused]))\n"
    )
    for limit, allowed in ((25, -5), (0, None)):
        _, hard = resource.getrlimit(resource.RLIMIT_NICE)
        if hard != resource.RLIM_INFINITY and hard < limit:
            continue  # raising it takes a capability that this root has not

        def limit_nice(limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_NICE, (0, limit))

        completed = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            capture_output=True,
            text=True,
            preexec_fn=limit_nice,
        )
        if "Permission denied" in completed.stderr or "No module named" in completed.stderr:
            pytest.skip("another user cannot read this checkout")
        unavailable, nice, refused = json.loads(completed.stdout)
        assert refused == ""
        if allowed is None:
            assert "may not go below" in unavailable
        else:
            assert (unavailable, nice) == ("", allowed)


# OpenMP.


def test_a_thread_for_each_core(tmp_path: Path) -> None:
    setting = knob("openmp").prefix(tree("amd-acpi", tmp_path), QuietRequest())
    assert dict(setting.variables) == {
        "OMP_NUM_THREADS": "4",
        "OMP_PROC_BIND": "close",
        "OMP_PLACES": "{0},{1},{2},{3}",
    }


def test_the_words_of_intel_and_llvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = tree("amd-acpi", tmp_path)
    for library in ("/opt/lib/libiomp5.so", "libtcmalloc.so.4:/usr/lib/libomp.so.5", "libomp.so"):
        monkeypatch.setenv("LD_PRELOAD", library)
        setting = knob("openmp").prefix(machine, QuietRequest(cores=(2, 3)))
        assert dict(setting.variables) == {
            "OMP_NUM_THREADS": "2",
            "KMP_AFFINITY": "granularity=fine,explicit,proclist=[2,3]",
            "KMP_BLOCKTIME": "1",
        }
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libgomp.so.1:/x/libsomp.so")
    assert "KMP_AFFINITY" not in dict(knob("openmp").prefix(machine, QuietRequest()).variables)


@pytest.mark.parametrize(
    "name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"]
)
def test_what_the_user_bound_stays(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "0")
    machine = tree("amd-acpi", tmp_path)
    assert dict(knob("openmp").prefix(machine, QuietRequest()).variables) == {
        "OMP_NUM_THREADS": "4"
    }
    notes = knob("openmp").survey(machine, QuietRequest()).notes
    assert notes[0] == f"{name} is set already and determines the binding"
    assert "first core" in notes[-1]


def test_a_number_of_threads_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    machine = tree("amd-acpi", tmp_path)
    state = knob("openmp").survey(machine, QuietRequest())
    assert knob("openmp").prefix(machine, QuietRequest()).variables == ()
    assert state.notes == ("OMP_NUM_THREADS is set already and stays 1",)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert set(dict(knob("openmp").prefix(machine, QuietRequest()).variables)) == {
        "OMP_PROC_BIND",
        "OMP_PLACES",
    }


def test_the_command_gets_variables_and_the_warning_is_reported(
    capfd: pytest.CaptureFixture[str],
) -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))
    setting = knob("openmp").prefix(LIVE, QuietRequest(cores=cores))
    assert answer_of(capfd, ("openmp", setting))["omp"] == dict(setting.variables)
    state = knob("openmp").survey(LIVE, QuietRequest(cores=cores))
    assert [item.found for item in state.settings] == ["not set"] * 3
    assert "first core" in state.notes[-1]
    assert knob("openmp").described.default is False


@pytest.mark.slow
@pytest.mark.torch
def test_torch_really_shrinks_to_the_first_core() -> None:
    """The reason why this knob is off by default; the day this fails, it need not be."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    if len(cores) < 2:
        pytest.skip("one processor cannot shrink")
    setting = knob("openmp").prefix(LIVE, QuietRequest(cores=cores))
    program = "import os, torch; print(len(os.sched_getaffinity(0)), torch.get_num_threads())"
    completed = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **dict(setting.variables)},
    )
    if "No module named 'torch'" in completed.stderr:
        pytest.skip("this interpreter has no torch")
    assert completed.stdout.split() == ["1", str(len(cores))], completed.stderr
