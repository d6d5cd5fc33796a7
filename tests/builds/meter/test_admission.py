"""Slots and memory: never more at once than allowed, nobody starves, nothing leaks."""

from __future__ import annotations

import itertools
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builds.meter.metered_commands import MeteredCommands, open_metered_commands, wait_for
from torchyard.builds.meter.compile_costs import MeterLog
from torchyard.builds.meter.compiler_launcher import write_table

NAP = "time.sleep(float(os.environ.get('NAP_S', '0.3')))"
HOLD = "while not os.path.exists('go'): time.sleep(0.01)"


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[MeteredCommands]:
    yield from open_metered_commands(tmp_path_factory, tmp_path)


def most_at_once(bench: MeteredCommands, *, units: bool = False) -> int:
    """The largest number of compiles (or of their units) running at one time, by the log."""
    changes: list[tuple[float, int]] = []
    for record in bench.records:
        if record["event"] == "end":
            weight = int(record["units"]) if units else 1
            changes += [(record["start"], weight), (record["end"], -weight)]
    most = present = 0
    for _, change in sorted(changes):
        present += change
        most = max(most, present)
    return most


def together_mib(log: MeterLog) -> float:
    """An upper bound of the memory of simultaneous compiles."""
    ends = [(one.end_s, -one.peak_mib) for one in log.compiles]
    changes = sorted([*((one.start_s, one.peak_mib) for one in log.compiles), *ends])
    return max(itertools.accumulate((change for _, change in changes), initial=0.0))


def start_all(bench: MeteredCommands, names: list[str]) -> list[subprocess.Popen[bytes]]:
    compiler = bench.fake_compiler(NAP)
    return [bench.start(compiler, "-c", "a.c", "-o", name) for name in names]


def wait_for_compile(bench: MeteredCommands) -> None:
    """Wait until a compile has its slot; the log exists before."""
    wait_for(lambda: bench.log_path.exists() and bool(bench.records))


def run_all(bench: MeteredCommands, names: list[str], *, together: int, body: str = "") -> None:
    """Release the compiles when `together` of them have begun, and the others had time to."""
    compiler = bench.fake_compiler(body + HOLD)
    processes = [bench.start(compiler, "-c", "a.c", "-o", name) for name in names]
    wait_for(lambda: bench.log_path.exists() and len(bench.records) >= together)
    time.sleep(0.5)
    (bench.folder / "go").touch()
    finish(processes)


def finish(processes: list[subprocess.Popen[bytes]]) -> None:
    assert [process.wait(timeout=60) for process in processes] == [0] * len(processes)


def test_no_more_jobs_than_slots(bench: MeteredCommands) -> None:
    bench.jobs = 2
    run_all(bench, [f"{number}.o" for number in range(7)], together=2)
    assert most_at_once(bench) == 2
    waited = sorted(one.waited_s for one in bench.log.compiles)
    assert waited[0] < waited[-1]
    assert waited[-1] > 0.2


def test_no_more_memory_than_there_is(bench: MeteredCommands) -> None:
    bench.units, bench.unit_mib, bench.default_mib = 10, 100, 290
    run_all(bench, [f"{number}.o" for number in range(7)], together=3)
    assert {record.get("units", 3) for record in bench.records} == {3}
    assert most_at_once(bench, units=True) == 9
    assert most_at_once(bench) == 3


def test_memory_is_really_kept_below_the_limit(bench: MeteredCommands) -> None:
    """Real allocations: three of 120 MiB each, room for two."""
    bench.units, bench.unit_mib, bench.default_mib = 30, 10, 140
    names = [f"{number}.o" for number in range(3)]
    run_all(bench, names, together=2, body="data = b'x' * (120 << 20)\n")
    assert most_at_once(bench) == 2
    assert bench.log.peak_mib > 120
    assert 240 < together_mib(bench.log) < 300


def test_a_file_bigger_than_the_machine_runs_alone(bench: MeteredCommands) -> None:
    bench.units = 10
    write_table(bench.folder / "table", {"huge.o": 10_000})
    processes = start_all(bench, ["a.o", "huge.o", "b.o", "c.o"])
    finish(processes)
    huge = next(one for one in bench.log.compiles if one.name == "huge.o")
    others = [one for one in bench.log.compiles if one.name != "huge.o"]
    assert huge.expected_mib == 10_000
    assert all(
        one.end_s <= huge.start_s + 0.01 or one.start_s >= huge.end_s - 0.01 for one in others
    )


def test_small_compiles_do_not_starve_a_big_one(bench: MeteredCommands) -> None:
    bench.jobs, bench.units = 4, 4
    bench.more["NAP_S"] = "0.1"
    write_table(bench.folder / "table", {"big.o": 4})
    compiler = bench.fake_compiler(NAP)
    loop = (
        "i=0; while [ $i -lt 200 ] && [ ! -e done ]; do "
        '"$0" "$1" -c a.c -o "$2$i.o" && touch "$2$i.o.ran"; i=$((i+1)); done'
    )
    small = [
        subprocess.Popen(
            ["sh", "-c", loop, bench.meter, compiler, f"s{writer}-"],
            env=bench.variables,
            cwd=bench.folder,
        )
        for writer in range(6)
    ]
    wait_for_compile(bench)
    finish([bench.start(compiler, "-c", "a.c", "-o", "big.o")])
    (bench.folder / "done").touch()
    finish(small)
    assert any(one.name == "big.o" for one in bench.log.compiles)
    # Otherwise the small ones ended because there were no more of them, and only then the big one ran.
    assert not list(bench.folder.glob("*-199.o.ran"))


def test_kill_9_gives_slot_and_memory_back(bench: MeteredCommands) -> None:
    bench.jobs, bench.units, bench.default_mib = 1, 10, 10
    bench.more["NAP_S"] = "60"
    (holder,) = start_all(bench, ["held.o"])
    wait_for_compile(bench)
    bench.more["NAP_S"] = "0"
    (waiting,) = start_all(bench, ["next.o"])
    time.sleep(0.3)
    assert waiting.poll() is None, "the only slot is taken"
    holder.send_signal(signal.SIGKILL)
    assert holder.wait(timeout=20) == -signal.SIGKILL
    assert waiting.wait(timeout=20) == 0
    assert bench.log.unfinished == (str(bench.folder / "held.o"),)


def test_sigkill_of_a_waiting_compiler_admits_the_next_one(bench: MeteredCommands) -> None:
    bench.jobs = 1
    order = ["a.o", "b.o", "c.o", "d.o"]
    compiler = bench.fake_compiler(HOLD)
    processes = [bench.start(compiler, "-c", "a.c", "-o", name) for name in order]
    wait_for_compile(bench)
    time.sleep(0.2)  # the others queue
    names_begun = {Path(record["output"]).name for record in bench.records}
    waiting = [
        process for name, process in zip(order, processes, strict=True) if name not in names_begun
    ]
    for process in waiting[:2]:
        process.kill()
        process.wait(timeout=60)
    (bench.folder / "go").touch()
    finish([process for process in processes if process not in waiting[:2]])
    assert len(bench.log.compiles) == 2


# --- the table ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "mib"),
    [
        (["-c", "x.cpp", "-o", "deep/Exact.cpp.o"], 11),
        (["-c", "in/source.cpp", "-o", "other.o"], 12),
        (["-c", "x.cpp", "-o", "VariableType_3.cpp.o"], 22),
        (["-c", "x.cpp", "-o", "VariableType_0.cpp.o"], 13),
        (["-c", "x.cpp", "-o", "a/flash_attn/k.cu.o"], 24),
        (["-c", "x.cpp", "-o", "unknown.o"], 7),
        (["a.o", "-o", "libsmall.so"], 31),
        (["a.o", "-o", "libbig.so.2"], 25),
    ],
)
def test_the_first_match_counts(bench: MeteredCommands, arguments: list[str], mib: int) -> None:
    bench.default_mib = 7
    write_table(
        bench.folder / "table",
        {
            "kind:link": 31,
            "# no comment": 99,
            "VariableType_*": 22,
            "Variable*": 23,
            "*/flash_attn/*": 24,
            "libbig.so*": 25,
            "Exact.cpp.o": 11,
            "source.cpp": 12,
            "VariableType_0.cpp.o": 13,
            "with\ttab": 98,
        },
    )
    assert bench.run("true", *arguments).returncode == 0
    assert bench.log.compiles[0].expected_mib == mib


def test_a_broken_table_means_the_default(bench: MeteredCommands) -> None:
    (bench.folder / "table").write_bytes(
        b"\0\xff no tab\n*\tmany\nx.o\n" + b"y" * 100_000 + b"\t5\n"
    )
    assert bench.run("true", "-c", "x.c", "-o", "z.o").returncode == 0
    assert bench.records[1]["units"] == 1


# --- out of memory ------------------------------------------------------------------------------

KILLED_FIRST = """
first = not os.path.exists('tried')
open('tried', 'w').close()
if first: os.kill(os.getpid(), 9)
time.sleep(0.2)
"""


def test_a_killed_compiler_is_retried_alone(bench: MeteredCommands) -> None:
    bench.units = 20
    bench.more["NAP_S"] = "0.4"
    other = bench.start(bench.fake_compiler(NAP), "-c", "b.c", "-o", "b.o")
    wait_for_compile(bench)
    compiler = bench.fake_compiler(KILLED_FIRST, name="killed")
    assert bench.run(compiler, "-c", "a.c", "-o", "a.o").returncode == 0
    finish([other])
    first, second = (
        record
        for record in bench.records
        if record["event"] == "end" and record["output"].endswith("a.o")
    )
    assert (first["signal"], first["out_of_memory"], first["retried"]) == (9, True, True)
    assert (second["status"], second["attempt"], second["units"]) == (0, 2, 20)
    beside = next(one for one in bench.log.compiles if one.name == "b.o")
    assert second["start"] >= beside.end_s - 0.01, "alone means alone"
    assert bench.log.unfinished == ()
    assert sum(one.retried for one in bench.log.compiles) == 1


def test_a_compiler_killed_twice_fails(bench: MeteredCommands) -> None:
    compiler = bench.fake_compiler("os.kill(os.getpid(), 9)")
    assert bench.run(compiler, "-c", "a.c", "-o", "a.o").returncode == 128 + 9
    assert [one.attempt for one in bench.log.compiles] == [1, 2]
    assert [one.retried for one in bench.log.compiles] == [True, False]
    assert bench.log.unfinished == (str(bench.folder / "a.o"),)


def test_an_ordinary_error_is_not_tried_again(bench: MeteredCommands) -> None:
    compiler = bench.fake_compiler("sys.exit(1)")
    assert bench.run(compiler, "-c", "a.c", "-o", "a.o").returncode == 1
    assert len(bench.log.compiles) == 1
    assert not bench.log.compiles[0].out_of_memory


def test_two_killed_at_once_do_not_wait_for_each_other(bench: MeteredCommands) -> None:
    bench.units, bench.default_mib = 4, 2
    body = """
mark = sys.argv[-1] + '.tried'
if not os.path.exists(mark):
    open(mark, 'w').close()
    time.sleep(0.3)
    os.kill(os.getpid(), 9)
"""
    compiler = bench.fake_compiler(body)
    finish([bench.start(compiler, "-c", "a.c", "-o", name) for name in ("a.o", "b.o")])
    assert sum(one.retried for one in bench.log.compiles) == 2


def test_a_driver_whose_compiler_was_killed_for_memory_is_retried(bench: MeteredCommands) -> None:
    """Such a driver says only exit status 1, as g++ does; the kernel's own count tells."""
    group = Path("/sys/fs/cgroup/memory/torchyard-meter-test")
    if not group.parent.is_dir():
        pytest.skip("needs the memory controller of control groups version 1")
    try:
        group.mkdir()
    except OSError:
        pytest.skip("needs the right to make a control group")
    try:
        (group / "memory.limit_in_bytes").write_text(str(60 << 20))
        compiler = bench.fake_compiler(
            "if os.path.exists('tried'): sys.exit(0)\n"
            "open('tried', 'w').close()\n"
            "if os.fork() == 0:\n"
            f"    open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            "    data = b'x' * (200 << 20)\n"
            "    os._exit(0)\n"
            "sys.exit(os.wait()[1] != 0)"
        )
        assert bench.run(compiler, "-c", "a.cpp", "-o", "a.o").returncode == 0
        first, second = bench.log.compiles
        assert (first.status, first.signal, first.out_of_memory, first.retried) == (
            1,
            0,
            True,
            True,
        )
        assert second.succeeded
    finally:
        group.rmdir()
