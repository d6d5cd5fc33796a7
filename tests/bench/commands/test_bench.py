"""The study that `bench` would run: every option, study files, and precedence of options over the file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.bench.sample_run import COMPARISONS, write_run
from tests.cli.command_line import call, program, study_of
from torchyard.bench.commands import options as bench_options
from torchyard.bench.commands import options as study_options
from torchyard.bench.commands.execution import BenchSession
from torchyard.core.study import MODE_NAMES, PRECISIONS, RelocationMethod

Capture = pytest.CaptureFixture[str]
EXAMPLES = Path(__file__).parents[3] / "examples"

STUDY = """
name = "from-file"
baseline = "eager"
candidates = ["aot_eager"]
precision = "float16"
[[workloads]]
name = "kernels/matmul"
batch-size = 2
[budget]
time = "30s"
margin = "3%"
[settings]
seed = 1
threads = 2
flush-l2 = true
"""


@pytest.fixture
def study_file(tmp_path: Path) -> str:
    (tmp_path / "study.toml").write_text(STUDY)
    return str(tmp_path / "study.toml")


def get(study: dict[str, object], path: str) -> Any:
    """One value of a study by its path, such as `workloads.0.mode`."""
    value: Any = study
    for step in path.split("."):
        value = value[int(step)] if step.isdigit() else value[step]
    return value


@pytest.mark.parametrize(
    ("options", "path", "value"),
    [
        (["--time", "5m"], "budget.time_s", 300),
        (["--precision-goal", "0.5%"], "budget.precision_goal", 0.005),
        (["--precision-goal", "0"], "budget.precision_goal", 0),
        (["--margin", "2%"], "budget.margin", 0.02),
        (["--launches", "9"], "budget.max_launches", 9),
        (["--threads", "3"], "settings.threads", 3),
        (["--seed", "0"], "settings.seed", 0),
        (["--reseat", "off"], "settings.reseat", "off"),
        (["--randomize-addresses"], "settings.paired_layout", False),
        (["--paired-layout"], "settings.paired_layout", True),
        (["--flush-l2"], "settings.flush_l2", True),
        (["--no-accuracy"], "settings.check_accuracy", False),
        (["--memory-limit", "2GiB"], "settings.memory_limit_bytes", 2**31),
        (["--step-limit", "10m"], "settings.step_limit_s", 600),
        (["--mode", "training"], "workloads.0.mode", "training"),
        (["--mode", "training", "--optimizer-step"], "workloads.0.optimizer_step", True),
        (["--device", "cuda:1"], "workloads.0.device", "cuda:1"),
        (["--batch-size", "7"], "workloads.0.batch_size", 7),
        (["--precision", "amp"], "baseline.precision", "amp"),
        (["--candidate", "inductor+bfloat16"], "candidates.0.precision", "bfloat16"),
        (["--baseline", "inductor:reduce-overhead"], "baseline.backend", "inductor:reduce-overhead"),
        (["--env", "one=A=1,B=x=y"], "candidates.0.environment.variables", [["A", "1"], ["B", "x=y"]]),
        (["--preload", "tc=libtc.so:libm.so"], "candidates.0.environment.preload", ["libtc.so", "libm.so"]),
    ],
)  # fmt: skip
def test_each_option_arrives(capsys: Capture, options: list[str], path: str, value: object) -> None:
    assert get(study_of(capsys, "--only", "models/gpt", *options), path) == value


def test_a_preload_joins_the_environment_of_its_name(capsys: Capture) -> None:
    study = study_of(
        capsys, "--only", "gpt", "--env", "tc=A=1", "--preload", "tc=libtc.so", "--env", "tc=B=2"
    )
    assert get(study, "candidates.0.environment") == {
        "name": "tc",
        "variables": [["A", "1"], ["B", "2"]],
        "preload": ["libtc.so"],
        "threads": None,
        "cores": "",
        "memory": "",
        "instances": 1,
    }
    assert len(get(study, "candidates")) == 1


def test_suites_and_names_add_up(capsys: Capture) -> None:
    study = study_of(capsys, "--suite", "models", "--only", "matmul:size=5", "--only", "gpt")
    names = [workload["name"] for workload in get(study, "workloads")]
    others = ["speech", "diffusion", "vision-language"]
    assert names == ["resnet", "transformer-encoder", "unet", "lstm", "gpt", *others, "matmul"]
    assert get(study, "workloads.8.parameters") == [["size", 5]]


def test_targets_alone_are_compared(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    study = study_of(
        capsys, "--only", "gpt", "--target", f"a={sys.executable}", "--target", f"b={tmp_path}"
    )
    assert get(study, "baseline.name") == "a"
    assert get(study, "candidates.0.target.python") == f"{tmp_path}/bin/python"


def test_the_default_target_is_the_interpreter_that_runs_us(capsys: Capture) -> None:
    assert get(study_of(capsys, "--only", "gpt"), "baseline.target.python") == sys.executable


def test_a_study_file_alone(capsys: Capture, study_file: str) -> None:
    study = study_of(capsys, study_file)
    assert get(study, "name") == "from-file"
    assert get(study, "candidates.0.backend") == "aot_eager"
    assert get(study, "baseline.precision") == "float16"
    assert (get(study, "budget.time_s"), get(study, "budget.margin")) == (30, 0.03)


@pytest.mark.parametrize("spec", ["mine.py", "mine.py:Net", "mine.py:Net:width=5"])
def test_a_python_file_as_argument_is_the_same_as_only(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    (tmp_path / "mine.py").write_text("class Net: ...\n")
    monkeypatch.chdir(tmp_path)
    study = study_of(capsys, spec)
    assert study == study_of(capsys, "--only", spec)
    assert get(study, "workloads.0.name").startswith(f"{tmp_path}/mine.py")


def test_a_python_file_replaces_the_workloads_of_the_study_file(
    capsys: Capture, study_file: str
) -> None:
    path = Path(study_file).with_name("mine.py")
    path.touch()
    study = study_of(capsys, study_file, str(path), "--only", "gpt")
    assert [workload["name"] for workload in get(study, "workloads")] == [str(path), "gpt"]
    assert get(study, "name") == "from-file"


@pytest.fixture
def two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "new").mkdir()
    for name in ("a.py", "b.py", "new/a.py"):
        (tmp_path / name).write_text("class Net: ...\nclass Wide: ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "names", "files"),
    [
        (["a.py", "b.py"], ["a.py", "b.py"], ["", "b.py"]),
        (["a.py:Net", "b.py:Net"], ["a.py:Net", "b.py:Net"], ["", "b.py:Net"]),
        (["a.py:Net", "a.py:Wide"], ["a.py:Net", "a.py:Wide"], ["", "a.py:Wide"]),
        (["a.py", "b.py", "new/a.py"], ["{}/a.py", "b.py", "new/a.py"], ["", "b.py", "new/a.py"]),
        (["a.py", "a.py"], ["a.py", "a.py-again"], ["", "a.py"]),
        (
            ["a.py", "b.py", "--precision", "bfloat16"],
            ["a.py+bfloat16", "b.py+bfloat16"],
            ["", "b.py"],
        ),
        (
            ["a.py", "b.py", "--backend", "inductor"],
            ["a.py+inductor", "b.py+inductor"],
            ["", "b.py"],
        ),
    ],
)
def test_several_files_are_variants_of_one_workload(
    capsys: Capture, two_files: Path, arguments: list[str], names: list[str], files: list[str]
) -> None:
    study = study_of(capsys, *arguments, "--time", "5s")
    variants = [get(study, "baseline"), *get(study, "candidates")]
    assert [one["name"] for one in variants] == [name.format(two_files.name) for name in names]
    assert [one["file"] for one in variants] == [file and f"{two_files}/{file}" for file in files]
    backend = "inductor" if "--backend" in arguments else "eager"
    assert {one["backend"] for one in variants} == {backend}
    assert [one["name"] for one in get(study, "workloads")] == [f"{two_files}/{arguments[0]}"]
    assert get(study, "budget.time_s") == 5


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["a.py", "b.py", "--candidate", "inductor"], "--candidate and several Python files"),
        (["a.py", "b.py", "--baseline", "inductor"], "--baseline and several Python files"),
        (["a.py", "b.py", "--only", "gpt"], "--only or --suite and several Python files"),
        (["a.py", "b.py:Net:width=3"], "FILE.py: 'b.py:Net:width=3' has parameters"),
        (["a.py", "b.py:Nett"], "FILE.py: {}/b.py has no function or class 'Nett'"),
        (["a.py", "missing.py"], "FILE.py: no such file: 'missing.py'"),
        (["a.py", "a.py", "a.py"], "'a.py-again' is given more than once"),
        (["a.py", "--backend", "inductor"], "--backend has no effect"),
    ],
)
def test_several_files_exclude_other_variants(
    capsys: Capture, two_files: Path, arguments: list[str], error: str
) -> None:
    completed = call(capsys, "bench", *arguments)
    assert completed.code == 2
    assert completed.err.startswith("error: " + error.format(two_files))
    assert "hint: " in completed.err


@pytest.mark.parametrize(
    ("options", "path", "value", "kept"),
    [
        (["--time", "5s"], "budget.time_s", 5, ("budget.margin", 0.03)),
        (["--seed", "9"], "settings.seed", 9, ("settings.threads", 2)),
        (["--no-flush-l2"], "settings.flush_l2", False, ("settings.seed", 1)),
        (["--candidate", "inductor"], "candidates.0.backend", "inductor", ("name", "from-file")),
        (["--precision", "amp"], "candidates.0.precision", "amp", ("budget.time_s", 30)),
        (["--only", "gpt"], "workloads.0.name", "gpt", ("candidates.0.backend", "aot_eager")),
        (["--batch-size", "5"], "workloads.0.batch_size", 5, ("workloads.0.name", "matmul")),
        (["--mode", "training"], "workloads.0.mode", "training", ("workloads.0.batch_size", 2)),
    ],
)
def test_options_win_over_the_file_and_leave_the_rest(
    capsys: Capture,
    study_file: str,
    options: list[str],
    path: str,
    value: object,
    kept: tuple[str, object],
) -> None:
    study = study_of(capsys, study_file, *options)
    assert get(study, path) == value
    assert get(study, kept[0]) == kept[1]


@pytest.mark.parametrize(
    ("options", "code", "what"),
    [
        ([], 3, "no workload given"),
        (["--suite", "kernals"], 2, "--suite: unknown suite 'kernals'"),
        (["--suite", "file"], 2, "--suite: the suite 'file' accepts any name"),
        (["--only", "gptt"], 2, "--only: unknown workload 'gptt'"),
        (["--only", "matmul:siz=5"], 2, "--only: kernels/matmul has no parameter 'siz'"),
        (["--only", "no.py"], 2, "--only: no such file: 'no.py'"),
        (["--only", "optimizer-step", "--mode", "training"], 2, "has no mode 'training'"),
        (["--only", "gpt", "--time", "soon"], 2, "--time: 'soon' is not a duration"),
        (["--only", "gpt", "--time", "0s"], 2, "--time: '0s' is out of range"),
        (["--only", "gpt", "--precision-goal", "x"], 2, "--precision-goal: 'x' is not a perc"),
        (["--only", "gpt", "--margin", "100%"], 2, "--margin: '100%' is out of range"),
        (["--only", "gpt", "--launches", "0"], 2, "--launches: '0' is out of range"),
        (["--only", "gpt", "--launches", "few"], 2, "--launches: 'few' is not a whole number"),
        (["--only", "gpt", "--threads", "0"], 2, "--threads: '0' is out of range"),
        (["--only", "gpt", "--seed", "-1"], 2, "--seed: '-1' is out of range"),
        (["--only", "gpt", "--batch-size", "0"], 2, "--batch-size: '0' is out of range"),
        (["--only", "gpt", "--memory-limit", "8GB"], 2, "--memory-limit: '8GB' has an unknown"),
        (["--only", "gpt", "--step-limit", "1y"], 2, "--step-limit: '1y' has an unknown time unit"),
        (["--only", "gpt", "--baseline", "eagr"], 2, "--baseline: 'eagr' is not a backend"),
        (["--only", "gpt", "--candidate", "eager+inductor"], 2, "--candidate: 'eager+inductor'"),
        (["--only", "gpt", "--target", "x"], 2, "--target: 'x' has no name"),
        (
            ["--only", "gpt", "--target", "x=/no"],
            2,
            "--target: the interpreter '/no' was not found",
        ),
        (["--only", "gpt", "--target", "a=sh", "--target", "a=sh"], 2, "'a' is given twice"),
        (
            ["--only", "gpt", "--target", "amp=sh"],
            2,
            "the name 'amp' is ambiguous: a target and a prec",
        ),
        (["--only", "gpt", "--env", "x"], 2, "--env: '' in 'x' is not a variable"),
        (["--only", "gpt", "--env", "x=A"], 2, "--env: 'A' in 'x=A' is not a variable"),
        (
            ["--only", "gpt", "--env", "eager=A=1"],
            2,
            "the name 'eager' is ambiguous: a backend and an env",
        ),
        (["--only", "gpt", "--preload", "x"], 2, "--preload: 'x' names no library"),
        (["--only", "gpt", "--preload", "a b=x.so"], 2, "--preload: 'a b' is not a valid name"),
        (["--only", "gpt", "--optimizer-step"], 2, "--optimizer-step has no effect"),
        (["missing.toml"], 2, "there is no study file 'missing.toml'"),
        (["kernels/layer-nrm"], 2, "the suite 'kernels' has no workload 'layer-nrm'"),
        (["nonsense"], 2, "unknown workload 'nonsense'"),
        (["missing.py"], 2, "FILE.py: no such file: 'missing.py'"),
        (["missing.py:Net"], 2, "FILE.py: no such file: 'missing.py'"),
        (["a.toml", "b.toml"], 2, "2 study files are given, and bench takes one"),
    ],
)
def test_every_invalid_input_is_named(
    capsys: Capture, options: list[str], code: int, what: str
) -> None:
    completed = call(capsys, "bench", "--dry-run", *options)
    assert completed.code == code
    assert what in completed.err.splitlines()[0]
    assert completed.out == ""
    if code == 2:
        assert "  hint: " in completed.err


@pytest.mark.parametrize(
    "options", [("--tune", "--cores", "0-99999"), ("--tune", "--cores", "0,x"), ("--cores", "0")]
)
def test_a_dry_run_checks_the_cores(capsys: Capture, options: tuple[str, ...]) -> None:
    completed = call(capsys, "bench", "kernels/softmax", "--dry-run", *options)
    assert completed.code == 2
    assert "--cores" in completed.err
    assert "hint: " in completed.err


def test_checks_before_the_work_starts(capsys: Capture, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    completed = call(capsys, "bench", "--only", "gpt", "--html", str(blocked / "report.html"))
    assert (completed.code, "--html:" in completed.err) == (2, True)
    completed = call(capsys, "bench", "--only", "gpt", "--replace")
    assert (completed.code, "--replace has no effect" in completed.err) == (2, True)
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious.txt").touch()
    completed = call(capsys, "bench", "--only", "gpt", "--run-dir", str(full), "--replace")
    assert (completed.code, "was not deleted" in completed.err) == (2, True)
    assert (full / "precious.txt").exists()


@pytest.mark.parametrize(
    ("options", "code", "answered"),
    [([], 0, True), ([], 6, True), (["--json"], 0, False), (["-q"], 0, False), ([], 130, False)],
)
def test_the_last_line_is_the_answer(
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    code: int,
    answered: bool,
) -> None:
    # GIVEN a run that has ended with one comparison
    def end(session: BenchSession) -> int:
        session.comparisons = list(COMPARISONS[:1])
        write_run(session.folder)
        return code

    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(BenchSession, "run", end)
    monkeypatch.setattr("torchyard.bench.target_checks.check_devices", lambda _: {})
    # WHEN the command shows it
    completed = call(capsys, "bench", "--only", "gpt", "--run-dir", str(tmp_path / "run"), *options)
    # THEN the answer is the last line, for people only
    assert completed.code == code
    answer = "inductor is faster than eager on kernels/matmul inference size=1000: speedup 1.352x"
    assert completed.out.splitlines()[-1].startswith(answer) is answered
    assert (answer in completed.out) is answered


def test_the_plan_says_everything_in_words(
    capsys: Capture, study_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    completed = call(capsys, "bench", study_file, "--dry-run", "--preload", "tc=libtc.so",
                 "--candidate", "aot_eager+tc", "--memory-limit", "1GiB")  # fmt: skip
    assert completed.err.startswith("plan: 1 workload, about 48 s")
    assert completed.out == (
        f"study from-file\n\n"
        f"baseline\n  eager+float16+default: eager, float16, target here ({sys.executable})\n"
        f"candidates\n  aot_eager+float16+tc: aot_eager, float16, target here ({sys.executable})\n"
        "    environment tc\n    preload libtc.so\n"
        "workloads\n  kernels/matmul inference b2\n"
        "budget\n"
        "  1 comparison, at most 30.0 s of measuring time per workload"
        " (30.0 s in total, excluding the first start and compilation)\n"
        "  until the verdict is clear and the confidence interval is within ±1.0%;"
        " differences below 3.0% count as the same\n"
        "  2 to 60 launches, alpha 0.05\n"
        "settings\n"
        "  blocks of 100 ms, seed 1, threads 2\n"
        "  data relocation auto, paired layout, accuracy checked, L2 flushed\n"
        "  limits: start 120 s, step 600 s, block 60.0 s, memory 1.00 GiB\n"
    )


def test_the_plan_names_the_options_of_a_variant(capsys: Capture) -> None:
    spec = "inductor+dynamic+inductor.freezing=true+threads=1"
    completed = call(capsys, "bench", "--dry-run", "--only", "kernels/mlp", "--candidate", spec)
    assert completed.code == 0
    assert "    options dynamic+inductor.freezing=true\n" in completed.out
    assert "    environment threads=1\n    threads 1\n" in completed.out


def test_a_relative_study_file_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.py").touch()
    (tmp_path / "sub" / "study.toml").write_text('[[workloads]]\nname = "mine.py"\n')
    completed = program("bench", "sub/study.toml", "--dry-run", cwd=tmp_path)
    assert f"\n  mine.py inference ({tmp_path}/sub/mine.py)\n" in completed.out


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_are_studies(capsys: Capture, example: Path) -> None:
    study = study_of(capsys, str(example))
    assert get(study, "name") == example.stem


def test_the_choices_are_those_of_the_types() -> None:
    assert bench_options.MODES == MODE_NAMES
    assert bench_options.PRECISIONS == PRECISIONS
    assert get_args(RelocationMethod) == study_options.RESEATS
