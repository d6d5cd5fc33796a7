"""The start of a worker: its environment, its libraries, and errors of launches."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.stub_launch import STUB, WAYS, StubStarter, spec_of
from torchyard.errors import MissingTool, NotAllowed, UsageError
from torchyard.process import start
from torchyard.process.ending import Ending, WorkerFailure
from torchyard.process.start import BOOT_FILE, LaunchSpec, find_library, prepare
from torchyard.process.worker_process import WorkerGroup, WorkerProcess


def randomizes_addresses(worker: WorkerProcess) -> bool:
    personality = int(Path(f"/proc/{worker.pid}/personality").read_text(), 16)
    return not personality & 0x0040000


@pytest.fixture(params=WAYS)
def start_stub(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StubStarter]:
    with StubStarter(tmp_path, request.param) as start:
        yield start


def make_program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def may_set_personality() -> bool:
    """Asked of the system itself, in a process of its own."""
    code = "import ctypes, sys; sys.exit(ctypes.CDLL(None).personality(0x40000) == -1)"
    return subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def failure_at_start(python: str, tmp_path: Path) -> WorkerFailure:
    """Of a start with the worker's own entry, followed by the first question."""

    def start_and_ask() -> None:
        with WorkerGroup() as group:
            worker = group.start(spec_of(python=python), log_path=tmp_path / "log")
            worker.ask("hello", limit_s=20)

    with pytest.raises(WorkerFailure) as caught:
        start_and_ask()
    return caught.value


def test_the_worker_sees_what_the_spec_says(
    start_stub: StubStarter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/controller/only")
    monkeypatch.setenv("PYTHONMALLOC", "malloc")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("OF_THE_USER", "kept")
    monkeypatch.setenv("NOT_UTF8", os.fsdecode(b"\xff\xfe"))
    worker = start_stub(
        variables=(("OMP_NUM_THREADS", "2"), ("EMPTY", ""), ("EQUALS", "a=b\nc")),
        arguments=("--layout=1,2", "", "ü"),
        working_folder=str(tmp_path),
    )
    facts = worker.ask("facts", limit_s=20)
    variables = facts["variables"]
    assert facts["arguments"] == ["--layout=1,2", "", "ü"]
    assert facts["folder"] == str(tmp_path)
    assert facts["session"] == worker.pid != os.getsid(0)
    assert facts["stdin"] == "/dev/null"
    assert variables["OMP_NUM_THREADS"] == "2"
    assert variables["EMPTY"] == ""
    assert variables["EQUALS"] == "a=b\nc"
    assert variables["OF_THE_USER"] == "kept"
    assert os.fsencode(variables["NOT_UTF8"]) == b"\xff\xfe"
    assert variables["TORCHYARD_LAUNCH"] == worker.launch_mark
    assert variables["TORCHYARD_YARD"].startswith(f"{os.getpid()}:")
    assert not {"PYTHONPATH", "PYTHONMALLOC", "LD_PRELOAD"} & set(variables)
    assert "/controller/only" not in facts["path"]


def test_a_target_may_have_a_python_path_of_its_own(start_stub: StubStarter) -> None:
    worker = start_stub(variables=(("PYTHONPATH", "/target/tree"),))
    assert "/target/tree" in worker.ask("facts", limit_s=20)["path"]


def test_address_randomisation_can_be_turned_off(start_stub: StubStarter) -> None:
    fixed = [start_stub(randomize_addresses=False) for _ in range(2)]
    if not may_set_personality():
        assert [randomizes_addresses(worker) for worker in fixed] == [True, True]
        pytest.skip("personality() is refused here, and the worker said so")
    assert [randomizes_addresses(worker) for worker in fixed] == [False, False]
    places = [worker.ask("facts", limit_s=20)["places"] for worker in fixed]
    assert places[0] == places[1] != []
    random = [start_stub() for _ in range(2)]
    assert [randomizes_addresses(worker) for worker in random] == [True, True]
    places = [worker.ask("facts", limit_s=20)["places"] for worker in random]
    # Forked workers share the layout of their template; their data is shifted instead.
    assert (places[0] != places[1]) == (start_stub.pool is None)


def test_interpreter_is_found_on_the_path(start_stub: StubStarter) -> None:
    worker = start_stub(
        python=Path(sys.executable).name,
        variables=(("PATH", str(Path(sys.executable).parent)),),
    )
    assert worker.ask("echo", limit_s=20, n=1) == {"n": 1}


def test_a_worker_outlives_the_thread_that_started_it(start_stub: StubStarter) -> None:
    workers: list[WorkerProcess] = []
    thread = threading.Thread(target=lambda: workers.append(start_stub()))
    thread.start()
    thread.join()
    assert workers[0].ask("echo", limit_s=20, n=1) == {"n": 1}


def test_starts_from_many_threads_at_once(start_stub: StubStarter, tmp_path: Path) -> None:
    answers: list[object] = []

    def start_and_ask(number: int) -> None:
        worker = WorkerProcess.start(spec_of(), log_path=tmp_path / f"{number}.txt", entry=STUB)
        answers.append(worker.ask("echo", limit_s=30, n=number)["n"])
        worker.close()

    threads = [threading.Thread(target=start_and_ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, answers)) == ["0", "1", "2", "3"]


def test_no_descriptor_is_left_open(start_stub: StubStarter, tmp_path: Path) -> None:
    start_stub().close()  # the lasting thread and its queue exist from here on
    before = sorted(Path("/proc/self/fd").iterdir())
    start_stub().close()
    worker = start_stub()
    with pytest.raises(WorkerFailure):
        worker.ask("leave", limit_s=20, code=1)
    with pytest.raises(WorkerFailure):
        start_stub(python=make_program(tmp_path / "empty", ""))
    with pytest.raises(NotAllowed):
        WorkerProcess.start(spec_of(), log_path=tmp_path / "empty" / "log", entry=STUB)
    assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/no/such/python", "does not exist"),
        ("no-such-python-anywhere", "on the PATH"),
        ("/tmp", "is a directory"),
        ("/etc/passwd", "is not executable"),
    ],
)
def test_interpreters_that_cannot_be_started(tmp_path: Path, name: str, reason: str) -> None:
    trouble = failure_at_start(name, tmp_path)
    assert trouble.kind == "no-python"
    assert reason in trouble.message
    assert name in trouble.message
    assert trouble.hint


@pytest.mark.parametrize("text", ["no program at all\n", "#!/no/such/shell\n"])
def test_a_file_that_is_no_program(tmp_path: Path, text: str) -> None:
    trouble = failure_at_start(make_program(tmp_path / "python", text), tmp_path)
    assert trouble.kind == "no-python"
    assert trouble.why


@pytest.mark.parametrize("program", ["true", "cat", "sh"])
def test_a_program_that_is_no_python(tmp_path: Path, program: str) -> None:
    path = shutil.which(program)
    assert path is not None
    trouble = failure_at_start(path, tmp_path)
    assert trouble.kind == "no-python"
    assert "is not a working Python" in trouble.message


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    """A stand-in for an old interpreter: it runs the real boot.py and claims to be Python 3.6."""
    claim = (
        "import sys; sys.version_info = (3, 6, 9, 'final', 0); sys.argv = sys.argv[1:]; "
        "exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))"
    )
    python = make_program(
        tmp_path / "python3.6",
        f'#!/bin/sh\nshift 4\nexec {sys.executable} -c "{claim}" "$@"\n',
    )
    trouble = failure_at_start(python, tmp_path)
    assert trouble.kind == "no-python"
    assert "Python 3.6 is too old" in trouble.message
    assert "newer Python" in trouble.hint


def test_boot_is_understood_by_any_python() -> None:
    """No annotation, f-string or keyword-only syntax that an old parser would trip over."""
    text = BOOT_FILE.read_text()
    for newer in ('f"', "f'", "def ", "->", ":=", "async ", "nonlocal "):
        assert newer not in text.split('"""', 2)[2], newer
    compile(text, str(BOOT_FILE), "exec", dont_inherit=True)


def test_a_working_folder_that_is_not_there(start_stub: StubStarter) -> None:
    with pytest.raises(UsageError, match="working directory /no/such/folder"):
        start_stub(working_folder="/no/such/folder")


@pytest.mark.parametrize("name", ["", "A=B", "NUL\0"])
def test_invalid_variable_names(start_stub: StubStarter, name: str) -> None:
    with pytest.raises(UsageError, match="name of an environment variable"):
        start_stub(variables=((name, "1"),))


def test_null_byte_in_an_argument(start_stub: StubStarter) -> None:
    with pytest.raises(UsageError, match="null byte"):
        start_stub(arguments=("a\0b",))


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotAllowed, match="log"):
        WorkerProcess.start(spec_of(), log_path=tmp_path / "file" / "log", entry=STUB)


def test_a_library_to_preload_that_is_missing(start_stub: StubStarter) -> None:
    with pytest.raises(MissingTool, match=r"/no/such/libtcmalloc\.so\.4"):
        start_stub(preload=("/no/such/libtcmalloc.so.4",))


def test_a_library_path_that_the_loader_would_split(
    start_stub: StubStarter, tmp_path: Path
) -> None:
    library = tmp_path / "lib a.so"
    library.touch()
    with pytest.raises(UsageError, match="space or a colon"):
        start_stub(preload=(str(library),))


def test_a_library_that_is_no_library_is_noticed(start_stub: StubStarter, tmp_path: Path) -> None:
    library = tmp_path / "libfake.so"
    library.write_text("not a library")
    worker = start_stub(preload=(str(library),))
    with pytest.raises(WorkerFailure, match="could not be preloaded") as caught:
        worker.ask("echo", limit_s=20)
    assert "libfake.so" in caught.value.log_tail


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_preloaded_library_is_in_the_worker_alone(
    start_stub: StubStarter, tmp_path: Path
) -> None:
    source = tmp_path / "loud.c"
    source.write_text(
        "#include <unistd.h>\n"
        '__attribute__((constructor)) void hi(void) { (void)!write(2, "loaded\\n", 7); }\n'
    )
    library = tmp_path / "libloud.so"
    command = ["cc", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True, timeout=60)
    worker = start_stub(preload=(str(library),))
    facts = worker.ask("facts", limit_s=20)
    assert facts["variables"]["LD_PRELOAD"] == str(library)
    worker.close()
    # Once: not in the trampoline. A forked worker was loaded with its template.
    assert worker.log_path.read_text() == ("loaded\n" if start_stub.pool is None else "")


def test_the_real_boot_isolates_the_package(tmp_path: Path) -> None:
    """A target with another `torchyard` and a `main` of its own gets ours and keeps its own."""
    packages = tmp_path / "packages"
    (packages / "torchyard").mkdir(parents=True)
    (packages / "torchyard" / "__init__.py").write_text("raise RuntimeError('the wrong one')\n")
    (packages / "wire.py").write_text("mine = True\n")
    (packages / "torch").mkdir()
    (packages / "torch" / "__init__.py").write_text(
        "import sys, wire, torchyard, torchyard.worker.wire\n"
        "assert wire.mine and 'torchyard.errors' not in sys.modules\n"
        "raise ImportError('seen: ' + torchyard.__path__[0] + ' in ' + repr(sys.path))\n"
    )
    worker = WorkerProcess.start(
        spec_of(variables=(("PYTHONPATH", str(packages)),)), log_path=tmp_path / "log"
    )
    with pytest.raises(WorkerFailure) as caught:
        worker.ask("hello", limit_s=30)
    worker.close()
    trouble = caught.value
    assert trouble.kind == "no-torch", trouble.log_tail
    assert f"seen: {BOOT_FILE.parents[1]} in" in trouble.message
    assert str(BOOT_FILE.parent) not in trouble.message.partition(" in ")[2]


def test_stacks_of_a_hanging_worker_are_logged(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time\ndef stuck():\n    time.sleep(60)\nstuck()\n")
    worker = WorkerProcess.start(
        spec_of(variables=(("PYTHONPATH", str(tmp_path)),)), log_path=tmp_path / "log"
    )
    with pytest.raises(WorkerFailure) as caught:
        worker.ask("hello", limit_s=2)
    assert caught.value.kind == "timeout"
    assert "in stuck" in caught.value.log_tail


@pytest.mark.torch
def test_the_real_worker_says_hello_and_quits(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("this interpreter has no torch")
    with WorkerGroup() as group:
        worker = group.start(
            spec_of(randomize_addresses=False, memory_limit_bytes=2**40), log_path=tmp_path / "log"
        )
        hello = worker.ask("hello", limit_s=worker.spec.start_limit_s)
        assert hello["pid"] == worker.pid
        assert hello["torch"].startswith("2.")
    assert worker._exit.ending() == Ending(exit_code=0)


def test_a_system_library_is_found_by_its_bare_name_and_loads() -> None:
    path = find_library("libm.so.6")
    assert path is not None
    assert path.is_absolute()
    assert ctypes.CDLL(str(path)).cos is not None


def test_without_the_loaders_cache_the_usual_folders_are_searched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("torchyard.process.start.shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(start, "_FOLDERS", (str(tmp_path),))
    assert find_library("libours.so.1") is None
    (tmp_path / "libours.so.1").write_bytes(b"")
    assert find_library("libours.so.1") == tmp_path / "libours.so.1"


def test_a_name_that_is_nowhere_is_an_error_before_anything_starts() -> None:
    spec = LaunchSpec(name="x", python="python3", variables=(), preload=("libnowhere.so.9",))
    with pytest.raises(MissingTool) as caught:
        prepare(spec, launch_mark="mark")
    assert "libnowhere.so.9" in caught.value.what
    assert "full path" in caught.value.hint


def test_a_bare_name_becomes_a_path_in_the_workers_environment() -> None:
    spec = LaunchSpec(name="x", python="python3", variables=(), preload=("libm.so.6",))
    launch = prepare(spec, launch_mark="mark")
    assert launch.environment["LD_PRELOAD"] == str(find_library("libm.so.6"))
