"""Workers forked from a template: nothing is shared that should not be, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.process.stub_launch import STUB, STUB_TEMPLATE, StubStarter, spec_of
from tests.process.test_ending import start_controller, wait_until_gone
from torchyard.process.ending import WorkerFailure
from torchyard.process.start import LaunchSpec, NoTemplate
from torchyard.process.templates import MOST_TEMPLATES, RemotePool, TemplatePool, _Template
from torchyard.process.tree import processes_of_launch
from torchyard.process.worker_process import WorkerGroup, WorkerProcess


@pytest.fixture
def start_stub(tmp_path: Path) -> Iterator[StubStarter]:
    with StubStarter(tmp_path, "fork") as start:
        yield start
        assert not any(start.reasons), start.reasons


def result_of(worker: WorkerProcess, code: str) -> object:
    return worker.ask("run", limit_s=30, code=code)["result"]


def template_pid(worker: WorkerProcess) -> int:
    return psutil.Process(worker.pid).ppid()


def module(folder: Path, name: str, text: str) -> LaunchSpec:
    (folder / f"{name}.py").write_text(text)
    return spec_of(variables=(("PYTHONPATH", str(folder)),))


def fork(
    pool: TemplatePool | RemotePool, group: WorkerGroup, log: Path, spec: LaunchSpec, *modules: str
) -> WorkerProcess:
    (socket,) = pool.sockets([spec], modules)
    assert isinstance(socket, Path), socket
    return group.start(spec, log_path=log, entry=STUB, template=socket)


def test_workers_of_one_template_share_nothing_that_they_change(start_stub: StubStarter) -> None:
    first, second = start_stub(), start_stub()
    assert template_pid(first) == template_pid(second) != os.getpid()
    change = (
        "import os, sys, random, signal; os.environ['X'] = '1'; os.chdir('/'); os.umask(0);"
        "sys.path.append('/x'); random.seed(1); signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "sys.setrecursionlimit(77777)"
    )
    look = (
        "import os, sys, signal; result = ['X' in os.environ, os.getcwd() == '/', "
        "'/x' in sys.path, sys.getrecursionlimit() == 77777, "
        "signal.getsignal(signal.SIGTERM) == signal.SIG_IGN]"
    )
    result_of(first, change)
    assert result_of(first, look) == [True] * 5
    assert result_of(second, look) == [False] * 5
    assert result_of(start_stub(), look) == [False] * 5


def test_a_worker_has_no_descriptor_of_its_template(start_stub: StubStarter) -> None:
    start_stub()  # another connection of the template
    worker = start_stub()
    code = (
        "import os, sys; fds = os.listdir('/proc/self/fd'); "
        "result = {fd: os.readlink('/proc/self/fd/' + fd) for fd in fds "
        "if os.path.exists('/proc/self/fd/' + fd) or int(fd) in map(int, sys.argv[1:3])}"
    )
    descriptors = result_of(worker, code)
    assert isinstance(descriptors, dict)
    places = sorted(place.partition(":")[0] for place in descriptors.values())
    # Input, output twice, both pipes to the controller, and the listing of the folder itself.
    assert [place for place in places if not place.startswith("/proc")] == ["/dev/null"] + [
        "pipe"
    ] * 4


def test_signals_and_terminal_are_those_of_a_started_worker(tmp_path: Path) -> None:
    code = (
        "import os, signal; result = [[str(signal.getsignal(n)) for n in (1, 2, 13, 15, 17)], "
        "sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), signal.set_wakeup_fd(-1), "
        "os.getpgid(0) == os.getsid(0) == os.getpid(), os.isatty(0), os.getpriority(0, 0)]"
    )
    states = []
    for way in ("fresh", "fork"):
        with StubStarter(tmp_path, way) as start:
            states.append(result_of(start(), code))
    assert states[0] == states[1]


def test_a_worker_gets_the_umask_of_its_controller(start_stub: StubStarter) -> None:
    start_stub()
    before = os.umask(0o027)
    try:
        worker = start_stub()
    finally:
        os.umask(before)
    assert result_of(worker, "import os; result = os.umask(0)") == 0o027


def test_random_numbers_and_temporary_names_differ(tmp_path: Path) -> None:
    spec = module(tmp_path, "drawn", "import random, tempfile; random.random(); tempfile.mktemp()")
    code = "import random, tempfile; result = [random.random(), tempfile.mktemp()]"
    with TemplatePool(entry=STUB_TEMPLATE) as pool, WorkerGroup() as group:
        workers = [fork(pool, group, tmp_path / f"{n}.log", spec, "drawn") for n in range(3)]
        draws = [result_of(worker, code) for worker in workers]
    assert len({str(draw) for draw in draws}) == 3
    assert len({str(draw[0]) for draw in draws if isinstance(draw, list)}) == 3


def test_numpy_is_seeded_again(tmp_path: Path) -> None:
    with TemplatePool(entry=STUB_TEMPLATE) as pool, WorkerGroup() as group:
        workers = [fork(pool, group, tmp_path / f"{n}.log", spec_of(), "numpy") for n in range(2)]
        draws = [
            result_of(worker, "import numpy; result = numpy.random.random()") for worker in workers
        ]
    assert draws[0] != draws[1]


def test_exit_handlers_of_the_template_do_not_run_in_workers(tmp_path: Path) -> None:
    text = (
        "import atexit, pathlib, tempfile\n"
        f"atexit.register(pathlib.Path({str(tmp_path / 'template')!r}).touch)\n"
        "folder = tempfile.TemporaryDirectory()\n"
    )
    spec = module(tmp_path, "registers", text)
    code = (
        "import atexit, pathlib, registers; result = registers.folder.name; "
        f"atexit.register(pathlib.Path({str(tmp_path / 'worker')!r}).touch)"
    )
    with TemplatePool(entry=STUB_TEMPLATE) as pool, WorkerGroup() as group:
        worker = fork(pool, group, tmp_path / "log", spec, "registers")
        folder = str(result_of(worker, code))
        worker.close()
        assert (tmp_path / "worker").exists()
        assert not (tmp_path / "template").exists()
        assert Path(folder).is_dir()  # of the template, for the next worker


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()", "2 threads"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        ("import os; os._exit(3)", "exited with code 3"),
        ("import time; time.sleep(600)", "timed out"),
    ],
)  # fmt: skip
def test_a_template_that_must_not_fork(tmp_path: Path, text: str, reason: str) -> None:
    spec = module(tmp_path, "unsafe", text)
    spec = spec_of(variables=spec.variables, start_limit_s=3.0 if "sleep(600)" in text else 60.0)
    with TemplatePool(entry=STUB_TEMPLATE) as pool:
        (why_not,) = pool.sockets([spec], ["unsafe"])
        assert isinstance(why_not, str)
        assert reason in why_not
        assert pool.sockets([spec], ["unsafe"]) == [why_not]  # and it is not tried again


def test_a_thread_that_starts_later_stops_forking(tmp_path: Path) -> None:
    late = "import signal, threading, time\n"
    late += "def start(*_): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    spec = module(tmp_path, "late", late + "signal.signal(signal.SIGUSR1, start)\n")
    with TemplatePool(entry=STUB_TEMPLATE) as pool, WorkerGroup() as group:
        pid = template_pid(fork(pool, group, tmp_path / "1.log", spec, "late"))
        os.kill(pid, signal.SIGUSR1)
        until(lambda: psutil.Process(pid).num_threads() == 2)
        with pytest.raises(NoTemplate, match="2 threads"):
            fork(pool, group, tmp_path / "2.log", spec, "late")


def until(done: object, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not done():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_kill_9_of_a_template_ends_its_workers(start_stub: StubStarter) -> None:
    worker = start_stub()
    worker.ask("fork_sleeper", limit_s=20)
    os.kill(template_pid(worker), signal.SIGKILL)
    with pytest.raises(WorkerFailure) as caught:
        worker.ask("hang", limit_s=30)
    assert caught.value.kind == "killed"
    assert wait_until_gone(worker.launch_mark) == []


def test_workers_are_started_when_the_template_was_killed(start_stub: StubStarter) -> None:
    worker = start_stub()
    pid = template_pid(worker)
    worker.close()
    psutil.Process(pid).kill()
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")
    assert start_stub().ask("echo", limit_s=20, n=1) == {"n": 1}
    assert start_stub.reasons.pop() == "the template process was killed"


def test_a_template_that_hangs_leaves_no_worker(
    start_stub: StubStarter, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start_stub()
    template = psutil.Process(template_pid(worker))
    monkeypatch.setattr("torchyard.process.start._FORK_LIMIT_S", 0.3)
    template.suspend()
    with pytest.raises(NoTemplate, match="did not answer"):
        start_stub()
    monkeypatch.undo()
    template.resume()  # it forks now, for a connection that is closed
    assert start_stub().ask("echo", limit_s=20, n=2) == {"n": 2}
    until(lambda: len(template.children()) == 2)


@pytest.mark.parametrize("moment_s", [0.0, 0.002, 0.01])
def test_a_template_killed_while_it_forks(start_stub: StubStarter, moment_s: float) -> None:
    worker = start_stub()
    template = psutil.Process(template_pid(worker))
    worker.close()
    workers = []
    with suppress(NoTemplate, WorkerFailure, psutil.NoSuchProcess):
        for _ in range(20):
            other = start_stub()
            workers.append(other)
            if template.is_running() and len(workers) > 2:
                time.sleep(moment_s)
                template.kill()
            other.ask("echo", limit_s=20)
    assert workers
    start_stub.reasons.clear()
    for worker in workers:
        worker.kill()
        assert wait_until_gone(worker.launch_mark) == []
    until(lambda: not template.is_running() or template.status() == "zombie")


def test_another_environment_is_refused(tmp_path: Path) -> None:
    with TemplatePool(entry=STUB_TEMPLATE) as pool, WorkerGroup() as group:
        (socket,) = pool.sockets([spec_of()], ())
        other = spec_of(variables=(("OMP_NUM_THREADS", "7"),))
        with pytest.raises(NoTemplate, match="another value of OMP_NUM_THREADS"):
            group.start(other, log_path=tmp_path / "log", entry=STUB, template=Path(socket))


def test_variables_of_a_launch_are_its_own(tmp_path: Path) -> None:
    with TemplatePool(entry=STUB_TEMPLATE) as pool, WorkerGroup() as group:
        for number in range(2):
            spec = spec_of(variables=(("TRITON_CACHE_DIR", f"/{number}"),))
            worker = fork(pool, group, tmp_path / f"{number}.log", spec)
            assert worker.ask("facts", limit_s=20)["variables"]["TRITON_CACHE_DIR"] == f"/{number}"
            assert processes_of_launch(worker.launch_mark) == [worker.pid]


def test_processes_with_other_modules_share_a_template_that_imports_all(tmp_path: Path) -> None:
    module(tmp_path, "first_package", "")
    module(tmp_path, "unexpected", "")
    spec = module(tmp_path, "second_package", "")
    code = "import sys; result = sorted({'first_package', 'second_package'} & set(sys.modules))"
    expected = ("first_package", "second_package")
    with TemplatePool(entry=STUB_TEMPLATE, modules=expected) as pool, WorkerGroup() as group:
        first, second, other = (
            fork(pool, group, tmp_path / f"{name}.log", spec, name)
            for name in (*expected, "unexpected")
        )
        assert result_of(first, code) == result_of(second, code) == list(expected)
        assert template_pid(first) == template_pid(second) != template_pid(other)
        assert result_of(other, code) == []


def test_the_number_of_templates_is_limited() -> None:
    specs = [spec_of(variables=(("N", str(number)),)) for number in range(MOST_TEMPLATES + 1)]
    with TemplatePool(entry=STUB_TEMPLATE) as pool:
        sockets = pool.sockets(specs, ())
        assert [isinstance(one, Path) for one in sockets] == [True] * MOST_TEMPLATES + [False]
        folder = Path(sockets[0]).parent
        assert folder.stat().st_mode & 0o777 == 0o700
    assert not folder.exists()


def test_the_folder_of_a_killed_controller_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's path must be short
        monkeypatch.setattr("tempfile.tempdir", short)
        monkeypatch.setenv("TMPDIR", short)
        controller, _ = start_controller("none", "stay", "fork")
        with controller:
            (lost,) = Path(short).glob("torchyard-templates-*")
            with TemplatePool(entry=STUB_TEMPLATE) as pool:
                pool.serve()
            assert lost.is_dir()  # its controller runs
            controller.kill()
        with TemplatePool(entry=STUB_TEMPLATE) as pool:
            pool.serve()
            assert not lost.exists()


def test_a_long_path_of_temporary_files_is_avoided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with TemplatePool(entry=STUB_TEMPLATE) as pool, WorkerGroup() as group:
        pool.serve()
        worker = fork(pool, group, tmp_path / "log", spec_of())
        assert worker.ask("echo", limit_s=20, n=1) == {"n": 1}


def test_controllers_share_the_templates_of_a_pool(tmp_path: Path) -> None:
    with TemplatePool(entry=STUB_TEMPLATE) as pool, WorkerGroup() as group:
        variables = pool.serve()
        remote = RemotePool(Path(variables["TORCHYARD_TEMPLATES"]))
        worker = fork(remote, group, tmp_path / "log", spec_of())
        controller, mark = start_controller("hang", "stay", variables["TORCHYARD_TEMPLATES"])
        with controller:
            (pid,) = processes_of_launch(mark)
            assert psutil.Process(pid).ppid() == template_pid(worker)
            controller.kill()
            assert wait_until_gone(mark) == []
        assert worker.ask("echo", limit_s=20, n=1) == {"n": 1}
    assert "did not answer" in str(remote.sockets([spec_of()], ())[0])


def test_a_pool_ends_its_templates_and_their_workers(tmp_path: Path) -> None:
    with WorkerGroup() as group:
        with TemplatePool(entry=STUB_TEMPLATE) as pool:
            worker = fork(pool, group, tmp_path / "log", spec_of())
            template: _Template = next(iter(pool._templates.values()))
        assert wait_until_gone(worker.launch_mark) == []
        assert template._worker is not None
        assert not template._worker.is_alive
