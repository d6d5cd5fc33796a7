"""Exact command line of each profiler, as arguments and as one shell line."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.profile.fake_tool import fake_tool
from torchyard.errors import MissingTool, UsageError
from torchyard.profile.command import TOOL_NAMES, profile
from torchyard.profile.tools import TOOLS
from torchyard.profile.tools.gvprof import KNOBS
from torchyard.profile.tools.interface import (
    OPTION_NAMES,
    InstalledTool,
    Job,
    TargetFacts,
    ToolOptions,
    check_options,
    find_tool,
    library_path,
    shell_text,
)

PYTHON = "/opt/t/bin/python"
LIBRARIES = "/opt/t/lib/python3.12/site-packages/torch/lib"


def job(**changes: object) -> Job:
    plain = Job(
        python=PYTHON,
        words=("train.py", "--epochs", "1"),
        folder=Path("/results"),
        facts=TargetFacts(
            python_version=(3, 12, 1),
            torch_folder="/opt/t/lib/python3.12/site-packages/torch",
            perf_trampoline=True,
        ),
        environment={},
        entry="/worker/run_program.py",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def words_of(tool: str, of: Job) -> list[str]:
    """What follows the program's name."""
    return list(TOOLS[tool].command(tool, of).words)


def test_the_command_lists_every_tool_in_order() -> None:
    assert tuple(TOOLS) == TOOL_NAMES


def test_gvprof_is_the_command_of_its_authors_with_the_library_path() -> None:
    command = TOOLS["gvprof"].command("hpcrun", job(environment={"LD_LIBRARY_PATH": "/a:/b"}))
    assert shlex.join(command.words) == (
        "hpcrun -o /results/measurements -e gpu=nvidia,data_flow "
        "-ck HPCRUN_SANITIZER_READ_TRACE_IGNORE=1 -ck HPCRUN_SANITIZER_DATA_FLOW_HASH=0 "
        "-ck HPCRUN_SANITIZER_GPU_ANALYSIS_BLOCKS=1 "
        "-ck HPCRUN_SANITIZER_GPU_PATCH_RECORD_NUM=131072 "
        "/opt/t/bin/python train.py --epochs 1"
    )
    assert dict(command.variables) == {
        "LD_LIBRARY_PATH": f"{LIBRARIES}:/a:/b",
        "SANITIZER_DISABLE_PARALLEL_LAUNCHES": "1",
    }


def test_knobs_of_the_user_win_and_are_added() -> None:
    options = ToolOptions(
        knobs=(("HPCRUN_SANITIZER_DATA_FLOW_HASH", "1"), ("HPCRUN_SANITIZER_X", "a b")),
        events=("value_pattern",),
    )
    words = words_of("gvprof", job(options=options))
    assert words[words.index("-e") + 1] == "gpu=nvidia,value_pattern"
    knobs = [words[n + 1] for n, word in enumerate(words) if word == "-ck"]
    assert "HPCRUN_SANITIZER_DATA_FLOW_HASH=1" in knobs
    assert "HPCRUN_SANITIZER_X=a b" in knobs
    assert len(knobs) == len(KNOBS) + 1


def test_nsys() -> None:
    assert words_of("nsys", job()) == [
        *("nsys", "profile", "--trace=cuda,nvtx,osrt,cudnn,cublas"),
        *("--sample=none", "--cpuctxsw=none", "--cuda-memory-usage=true"),
        *("--force-overwrite=true", "--output=/results/report"),
        *(PYTHON, "train.py", "--epochs", "1"),
    ]


def test_nsys_for_some_steps_waits_for_the_switch() -> None:
    options = ToolOptions(skip_steps=3, active_steps=2, stacks=True, memory=False)
    command = TOOLS["nsys"].command("nsys", job(options=options))
    words = list(command.words)
    assert "--capture-range=cudaProfilerApi" in words
    assert "--python-sampling=true" in words
    assert "--cuda-memory-usage=true" not in words
    assert (
        words[-6:]
        == [
            *(PYTHON, "/worker/run_program.py", "/results/range.plan.json", "--"),
            *("train.py", "--epochs", "1"),
        ][-6:]
    )
    ((path, text),) = command.files
    plan = json.loads(text)
    assert path == "/results/range.plan.json"
    assert (plan["tool"], plan["switch"]) == ("range", "cuda")
    assert plan["tool_options"] == {"skip_steps": 3, "warm_steps": 0, "active_steps": 2}


def test_ncu() -> None:
    assert words_of("ncu", job(options=ToolOptions(launches=7, events=("Occupancy",)))) == [
        *("ncu", "--target-processes", "all", "--set", "basic", "--section", "Occupancy"),
        *("--launch-count", "7", "--log-file", "/results/ncu.log"),
        *("--force-overwrite", "--export", "/results/report.ncu-rep"),
        *(PYTHON, "train.py", "--epochs", "1"),
    ]
    switched = words_of("ncu", job(options=ToolOptions(skip_steps=1)))
    assert switched[switched.index("--profile-from-start") + 1] == "off"


def test_rocprof() -> None:
    assert words_of("rocprof", job(options=ToolOptions(events=("SQ_WAVES",)))) == [
        *("rocprof", "--runtime-trace", "--stats", "--pmc", "SQ_WAVES"),
        *("--output-directory", "/results", "--output-file", "trace"),
        *("--output-format", "csv", "pftrace", "--"),
        *(PYTHON, "train.py", "--epochs", "1"),
    ]


def test_perf() -> None:
    command = TOOLS["perf"].command("perf", job(options=ToolOptions(threads=2)))
    words = list(command.words)
    assert words[:11] == [
        *("perf", "record", "--quiet", "--output", "/results/perf.data"),
        *("--freq", "199", "--call-graph", "fp", "--event", "cpu-clock"),
    ]
    inner = words[words.index("--") + 1 :]
    assert inner[:2] == ["perf", "stat"]
    counted = inner[inner.index("--event") + 1].split(",")
    assert {"cpu-clock", "task-clock", "page-faults", "context-switches"} <= set(counted)
    assert inner[inner.index("--") + 1 :] == [PYTHON, "train.py", "--epochs", "1"]
    assert dict(command.variables)["PYTHONPERFSUPPORT"] == "1"
    assert dict(command.variables)["OMP_NUM_THREADS"] == "2"
    assert not command.notes


def test_perf_notes_that_an_older_python_reports_no_functions() -> None:
    old = TargetFacts(python_version=(3, 11, 7))
    command = TOOLS["perf"].command("perf", job(facts=old))
    assert "PYTHONPERFSUPPORT" not in dict(command.variables)
    assert "Python 3.11 cannot report Python functions" in command.notes[0]


def test_callgrind_takes_one_thread_and_escapes_percent_signs() -> None:
    command = TOOLS["callgrind"].command("valgrind", job(folder=Path("/100%/p")))
    words = list(command.words)
    assert words[:4] == ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--dump-line=no"]
    assert "--callgrind-out-file=/100%%/p/callgrind.out.%p" in words
    assert "--log-file=/100%%/p/valgrind.log" in words
    assert set(dict(command.variables).values()) == {"1"}
    assert json.loads(command.files[0][1])["switch"] == "valgrind"


def test_torch_runs_inside_the_target() -> None:
    options = ToolOptions(skip_steps=1, active_steps=4, stacks=True)
    command = TOOLS["torch"].command("", job(options=options))
    assert command.words[:4] == (PYTHON, "/worker/run_program.py", "/results/plan.json", "--")
    plan = json.loads(command.files[0][1])
    assert plan["tool"] == "torch"
    assert plan["trace"] == "/results/trace.json.gz"
    assert plan["tool_options"]["active_steps"] == 4
    assert dict(command.variables) == {"KINETO_LOG_LEVEL": "9"}
    chosen = TOOLS["torch"].command("", job(environment={"KINETO_LOG_LEVEL": "0"}))
    assert "KINETO_LOG_LEVEL" not in dict(chosen.variables)


@pytest.mark.parametrize("tool", TOOL_NAMES)
def test_arguments_of_the_user_are_passed_before_the_program(tool: str) -> None:
    words = words_of(tool, job(options=ToolOptions(extra=("--a b",))))
    if tool == "torch":
        assert "--a b" not in words
    else:
        assert words.index("--a b") < words.index(PYTHON)


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        ("perf", ToolOptions(skip_steps=1), "--skip-steps is not supported by --tool perf"),
        (
            "rocprof",
            ToolOptions(active_steps=1),
            "--active-steps is not supported by --tool rocprof",
        ),
        ("gvprof", ToolOptions(frequency_hz=99), "--frequency is not supported by --tool gvprof"),
        ("torch", ToolOptions(extra=("-x",)), "--tool-arg is not supported by --tool torch"),
        ("callgrind", ToolOptions(stacks=True), "--stacks is not supported by --tool callgrind"),
        ("nsys", ToolOptions(knobs=(("A", "1"),)), "--knob is not supported by --tool nsys"),
    ],
)
def test_unsupported_options_are_rejected(tool: str, options: ToolOptions, message: str) -> None:
    check_options(TOOLS[tool], ToolOptions())
    with pytest.raises(UsageError, match=message) as caught:
        check_options(TOOLS[tool], options)
    assert caught.value.hint.startswith("supported options: --")


@pytest.mark.parametrize("tool", TOOL_NAMES)
def test_the_command_offers_every_option_that_a_tool_takes(tool: str) -> None:
    offered = {word for parameter in profile.params for word in parameter.opts}
    assert {OPTION_NAMES[name] for name in TOOLS[tool].supported_options} <= offered


def test_a_target_without_torch_has_no_library_path() -> None:
    bare = job(facts=TargetFacts(python_version=(3, 12)))
    assert library_path(bare) == ()
    with pytest.raises(MissingTool, match="has no torch"):
        TOOLS["torch"].check(InstalledTool(path=""), bare)


@pytest.mark.parametrize(
    "name", ["a b.py", "$(touch x).py", "it's;rm -rf.py", "-e.py", "\n.py", "ü.py"]
)
def test_a_shell_hands_on_exactly_the_same_words(tmp_path: Path, name: str) -> None:
    fake = fake_tool(tmp_path / "bin", "ncu", outputs={name: ""})
    folder = tmp_path / "re sult'$"
    of = job(
        words=(name, name),
        folder=folder,
        options=ToolOptions(skip_steps=1),
        environment={"LD_LIBRARY_PATH": "/x y"},
    )
    command = TOOLS["ncu"].command("ncu", of)
    subprocess.run(
        ["sh", "-c", shell_text(command, folder)],
        check=True,
        cwd=tmp_path,
        env={"PATH": f"{fake.folder}:/usr/bin:/bin"},
    )
    (called,) = fake.calls()
    assert ["ncu", *called.words] == list(command.words)
    assert called.variables["LD_LIBRARY_PATH"] == f"{LIBRARIES}:/x y"
    assert json.loads((folder / "range.plan.json").read_text())["switch"] == "cuda"
    assert not (tmp_path / "x").exists()


def test_finding_a_tool(tmp_path: Path) -> None:
    tool = replace(TOOLS["ncu"], places=())
    assert find_tool(tool, str(tmp_path)) == (None, "ncu is not installed")
    fake_tool(tmp_path, "ncu", version="NVIDIA (R)\nCopyright (c) 2018-2024\nVersion 2024.1")
    found, missing = find_tool(tool, str(tmp_path))
    assert (found, missing) == (
        InstalledTool(path=str(tmp_path / "ncu"), version="Version 2024.1"),
        "",
    )


def test_a_tool_that_does_not_run_is_missing(tmp_path: Path) -> None:
    wrapper = tmp_path / "perf"
    wrapper.write_text("#!/bin/sh\necho 'WARNING: perf not found for kernel 6.1' >&2\nexit 2\n")
    wrapper.chmod(0o755)
    found, missing = find_tool(TOOLS["perf"], str(tmp_path))
    assert found is None
    assert "perf not found for kernel 6.1" in missing


def test_a_tool_of_several_programs_names_each_that_is_missing(tmp_path: Path) -> None:
    fake_tool(tmp_path, "valgrind")
    found, missing = find_tool(TOOLS["callgrind"], str(tmp_path))
    assert found is None
    assert missing == "vgdb and callgrind_annotate are not installed"
