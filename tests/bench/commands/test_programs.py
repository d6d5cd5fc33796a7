"""`bench --command`: whole programs, their statistics, failures, and the stored run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_line import call, program, study_of
from torchyard.bench.program_session import command_of
from torchyard.results.run_reader import read_run

Capture = pytest.CaptureFixture[str]
FAST, SLOW = "true", "sleep 0.3"


def commands(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--command", text)]


def test_a_slower_program(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ["--time", "1s", "--launches", "5", "--run-dir", str(folder), "--json"]
    completed = call(capsys, "bench", *commands(FAST, SLOW), *options)
    assert completed.code in (0, 6), completed.err
    (row,) = json.loads(completed.out)["comparisons"]
    estimate = row["estimate"]
    assert estimate["launches"] == estimate["pairs"]
    assert estimate["pairs"] + estimate["pairs_dropped"] == 5
    assert estimate["speedup"] < 1
    assert row["candidate_metrics"]["time_ns"] > row["baseline_metrics"]["time_ns"]
    for side in ("baseline_metrics", "candidate_metrics"):
        assert 0 < row[side]["cpu_time_ns"] < 300_000_000
        assert 0 < row[side]["peak_memory_bytes"] < 100 << 20
    assert not row["shared_process"]
    blocks = [block for _, block in read_run(folder).blocks()]
    assert len(blocks) == 10
    orders = {tuple(b.variant for b in blocks if b.launch == n) for n in range(5)}
    assert len(orders) == 2, "the order inside pairs is random"


def test_reports_and_lists_read_the_run(capsys: Capture, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = ["--launches", "2", "--run-dir", str(folder), "--quiet"]
    assert call(capsys, "bench", *commands(FAST, "sh -c 'exit 0'"), *options).code in (0, 6)
    for name in ("terminal", "json", "csv", "html", "markdown"):
        shown = call(capsys, "report", str(folder), "--format", name)
        assert shown.code == 0, shown.err
        assert "sh -c" in shown.out
    shown = call(capsys, "results", "show", str(folder))
    assert shown.code == 0, shown.err
    assert call(capsys, "results", "verify", str(folder)).code == 0


def test_a_failing_candidate_does_not_stop_the_others(capsys: Capture, tmp_path: Path) -> None:
    code = "import sys; print('the reason', file=sys.stderr); sys.exit(3)"
    failing = f'{sys.executable} -c "{code}"'
    options = ["--launches", "2", "--run-dir", str(tmp_path / "run"), "--json"]
    completed = call(capsys, "bench", *commands(FAST, failing, "sleep 0"), *options)
    assert completed.code in (0, 6)
    failed, other = json.loads(completed.out)["comparisons"]
    assert failed["verdict"] == "failed"
    assert failed["failure"]["message"] == "exited with code 3"
    assert failed["failure"]["log_tail"] == "the reason\n"
    assert other["estimate"]["pairs"] + other["estimate"]["pairs_dropped"] == 2


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sh -c 'echo broken >&2; exit 7'", "exited with code 7"),
        ("no-such-program", "cannot be started: No such file or directory"),
        ("sh -c 'echo broken >&2; kill -SEGV $$'", "was killed by SIGSEGV"),
        ("sh -c 'echo broken >&2; sleep 99'", "timed out after 1"),
    ],
)
def test_a_failing_baseline_ends_with_the_documented_code(
    capsys: Capture, tmp_path: Path, command: str, message: str
) -> None:
    options = ["--step-limit", "1s", "--run-dir", str(tmp_path / "run")]
    completed = call(capsys, "bench", *commands(command, FAST), *options)
    assert completed.code == 5
    assert message in completed.err
    if "broken" in command:
        assert f"{command}: broken" in completed.err
    assert "✗ failed" in completed.out


def test_interrupted_between_pairs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = [*commands("sleep 0.05", "sleep 0.06"), "--time", "500s", "--precision-goal", "0%"]
    running = subprocess.Popen(
        [sys.executable, "-m", "torchyard", "bench", *arguments, "--run-dir", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    launches = folder / "launches.jsonl"
    while running.poll() is None and not (
        launches.exists() and launches.read_text().count("\n") > 2
    ):
        pass
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert "sleep 0.06" in out
    run = read_run(folder)
    assert run.state == "interrupted"
    estimate = run.comparisons[0].estimate
    assert estimate is not None
    assert estimate.pairs + estimate.pairs_dropped >= 3


def test_shell_syntax_needs_the_shell(capsys: Capture, tmp_path: Path) -> None:
    piped = "echo x | grep x"
    completed = call(capsys, "bench", *commands(piped, FAST))
    assert completed.code == 2
    assert "contains '|', which only a shell understands" in completed.err
    assert "--shell" in completed.err
    options = ["--shell", "--launches", "2", "--run-dir", str(tmp_path / "run")]
    assert call(capsys, "bench", *commands(piped, FAST), *options).code in (0, 6)


def test_words_are_split_as_by_a_shell() -> None:
    assert command_of("env A='b c' python a.py", by_shell=False) == [
        "env",
        "A=b c",
        "python",
        "a.py",
    ]
    assert command_of("a | b", by_shell=True) == ["/bin/sh", "-c", "a | b"]
    assert command_of("grep 'a|b' '*'", by_shell=False) == ["grep", "a|b", "*"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (commands("true"), "one --command is given"),
        ([*commands("true", "'"), "--time", "1s"], '--command: "\'" cannot be split'),
        (commands("true", " "), "--command: the command is empty"),
        ([*commands("true", "true"), "--device", "cuda"], "--device cannot be combined"),
        ([*commands("true", "true"), "a.py"], "a.py cannot be combined with --command"),
        (["a.py", "--shell"], "--shell has no effect"),
        (["a.py", "--warmup", "3"], "--warmup has no effect"),
        (commands("true", "true", "true"), "a command is given more than twice"),
    ],
)
def test_invalid_options(capsys: Capture, arguments: list[str], error: str) -> None:
    completed = call(capsys, "bench", *arguments)
    assert completed.code == 2
    assert completed.err.startswith(f"error: {error}")
    assert "hint: " in completed.err


def test_the_plan(capsys: Capture) -> None:
    arguments = [*commands("python a.py", "python  b.py", "python a.py"), "--time", "5s"]
    study = study_of(capsys, *arguments, "--warmup", "2", "--margin", "2%")
    names = [one["name"] for one in (study["baseline"], *study["candidates"])]  # type: ignore[misc]
    assert names == ["python a.py", "python b.py", "python a.py-again"]
    shown = call(capsys, "bench", "--dry-run", *arguments)
    assert "  python b.py\n    shell=false+warmup=1\n" in shown.out


def test_no_torch_is_needed(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('must not be imported')")
    options = ["--launches", "2", "--run-dir", "run"]
    completed = program(
        "bench", *commands(FAST, FAST), *options, cwd=tmp_path, PYTHONPATH=str(tmp_path)
    )
    assert completed.code in (0, 6), completed.err


def test_a_row_is_repeated_with_the_settings_of_its_run(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("only-here").touch()
    first = tmp_path / "first"
    options = ["--launches", "2", "--margin", "7%", "--run-dir", str(first)]
    assert call(capsys, "bench", *commands("true", "sleep 0", "ls only-here"), *options).code in (
        0,
        6,
    )
    shown = json.loads(call(capsys, "report", str(first), "--json").out)["comparisons"]
    assert [row["repeat_command"] for row in shown] == [
        f"torchyard bench --row {first}:{number}" for number in (1, 2)
    ]
    assert (
        f"repeat a row: torchyard bench --row {first}:N" in call(capsys, "report", str(first)).out
    )
    monkeypatch.chdir(tmp_path)
    again = [*shown[1]["repeat_command"].split()[1:], "--run-dir", "again", "--launches", "3"]
    assert call(capsys, *again).code in (0, 6)
    old, new = read_run(first).study, read_run(tmp_path / "again").study
    assert new.candidates == old.candidates[1:]
    assert new.budget.margin == 0.07
    assert (old.budget.max_launches, new.budget.max_launches) == (2, 3)
    html = call(capsys, "report", str(first), "--format", "html").out
    assert f"<code>torchyard bench --row {first}:2</code>" in html
    shared = call(capsys, "report", str(first), "--format", "json", "--share").out
    assert str(tmp_path) not in shared


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--row", "1"], "--row: '1' is not a row of a run"),
        (["--row", "{}:x"], "--row: '{}:x' is not a row of a run"),
        (["--row", "{}:2"], "--row: the run run has no row 2"),
        (["--row", "{}:1", "--device", "cuda"], "--device cannot be combined with --row"),
        (["--row", "{}:1", "a.py"], "a.py cannot be combined with --row"),
    ],
)
def test_invalid_rows(capsys: Capture, tmp_path: Path, arguments: list[str], error: str) -> None:
    folder = tmp_path / "run"
    options = ["--launches", "1", "--warmup", "0", "--run-dir", str(folder), "--quiet"]
    assert call(capsys, "bench", *commands("true", "true"), *options).code in (0, 6)
    completed = call(capsys, "bench", *(word.format(folder) for word in arguments))
    assert completed.code == 2
    assert completed.err.startswith(f"error: {error.format(folder)}")
