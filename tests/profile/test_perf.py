"""perf: parsing, and real runs where it is installed and permitted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from torchyard.core.study import Target
from torchyard.profile.tool_run import plan_run, run_planned
from torchyard.profile.tools.interface import ToolOptions
from torchyard.profile.tools.perf import Frame, fold_script, read_counters, stack_rows, take_maps

SCRIPT = """python 16525/16525    5025125 cpu-clock:u:
\t          287944 siphash13 (/usr/lib/libpython3.11.so.1.0)
\t          1dd644 unicode_hash (/usr/lib/libpython3.11.so.1.0)
\t          1972ac main (/usr/bin/python3.11)

perf 16524/16524    5025125 cpu-clock:u:
\t            1000 execvp (/lib/libc.so.6)

my thread 3 16525/16530    1000 cpu-clock:u:
\t    ffffffff8100 at::native::add(at::Tensor const&, at::Tensor const&) (/x (deleted)/libtorch.so)
\t          1972ac main (/usr/bin/python3.11)

python 16525/16525    3000 cpu-clock:u:
\t          287944 py::hot;loop:/tmp/a b.py (/tmp/perf-16525.map)
\t          287945 py::hot;loop:/tmp/a b.py (/tmp/perf-16525.map)
\t          1972ac main (/usr/bin/python3.11)

python 16525/16525    1 page-faults:u:
\t          287944 siphash13 (/usr/lib/libpython3.11.so.1.0)

python 16525/16525    500 cpu-clock:u:

a line that means nothing
"""


def test_stacks_are_folded_outermost_first() -> None:
    folded = fold_script(SCRIPT.splitlines(keepends=True))
    assert folded.event == "cpu-clock"
    assert folded.samples == 4
    names = {tuple(frame.symbol for frame in frames): cost for frames, cost in folded.costs.items()}
    assert names[("main", "unicode_hash", "siphash13")] == 5025125
    assert names[("main", "at::native::add(at::Tensor const&, at::Tensor const&)")] == 1000
    assert names[("[unknown]",)] == 500
    assert not any("execvp" in stack for stack in names), "perf's own start is no part of it"
    assert folded.notes == ("the table shows cpu-clock; perf.data also contains page-faults",)


def test_rows_count_a_recursive_function_once() -> None:
    rows, stacks = stack_rows(fold_script(SCRIPT.splitlines(keepends=True)), most_stacks=2)
    by_name = {row.name: row for row in rows}
    hot = by_name["hot;loop:/tmp/a b.py"]
    assert (hot.self_cost, hot.total_cost, hot.where) == (3000, 3000, "Python")
    assert by_name["main"].self_cost == 0
    assert by_name["main"].total_cost == 5025125 + 1000 + 3000
    assert rows[0].name == "siphash13"
    assert [stack.cost for stack in stacks] == [5025125, 3000]


def test_maps_are_taken_from_the_programs_own_processes(tmp_path: Path) -> None:
    temporary, folder = tmp_path / "tmp", tmp_path / "kept"
    temporary.mkdir()
    folder.mkdir()
    for pid in (16525, 7):
        (temporary / f"perf-{pid}.map").write_text("100 8 py::f:x.py\n")
    (tmp_path / "precious").write_text("mine")
    (temporary / "perf-9.map").symlink_to(tmp_path / "precious")
    folded = fold_script(SCRIPT.splitlines(keepends=True))
    assert folded.pids == {16525}
    assert take_maps({16525, 9, 10}, folder, temporary=temporary) == ["perf-16525.map"]
    assert (folder / "perf-16525.map").is_file()
    assert sorted(path.name for path in temporary.iterdir()) == ["perf-7.map", "perf-9.map"]


def test_a_semicolon_in_a_name_does_not_part_a_folded_stack() -> None:
    assert Frame("a;b\nc", "").folded == "a:b c"


@pytest.mark.parametrize("text", ["", "\n\n", "nonsense", "\t 12 orphan (x)\n", "\0\x1b[31m\n"])
def test_texts_that_are_no_samples_give_nothing(text: str) -> None:
    folded = fold_script(text.splitlines(keepends=True))
    assert (folded.samples, stack_rows(folded, most_stacks=5)) == (0, ((), ()))


def test_counters(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(
        "# started on Sun\n\n0.36;msec;cpu-clock;357596;100.00;0.074;CPUs utilized\n"
        "<not supported>;;cycles:u;0;100.00;;\n42;;page-faults;357596;100.00;118;K/sec\nbroken\n"
    )
    clock, cycles, faults = read_counters(path)
    assert (clock.name, clock.value, clock.unit) == ("cpu-clock", 0.36, "msec")
    assert (cycles.name, cycles.value) == ("cycles", None)
    assert faults.value == 42
    assert read_counters(tmp_path / "none") == ()


def perf_works() -> bool:
    if shutil.which("perf") is None:
        return False
    probe = ["perf", "stat", "-e", "cpu-clock", "--", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


needs_perf = pytest.mark.skipif(not perf_works(), reason="perf is not installed or not allowed")
BUSY = """import sys
def squares(count):
    total = 0
    for number in range(count):
        total += number * number
    return total
squares(2_000_000)
sys.exit(int(sys.argv[1]))
"""


@needs_perf
def test_a_real_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "busy it's.py"
    script.write_text(BUSY)
    planned = plan_run(
        "perf", Target(name="here", python=sys.executable), (str(script), "3"), ToolOptions()
    )
    profile, path = run_planned(planned, folder=tmp_path / "kept", report_progress=lambda _: None)
    assert profile.exit_code == 3
    assert profile.state == "crashed"
    assert profile.unit == "ns"
    assert profile.total_cost > 1e7, "some tens of milliseconds of work"
    assert any("PyEval" in row.name or "PyLong" in row.name for row in profile.rows)
    counted = {counter.name: counter.value for counter in profile.counters}
    assert (counted["task-clock"] or 0) > 10
    assert (counted["page-faults"] or 0) > 100
    folded = (path.parent / "stacks.folded").read_text().splitlines()
    assert all(line.rpartition(" ")[2].isdigit() for line in folded)


@needs_perf
def test_ctrl_c_keeps_what_was_sampled(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(
        "import time\nsum(number * number for number in range(2_000_000))\n"
        "print('begun', flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "torchyard", "profile", "--tool", "perf"),
            *("--run-dir", str(tmp_path / "kept"), str(script)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does: to all of them
        out, err = process.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, err
    assert "The program was interrupted" in out
    assert "Py" in out


@needs_perf
@pytest.mark.skipif(sys.version_info < (3, 12), reason="names of Python functions need 3.12")
def test_python_functions_have_names(tmp_path: Path) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY)
    planned = plan_run(
        "perf", Target(name="here", python=sys.executable), (str(script), "0"), ToolOptions()
    )
    profile, _ = run_planned(planned, folder=tmp_path / "kept", report_progress=lambda _: None)
    assert any("squares" in row.name for row in profile.rows)
