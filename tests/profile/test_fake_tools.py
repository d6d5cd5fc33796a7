"""`torchyard profile` with fake tools that record arguments and variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profile.fake_tool import FakeTool, fake_tool
from torchyard.cli.main import run
from torchyard.profile.tools import TOOLS

Capture = pytest.CaptureFixture[str]

NSYS_STATS = """Processing [report.sqlite] with [cuda_gpu_kern_sum.py]...

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
75.0,3000,3,1000.0,1000.0,900,1100,100.0,"void gemm<float, 4>(int)"
25.0,1000,1,1000.0,1000.0,1000,1000,0.0,relu_kernel
"""
NCU_CSV = """"ID","Process ID","Kernel Name","gpu__time_duration.sum"
"","","","us"
"0","7","relu_kernel","1.50"
"1","7","gemm","1,000.00"
"2","7","relu_kernel","2.50"
"""
ROCPROF_CSV = (
    '"Name","Calls","TotalDurationNs","AverageNs","Percentage"\n"gemm",2,900,450,90.0\n'
    '"copy, of ""rows""",1,100,100,10.0\n'
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def script(folder: Path, text: str = "print('out')\n", name: str = "program.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def on_path(fake: FakeTool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake.folder}{os.pathsep}{os.environ['PATH']}")


def called(capfd: Capture, *arguments: str) -> tuple[int, str, str]:
    capfd.readouterr()
    code = run(["profile", *arguments])
    captured = capfd.readouterr()
    return code, captured.out, captured.err


def torch_in(folder: Path) -> Path:
    """An interpreter whose torch is a folder that must not be imported."""
    library = folder / "site" / "torch"
    (library / "lib").mkdir(parents=True)
    (library / "__init__.py").write_text("raise SystemExit('imported')\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder / "site"} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_nsys_runs_and_its_kernels_are_read(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_tool(
        tmp_path / "bin",
        "nsys",
        files={"--output=": "timeline"},
        suffixes={"--output=": ".nsys-rep"},
        outputs={"stats": NSYS_STATS},
    )
    on_path(fake, monkeypatch)
    python = torch_in(tmp_path / "target")
    program = script(tmp_path, "import sys\nprint('out', sys.argv[1:])\n")
    page = tmp_path / "page.html"
    code, out, err = called(
        capfd, "--tool", "nsys", "--target", str(python), "--html", str(page), program, "a b"
    )
    assert code == 0, err
    first, stats = fake.calls()
    assert first.words[-3:] == [str(python), program, "a b"]
    assert first.variables["LD_LIBRARY_PATH"] == str(tmp_path / "target/site/torch/lib")
    assert stats.words[:3] == ["stats", "--report", "cuda_gpu_kern_sum"]
    assert "void gemm<float, 4>(int)" in out
    assert "75.0%" in out
    assert "report.nsys-rep" in page.read_text()
    (folder,) = (home / "profiles").iterdir()
    kept = json.loads((folder / "tool-profile.json").read_text())
    assert kept["rows"][0]["self_device_cost"] == 3000
    assert kept["rows"][0]["calls"] == 3
    assert kept["state"] == "finished"


def test_ncu_reads_units_and_adds_calls_up(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_tool(
        tmp_path / "bin", "ncu", files={"report.ncu-rep": ""}, outputs={"--import": NCU_CSV}
    )
    on_path(fake, monkeypatch)
    code, out, err = called(capfd, "--tool", "ncu", "--json", script(tmp_path))
    assert code == 0, err
    rows = {row["name"]: row for row in json.loads(out)["profile"]["rows"]}
    assert rows["gemm"]["self_device_cost"] == 1_000_000
    assert rows["relu_kernel"]["self_device_cost"] == 4000
    assert rows["relu_kernel"]["calls"] == 2
    assert "out" not in json.loads(out)  # what the program printed went to stderr


def test_ncu_without_permission_names_the_fix(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters\n"
    fake = fake_tool(tmp_path / "bin", "ncu", files={"ncu.log": text})
    on_path(fake, monkeypatch)
    code, _, err = called(capfd, "--tool", "ncu", script(tmp_path))
    assert code == 4
    assert "NVreg_RestrictProfilingToAdminUsers=0" in err
    assert "ncu.log" in err


def test_rocprof_reads_its_table(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_tool(
        tmp_path / "bin",
        "rocprofv3",
        files={"profiles": ROCPROF_CSV},
        suffixes={"profiles": "/host/1_kernel_stats.csv"},
    )
    on_path(fake, monkeypatch)
    code, out, err = called(capfd, "--tool", "rocprof", script(tmp_path))
    assert code == 0, err
    assert 'copy, of "rows"' in out
    assert "1_kernel_stats.csv" in out


def test_gvprof_gets_library_path_knobs_and_a_folder(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_tool(
        tmp_path / "bin",
        "hpcrun",
        files={"measurements": "digraph {}"},
        suffixes={"measurements": "/data_flow/data_flow.dot"},
    )
    on_path(fake, monkeypatch)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/before")
    python = torch_in(tmp_path / "target")
    program = script(tmp_path)
    code, out, err = called(
        capfd, "--tool", "gvprof", "--target", str(python), "--knob", "HPCRUN_X=2", program
    )
    assert code == 0, err
    (one,) = fake.calls()
    library = tmp_path / "target/site/torch/lib"
    assert one.variables["LD_LIBRARY_PATH"] == f"{library}:/before"
    assert one.variables["SANITIZER_DISABLE_PARALLEL_LAUNCHES"] == "1"
    assert one.words[2:4] == ["-e", "gpu=nvidia,data_flow"]
    assert "HPCRUN_SANITIZER_GPU_PATCH_RECORD_NUM=131072" in one.words
    assert "HPCRUN_X=2" in one.words
    assert "data_flow.dot" in out
    assert "imported" not in out + err


def test_an_hpcrun_that_is_not_gvprofs_is_reported(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(fake_tool(tmp_path / "bin", "hpcrun"), monkeypatch)
    code, _, err = called(capfd, "--tool", "gvprof", script(tmp_path))
    assert code == 5
    assert "not GVProf's" in err


@pytest.mark.parametrize("tool", ["nsys", "ncu", "rocprof", "gvprof", "perf", "callgrind"])
def test_a_missing_tool_prints_the_command_and_what_to_install(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if any((Path(place) / TOOLS[tool].programs[0]).exists() for place in TOOLS[tool].places):
        pytest.skip(f"{tool} is installed in one of {TOOLS[tool].places}")
    program = script(tmp_path, name="it's mine.py")
    code, out, err = called(capfd, "--tool", tool, program, "$HOME")
    assert code == 4
    assert "not installed" in err
    assert "install" in err.partition("hint:")[2]
    line = out.strip()
    assert line.endswith("'$HOME'")
    assert TOOLS[tool].programs[0] in line
    assert not home.exists(), "nothing was run, nothing is kept"
    code, out, _ = called(capfd, "--tool", tool, "--json", program)
    document = json.loads(out)
    assert code == document["error"]["exit_code"] == 4
    assert document["installed"] is False
    assert document["command"][-1] == program
    assert document["shell"].startswith("mkdir -p ")


def test_a_dry_run_runs_nothing(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_tool(tmp_path / "bin", "ncu")
    on_path(fake, monkeypatch)
    program = script(tmp_path)
    code, out, _ = called(capfd, "--tool", "ncu", "--dry-run", program)
    assert code == 0
    assert out.startswith("mkdir -p ")
    assert fake.calls() == []
    assert not home.exists()
    code, out, _ = called(capfd, "--tool", "ncu", "--dry-run", "--json", program)
    assert json.loads(out)["installed"] is True


def test_options_behind_the_program_are_named(
    tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(fake_tool(tmp_path / "bin", "ncu"), monkeypatch)
    program = script(tmp_path)
    _, _, err = called(capfd, "--dry-run", "--tool", "ncu", program, "--tool", "nsys", "--epochs=1")
    assert f"note: --tool is passed to {program}; options of Torchyard come before it" in err
    for arguments in ((program, "tool", "--epochs"), ("--quiet", program, "--tool", "nsys")):
        _, _, err = called(capfd, "--dry-run", "--tool", "ncu", *arguments)
        assert "is passed to" not in err


def test_perf_without_permission_names_the_fix(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    error_text = (
        "Error:\nAccess to performance monitoring and observability operations is limited.\n"
        "Consider adjusting /proc/sys/kernel/perf_event_paranoid setting\n"
    )
    on_path(fake_tool(tmp_path / "bin", "perf", error_text=error_text), monkeypatch)
    code, _, err = called(capfd, "--tool", "perf", script(tmp_path))
    assert code == 4
    assert "sudo sysctl kernel.perf_event_paranoid=1" in err
    assert not home.exists()


def test_the_programs_exit_code_passes_through(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_tool(
        tmp_path / "bin", "ncu", files={"report.ncu-rep": ""}, outputs={"--import": NCU_CSV}
    )
    on_path(fake, monkeypatch)
    code, out, _ = called(capfd, "--tool", "ncu", script(tmp_path, "raise SystemExit(7)\n"))
    assert code == 7
    assert "failed with exit code 7" in out
    assert "gemm" in out


def test_a_failed_program_that_leaves_nothing_keeps_its_exit_code(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(fake_tool(tmp_path / "bin", "nsys"), monkeypatch)
    code, out, _ = called(capfd, "--tool", "nsys", script(tmp_path, "raise SystemExit(9)\n"))
    assert code == 9
    assert "nsys wrote no report" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py",), "no such file: nowhere.py"),
        ((".",), ". is a directory"),
        ((), "no program given"),
        (("--tool", "gvprof", "--knob", "X", "p.py"), "'X' is not of the form NAME=VALUE"),
        (("--tool", "nothing", "p.py"), "nothing"),
        (("--tool", "perf", "--knob", "A=1", "p.py"), "--knob is not supported by --tool perf"),
        (("--limit", "soon", "p.py"), "'soon' is not a duration"),
        (("--target", "/nowhere/python", "p.py"), "the interpreter"),
        (("--show", "latest"), "no stored profile"),
        (("--show", "latest", "p.py"), "--show cannot be combined"),
    ],
)
def test_wrong_requests(
    home: Path, tmp_path: Path, capfd: Capture, arguments: tuple[str, ...], message: str
) -> None:
    script(tmp_path, name="p.py")
    code, _, err = called(capfd, *arguments)
    assert code == 2
    assert message in err
    assert "hint:" in err


def test_a_folder_that_holds_something_is_not_written_into(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(fake_tool(tmp_path / "bin", "ncu"), monkeypatch)
    place = tmp_path / "full"
    place.mkdir()
    (place / "mine").write_text("")
    program = script(tmp_path)
    code, _, err = called(capfd, "--tool", "ncu", "--run-dir", str(place), program)
    assert code == 2
    assert "already exists" in err


def test_show_again(
    home: Path, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = fake_tool(
        tmp_path / "bin", "ncu", files={"report.ncu-rep": ""}, outputs={"--import": NCU_CSV}
    )
    on_path(fake, monkeypatch)
    place = tmp_path / "kept"
    _, first, _ = called(capfd, "--tool", "ncu", "--run-dir", str(place), script(tmp_path))
    page = tmp_path / "pages" / "page.html"
    code, again, _ = called(capfd, "--show", str(place), "--html", str(page))
    assert code == 0
    assert again == first.removeprefix("out\n")
    assert 'href="../kept/report.ncu-rep"' in page.read_text()
    (place / "tool-profile.json").write_text('{"format": 99}')
    code, _, err = called(capfd, "--show", str(place))
    assert code == 8
    assert "newer Torchyard" in err


def test_a_module_and_a_stop_from_outside(home: Path, tmp_path: Path) -> None:
    """SIGTERM reaches the program through the tool's process, and the profile is kept."""
    fake = fake_tool(
        tmp_path / "bin", "ncu", files={"report.ncu-rep": ""}, outputs={"--import": NCU_CSV}
    )
    # exec instead of a child, as the signal goes to the tool's own process.
    text = (fake.folder / "ncu").read_text()
    (fake.folder / "ncu").write_text(
        text.replace(
            "sys.exit(subprocess.call(words[starts[0]:]) if starts else 0)",
            "os.execv(words[starts[0]], words[starts[0]:])",
        )
    )
    (tmp_path / "waits.py").write_text("import time\nopen('begun', 'w').close()\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "torchyard", "profile", "--tool", "ncu", "-m", "waits"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{fake.folder}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        import time

        deadline = time.monotonic() + 60
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143, err
    assert "interrupted" in out
