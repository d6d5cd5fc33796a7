"""Programs that are captured, and programs that are measured by the starter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from torchyard.errors import WorkerFailed
from torchyard.process.programs import ProgramStarter, capture


def test_outputs_exit_code_and_no_input() -> None:
    completed = capture(("sh", "-c", "cat; echo out; echo err >&2; exit 3"))
    assert (completed.returncode, completed.stdout, completed.stderr) == (3, "out\n", "err\n")


def test_both_outputs_together() -> None:
    completed = capture(("sh", "-c", "echo out; echo err >&2"), together=True)
    assert completed.stdout.splitlines() == ["out", "err"]


def test_variables_and_folder(tmp_path: Path) -> None:
    completed = capture(
        ("/bin/sh", "-c", "echo $A $HOME; pwd"), variables={"A": "1"}, folder=tmp_path
    )
    assert completed.stdout.splitlines() == ["1", str(tmp_path)]


def test_bytes_that_are_not_text_are_replaced() -> None:
    assert capture(("printf", r"a\377b")).stdout == "a\N{REPLACEMENT CHARACTER}b"


def test_time_limit_and_missing_program() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        capture(("sleep", "60"), limit_s=0.2)
    with pytest.raises(FileNotFoundError):
        capture(("/no/such/program",))


LIMIT_S = 60.0


@pytest.fixture
def starter() -> Iterator[ProgramStarter]:
    with ProgramStarter() as started:
        yield started


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def test_wall_and_cpu_time(starter: ProgramStarter, tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    sleeping = starter.run(["sleep", "0.2"], stderr=log, limit_s=LIMIT_S)
    assert sleeping.wall_ns >= 200_000_000
    assert sleeping.cpu_ns < 100_000_000
    code = "import time\nwhile time.process_time() < 0.2: pass"
    working = starter.run(python(code), stderr=log, limit_s=LIMIT_S)
    assert working.cpu_ns >= 200_000_000
    assert working.wall_ns >= 190_000_000
    assert working.exit_code == 0


def test_peak_memory_is_that_of_the_program(starter: ProgramStarter, tmp_path: Path) -> None:
    ballast = bytearray(300 << 20)
    small = starter.run(["true"], stderr=tmp_path / "stderr", limit_s=LIMIT_S)
    large = starter.run(python("b'x' * (100 << 20)"), stderr=tmp_path / "stderr", limit_s=LIMIT_S)
    assert small.peak_memory_bytes < 50 << 20 < len(ballast)
    assert 100 << 20 < large.peak_memory_bytes < 200 << 20


def test_exit_codes_and_standard_error(starter: ProgramStarter, tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    code = "import sys; sys.stderr.write('first\\n'); sys.exit(3)"
    assert starter.run(python(code), stderr=log, limit_s=LIMIT_S).exit_code == 3
    assert log.read_text() == "first\n"
    assert starter.run(["sh", "-c", "kill -SEGV $$"], stderr=log, limit_s=LIMIT_S).exit_code == -11
    assert log.read_text() == ""
    missing = starter.run(["no-such-program"], stderr=log, limit_s=LIMIT_S)
    assert missing.error == "No such file or directory"


def test_a_program_has_no_input_and_no_output(
    starter: ProgramStarter, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import sys; print('x' * 100000); sys.exit(sys.stdin.read() != '')"
    assert starter.run(python(code), stderr=tmp_path / "log", limit_s=LIMIT_S).exit_code == 0
    assert capfd.readouterr().out == ""


def test_a_program_is_killed_after_the_limit_with_its_children(
    starter: ProgramStarter, tmp_path: Path
) -> None:
    run = starter.run(["sh", "-c", "sleep 1234.5 & wait"], stderr=tmp_path / "stderr", limit_s=0.5)
    assert run.timed_out
    assert run.exit_code == -signal.SIGKILL
    wait_until_gone("1234.5")
    assert starter.run(["true"], stderr=tmp_path / "stderr", limit_s=LIMIT_S).exit_code == 0


def wait_until_gone(word: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while any(word in (one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nothing_remains_after_a_kill_of_the_controller(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from torchyard.process.programs import ProgramStarter\n"
        "with ProgramStarter() as s:\n"
        "    print(flush=True)\n"
        f"    s.run(['sleep', '2345.6'], stderr=Path({str(tmp_path / 'log')!r}), limit_s=3000)\n"
    )
    controller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert controller.stdout is not None
    controller.stdout.readline()
    deadline = time.monotonic() + LIMIT_S
    while not any("2345.6" in (p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    controller.kill()
    controller.wait()
    controller.stdout.close()
    wait_until_gone("2345.6")


def test_a_killed_starter_is_an_error(starter: ProgramStarter, tmp_path: Path) -> None:
    children = psutil.Process(os.getpid()).children()
    pid = max(children, key=psutil.Process.create_time).pid  # process ids may start again from 1
    threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
    with pytest.raises(WorkerFailed, match="starts programs ended"):
        starter.run(["sleep", "3456.7"], stderr=tmp_path / "log", limit_s=LIMIT_S)
    for process in psutil.process_iter(["cmdline"]):
        if "3456.7" in (process.info["cmdline"] or ()):
            process.kill()


def test_variables_are_added_and_removed_for_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TY_KEPT", "1")
    monkeypatch.setenv("TY_GONE", "1")
    output = tmp_path / "stdout"
    code = "import os; print(*(os.environ.get(n) for n in ('TY_KEPT', 'TY_GONE', 'TY_NEW')))"
    texts = []
    with ProgramStarter() as starter:
        for variables in ({"TY_GONE": None, "TY_NEW": "a b"}, None):
            run = starter.run(
                python(code),
                stderr=tmp_path / "stderr",
                stdout=output,
                limit_s=LIMIT_S,
                variables=variables,
            )
            assert not run.failed
            texts.append(output.read_text("utf-8").strip())
    assert texts == ["1 None a b", "1 1 None"]
