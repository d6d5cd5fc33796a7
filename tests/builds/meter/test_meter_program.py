"""The meter as a compiler launcher: measurement, pass-through, exit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.builds.meter.metered_commands import MeteredCommands, open_metered_commands, wait_for


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[MeteredCommands]:
    yield from open_metered_commands(tmp_path_factory, tmp_path)


ALLOCATE = "data = bytearray(int(os.environ['ALLOCATE_MIB']) << 20)"


def test_a_real_compile_and_link_are_measured(bench: MeteredCommands) -> None:
    (bench.folder / "a.c").write_text("int main(void) { return 0; }\n")
    assert bench.run("cc", "-c", "a.c", "-o", "sub.o").returncode == 0
    assert bench.run("cc", "sub.o", "-o", "program").returncode == 0
    compile_, link = bench.log.compiles
    assert (compile_.kind, compile_.language, compile_.tool) == ("compile", "c", "cc")
    assert (compile_.output, compile_.source) == (str(bench.folder / "sub.o"), "a.c")
    assert compile_.succeeded
    assert 5 < compile_.peak_mib < 500
    assert 0 < compile_.cpu_s < 30
    assert compile_.wall_s == pytest.approx(compile_.end_s - compile_.start_s, abs=0.01)
    assert (link.kind, link.name) == ("link", "program")
    assert subprocess.run([bench.folder / "program"], check=False, timeout=10).returncode == 0


def test_the_peak_is_what_the_compiler_took(bench: MeteredCommands) -> None:
    bench.more["ALLOCATE_MIB"] = "150"
    compiler = bench.fake_compiler(ALLOCATE)
    assert bench.run(compiler, "-c", "a.cpp", "-o", "a.o").returncode == 0
    (compile_,) = bench.log.compiles
    assert 150 < compile_.peak_mib < 200
    assert compile_.language == "c++"


def test_the_output_without_o_is_the_compilers_own_choice(bench: MeteredCommands) -> None:
    (bench.folder / "sub").mkdir()
    (bench.folder / "sub" / "my.file.c").write_text("int x;\n")
    assert bench.run("cc", "-c", "sub/my.file.c").returncode == 0
    (compile_,) = bench.log.compiles
    assert compile_.output == str(bench.folder / "my.file.o")
    assert Path(compile_.output).is_file()


@pytest.mark.parametrize(
    ("arguments", "kind", "output", "source"),
    [
        (["-x", "cu", "-c", "k.cu", "-o", "k.o"], "compile", "k.o", "k.cu"),
        (["-dc", "k.cu", "--output-file", "k.o"], "compile", "k.o", "k.cu"),
        (["-MD", "-MT", "x.c", "-MF", "y.c", "-c", "z.cc", "-oz.o"], "compile", "z.o", "z.cc"),
        (["-shared", "a.o", "-o", "libx.so"], "link", "libx.so", ""),
        (["-S", "a.c", "-o", "a.s"], "compile", "a.s", "a.c"),
        (["-DNAME=a.c", "-include", "b.c", "-c", "d.F90", "-o", "d.o"], "compile", "d.o", "d.F90"),
    ],
)
def test_command_lines(
    bench: MeteredCommands, arguments: list[str], kind: str, output: str, source: str
) -> None:
    assert bench.run("true", *arguments).returncode == 0
    (compile_,) = bench.log.compiles
    assert (compile_.kind, compile_.name, compile_.source) == (kind, output, source)


def test_nvcc_has_other_options_that_start_with_o(bench: MeteredCommands) -> None:
    nvcc = bench.fake_compiler("", name="nvcc")
    bench.run(nvcc, "-optf", "options", "-c", "k.cu", "-o", "k.o")
    assert bench.log.compiles[0].name == "k.o"
    bench.run("ccache-not-known", "-c", "a.c")
    assert len(bench.log.compiles) == 2, "a program that is missing is a failed compile"
    assert bench.log.compiles[1].status == 127


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["-E", "a.c", "-o", "a.i"], ["-print-file-name=x"], ["-dumpversion"], ["-v"]],
)
def test_a_probe_is_not_measured(bench: MeteredCommands, arguments: list[str]) -> None:
    (bench.folder / "a.c").write_text("int x;\n")
    assert bench.run("cc", *arguments).returncode == 0
    assert not bench.log_path.exists()


def test_output_input_and_status_are_the_compilers(bench: MeteredCommands) -> None:
    compiler = bench.fake_compiler("print(sys.stdin.read(), 'out'); sys.exit('error text')")
    result = subprocess.run(
        [bench.meter, compiler, "-c", "a.c", "-o", "a.o"],
        env=bench.variables,
        cwd=bench.folder,
        input="typed",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (1, "typed out\n", "error text\n")
    assert bench.log.compiles[0].status == 1
    assert bench.log.unfinished == (str(bench.folder / "a.o"),)


@pytest.mark.parametrize(
    "more",
    [
        {"TORCHYARD_METER_LOG": ""},
        {"TORCHYARD_METER_LOG": "/nonexistent/folder/log"},
        {"TORCHYARD_METER_LOCKS": "/nonexistent/folder/locks"},
        {"TORCHYARD_METER_JOBS": "many"},
        {"TORCHYARD_METER_JOBS": "0"},
        {"TORCHYARD_METER_UNITS": "-4", "TORCHYARD_METER_TABLE": "/proc/self/mem"},
        {"TORCHYARD_METER_UNIT_MIB": "0"},
    ],
)
def test_whatever_is_broken_the_compiler_runs(bench: MeteredCommands, more: dict[str, str]) -> None:
    bench.more = more
    (bench.folder / "a.c").write_text("int x;\n")
    result = bench.run("cc", "-c", "a.c", "-o", "a.o")
    assert (result.returncode, result.stderr) == (0, "")
    assert (bench.folder / "a.o").stat().st_size > 0


def test_a_full_disk_under_the_log_does_not_fail_the_compile(bench: MeteredCommands) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    bench.more["TORCHYARD_METER_LOG"] = "/dev/full"
    assert bench.run("true", "-c", "a.c", "-o", "a.o").returncode == 0


def test_names_with_every_character_come_back(bench: MeteredCommands) -> None:
    name = 'odd "name"\\ \t\n é \x7f.o'
    bench.run("true", "-c", "a.c", "-o", name)
    bench.run("true", "-c", "a.c", "-o", os.fsdecode(b"bytes\xff.o"))
    assert [one.name for one in bench.log.compiles] == [name, os.fsdecode(b"bytes\xff.o")]
    assert bench.log.damaged_lines == 0


def test_a_nested_meter_measures_once(bench: MeteredCommands) -> None:
    assert bench.run(bench.meter, "true", "-c", "a.c", "-o", "a.o").returncode == 0
    assert len(bench.log.compiles) == 1


def test_lines_of_many_writers_do_not_mix(bench: MeteredCommands) -> None:
    loop = 'i=0; while [ $i -lt 25 ]; do "$0" true -c a.c -o "$1$i.o" || exit 1; i=$((i+1)); done'
    long_name = "n" * 200
    writers = [
        subprocess.Popen(
            ["sh", "-c", loop, bench.meter, f"{long_name}{writer}-"],
            env=bench.variables,
            cwd=bench.folder,
        )
        for writer in range(8)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0] * 8
    log = bench.log
    assert log.damaged_lines == 0
    assert log.unfinished == ()
    assert len(log.compiles) == 200
    assert len({one.output for one in log.compiles}) == 200


# --- ends ---------------------------------------------------------------------------------------

SLEEPER = "open('pid', 'w').write(str(os.getpid())); os.rename('pid', 'running'); time.sleep(60)"


def started(bench: MeteredCommands, **options: object) -> tuple[subprocess.Popen[bytes], int]:
    process = bench.start(bench.fake_compiler(SLEEPER), "-c", "a.c", "-o", "a.o", **options)
    wait_for((bench.folder / "running").exists)
    return process, int((bench.folder / "running").read_text())


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("code", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_forwarded_with_the_same_exit_status(
    bench: MeteredCommands, code: signal.Signals
) -> None:
    bench_process, compiler = started(bench, preexec_fn=lambda: signal.signal(code, signal.SIG_DFL))
    bench_process.send_signal(code)
    status = bench_process.wait(timeout=20)
    wait_for(lambda: gone(compiler))
    (compile_,) = bench.log.compiles
    if code == signal.SIGINT:
        assert status in (-code, 1), "a Python that hears Ctrl-C may also exit with 1"
    else:
        assert status == -code
        assert (compile_.status, compile_.signal) == (-1, code)
    assert bench.log.unfinished == (str(bench.folder / "a.o"),)


def test_an_ignored_signal_stays_ignored(bench: MeteredCommands) -> None:
    process, compiler = started(
        bench, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    process.send_signal(signal.SIGHUP)
    os.kill(compiler, signal.SIGHUP)
    time.sleep(0.2)
    assert process.poll() is None
    assert not gone(compiler)


def test_kill_9_of_the_meter_ends_the_compiler(bench: MeteredCommands) -> None:
    process, compiler = started(bench)
    process.kill()
    process.wait(timeout=20)
    wait_for(lambda: gone(compiler))
    assert bench.log.compiles == ()
    assert bench.log.unfinished == (str(bench.folder / "a.o"),)


def test_the_end_of_the_parent_ends_meter_and_compiler(bench: MeteredCommands) -> None:
    compiler = bench.fake_compiler(SLEEPER)
    parent = subprocess.Popen(
        ["sh", "-c", '"$@"; true', "sh", bench.meter, compiler, "-c", "a.c", "-o", "a.o"],
        env=bench.variables,
        cwd=bench.folder,
    )
    wait_for((bench.folder / "running").exists)
    (meter,) = psutil.Process(parent.pid).children()
    parent.kill()
    parent.wait(timeout=20)
    wait_for(lambda: gone(meter.pid) and gone(int((bench.folder / "running").read_text())))
    assert bench.log.compiles[0].signal == signal.SIGTERM


def test_the_end_of_a_thread_of_the_parent_ends_nothing(bench: MeteredCommands) -> None:
    """The kernel tells of a parent's end when the thread that started the child ends."""
    compiler = bench.fake_compiler("time.sleep(0.7)")
    program = (
        "import subprocess, sys, threading\n"
        "found = []\n"
        "start = lambda: found.append(subprocess.Popen(sys.argv[1:]))\n"
        "thread = threading.Thread(target=start); thread.start(); thread.join()\n"
        "sys.exit(found[0].wait())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, bench.meter, compiler, "-c", "a.c", "-o", "a.o"],
        env=bench.variables,
        cwd=bench.folder,
        timeout=30,
        check=False,
    )
    assert result.returncode == 0
    assert bench.log.compiles[0].wall_s > 0.6


# --- under a compiler's name --------------------------------------------------------------------


@pytest.fixture
def links(bench: MeteredCommands) -> Path:
    folder = bench.folder / "bin"
    folder.mkdir()
    for name in ("cc", "mycc"):
        (folder / name).symlink_to(bench.meter)
    bench.more["PATH"] = f"{folder}:{os.environ['PATH']}"
    return folder


def as_compiler(bench: MeteredCommands, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env=bench.variables,
        cwd=bench.folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        executable=shutil.which(argv[0], path=bench.variables["PATH"]),
    )


def test_under_a_compilers_name_the_next_one_runs(bench: MeteredCommands, links: Path) -> None:
    (bench.folder / "a.c").write_text("int x;\n")
    assert as_compiler(bench, "cc", "-c", "a.c", "-o", "a.o").returncode == 0
    assert (bench.folder / "a.o").is_file()
    assert [one.tool for one in bench.log.compiles] == ["cc"]
    assert as_compiler(bench, str(links / "cc"), "--version").stdout


def test_a_launcher_before_a_link_measures_once(bench: MeteredCommands, links: Path) -> None:
    (bench.folder / "a.c").write_text("int x;\n")
    assert bench.run("cc", "-c", "a.c", "-o", "a.o").returncode == 0
    assert len(bench.log.compiles) == 1


def test_a_name_that_is_nowhere_else_is_reported(bench: MeteredCommands, links: Path) -> None:
    result = as_compiler(bench, "mycc", "-c", "a.c")
    assert result.returncode == 127
    assert "mycc" in result.stderr
    assert "PATH" in result.stderr


def test_a_compiler_only_before_our_folder_is_found_too(
    bench: MeteredCommands, links: Path
) -> None:
    other = bench.folder / "other"
    other.mkdir()
    shutil.copy(bench.fake_compiler("print('the real one')"), other / "mycc")
    bench.more["PATH"] = f"{other}:{links}"
    result = as_compiler(bench, str(links / "mycc"), "-c", "a.c")
    assert (result.returncode, result.stdout) == (0, "the real one\n")


def test_a_wrapper_before_our_folder_is_not_called_back(
    bench: MeteredCommands, links: Path
) -> None:
    wrapper, real = bench.folder / "wrapper", bench.folder / "real"
    wrapper.mkdir()
    real.mkdir()
    (wrapper / "mycc").write_text(f'#!/bin/sh\nexec "{links}/mycc" "$@"\n')
    (real / "mycc").write_text("#!/bin/sh\necho real\n")
    for script in (wrapper / "mycc", real / "mycc"):
        script.chmod(0o755)
    bench.more["PATH"] = f"{wrapper}:{links}:{real}:/usr/bin:/bin"
    assert as_compiler(bench, "mycc", "-c", "a.c").stdout == "real\n"


def test_a_cache_is_put_behind_the_launcher_of_cmake(bench: MeteredCommands) -> None:
    cache = bench.fake_compiler(
        "print('cached', *sys.argv[1:], flush=True); os.execvp(sys.argv[1], sys.argv[1:])",
        name="ccache",
    )
    bench.more["TORCHYARD_METER_CACHE"] = str(cache)
    (bench.folder / "a.c").write_text("int main(void) { return 0; }\n")
    result = bench.run("cc", "-c", "a.c", "-o", "a.o")
    assert result.stdout == "cached cc -c a.c -o a.o\n"
    twice = bench.run(str(cache), "cc", "-c", "a.c", "-o", "b.o")
    assert twice.stdout == "cached cc -c a.c -o b.o\n", "a cache before the compiler is enough"
    (bench.folder / "s.s").write_text("")
    assert bench.run("cc", "-c", "s.s", "-o", "s.o").stdout == "", "no cache for what none knows"


def test_a_cache_is_put_before_the_compiler_found_by_name(
    bench: MeteredCommands, links: Path
) -> None:
    cache = bench.fake_compiler(
        "print('cached', *sys.argv[1:], flush=True); os.execv(sys.argv[1], sys.argv[1:])",
        name="ccache",
    )
    bench.more["TORCHYARD_METER_CACHE"] = str(cache)
    (bench.folder / "a.c").write_text("int main(void) { return 0; }\n")
    result = as_compiler(bench, "cc", "-c", "a.c", "-o", "a.o")
    assert result.stdout.startswith("cached /")
    assert result.stdout.endswith("/cc -c a.c -o a.o\n")
    assert as_compiler(bench, "cc", "a.o", "-o", "a").stdout == "", "links are not cached"
    assert [one.tool for one in bench.log.compiles] == ["ccache", "cc"]


OPTIONS = "other*\t-O3\nslow?.c\t-O0 -DEXTRA=2\n*.c\t-DEXTRA=9\n"


@pytest.mark.parametrize(("name", "extra"), [("slow1.c", 2), ("slow12.c", 9), ("else.c", 9)])
def test_options_of_single_files_come_last(bench: MeteredCommands, name: str, extra: int) -> None:
    (bench.folder / name).write_text("int main(void) { return EXTRA; }\n")
    bench.more["TORCHYARD_METER_OPTIONS"] = OPTIONS
    words = ("cc", "-DEXTRA=1", "-c", name, "-o", "one.o", "-w")
    assert bench.run(*words).returncode == 0
    assert bench.run("cc", "one.o", "-o", "program").returncode == 0
    assert subprocess.run([bench.folder / "program"], check=False).returncode == extra


def test_files_without_options_of_their_own_are_compiled_as_asked(bench: MeteredCommands) -> None:
    (bench.folder / "plain.cpp").write_text("int main() { return EXTRA; }\n")
    bench.more["TORCHYARD_METER_OPTIONS"] = OPTIONS + "no tab here\n\n\t\n"
    assert bench.run("c++", "-DEXTRA=1", "-c", "plain.cpp", "-o", "one.o").returncode == 0
    assert bench.run("c++", "one.o", "-o", "program").returncode == 0
    assert subprocess.run([bench.folder / "program"], check=False).returncode == 1
