"""Full, closed and broken streams, removed directories, and unusual variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "torchyard"]
LIMIT_S = 120
SPEAKING: tuple[tuple[str, ...], ...] = (
    ("--help",),
    ("--version",),
    ("bench", "--help"),
    ("workloads",),
    ("workloads", "--json"),
    ("explain", "undecided"),
    ("bench", "--only", "kernels/matmul", "--dry-run"),
    ("results", "list", "--json"),
    ("build", "openblas", "--plan"),
    ("completion", "bash"),
)


def run(
    words: tuple[str | bytes, ...],
    tmp_path: Path,
    *,
    redirect: str = "",
    without: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command line through a shell that changes its streams."""
    kept = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "COLUMNS", *without}}
    kept.pop("PYTHONIOENCODING", None)
    return subprocess.run(
        ["/bin/sh", "-c", f'"$@" {redirect}', "sh", *PROGRAM, *words],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**kept, "TORCHYARD_HOME": str(tmp_path / "yard"), **(variables or {})},
    )


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
@pytest.mark.parametrize("words", SPEAKING, ids=" ".join)
def test_an_output_that_cannot_be_written(
    tmp_path: Path, words: tuple[str, ...], redirect: str
) -> None:
    completed = run(words, tmp_path, redirect=redirect)
    assert completed.returncode == 4, completed
    assert b"cannot write to standard output" in completed.stderr
    assert b"hint: " in completed.stderr
    assert b"Traceback" not in completed.stderr
    assert b"Exception ignored" not in completed.stderr


@pytest.mark.parametrize("words", SPEAKING, ids=" ".join)
def test_a_closed_pipe(tmp_path: Path, words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    completed = subprocess.run(
        [*PROGRAM, *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "TORCHYARD_HOME": str(tmp_path)},
    )
    os.close(writing)
    assert (completed.returncode, completed.stderr) == (141, b"")


@pytest.mark.parametrize(
    "redirect",
    ["2>/dev/full", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full", "<&-"],
)
@pytest.mark.parametrize("json", [(), ("--json",)])
def test_an_error_that_cannot_be_printed(
    tmp_path: Path, redirect: str, json: tuple[str, ...]
) -> None:
    completed = run(("bench", "nowhere.toml", *json), tmp_path, redirect=redirect)
    assert completed.returncode == 2, completed


def test_files_never_get_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """What a library prints to a closed stdout would otherwise go into the next file."""
    code = (
        "import os\n"
        "from torchyard.cli.streams import make_streams_safe\n"
        "make_streams_safe()\n"
        f"file = open({str(tmp_path / 'file')!r}, 'w')\n"
        "assert file.fileno() > 2, file.fileno()\n"
        "os.write(1, b'x'); os.write(2, b'x')\n"
        "open('/dev/stdin').read()\n"
    )
    completed = subprocess.run(
        ["/bin/sh", "-c", '"$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code], check=False
    )
    assert completed.returncode == 0
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize(
    "words",
    [("workloads",), ("bench", "x.toml"), ("results", "list"), ("build", "./x.toml", "--plan")],
    ids=" ".join,
)
def test_a_working_directory_that_was_deleted(tmp_path: Path, words: tuple[str, ...]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    completed = subprocess.run(
        ["/bin/sh", "-c", f'cd {gone} && rmdir {gone} && exec "$@"', "sh", *PROGRAM, *words],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert completed.returncode == 4, completed
    assert b"working directory" in completed.stderr
    assert b"hint: change to another directory" in completed.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "ascii:strict", "LC_ALL": "C"},
        {"LC_ALL": "no_such_locale.XX"},
        {"COLUMNS": "0"},
        {"COLUMNS": "1"},
        {"COLUMNS": "20", "LINES": "2"},
        {"COLUMNS": "1000000000"},
        {"COLUMNS": "-5"},
        {"COLUMNS": "many"},
        {"TERM": ""},
        {"FORCE_COLOR": "1", "COLUMNS": "20"},
        {"TMPDIR": "/nowhere/at/all"},
        {"TMPDIR": "/proc"},
        {"HOME": "/nowhere"},
        {"HOME": ""},
        {"HOME": "/dev/null"},
        {"XDG_CACHE_HOME": "/dev/null/x"},
        {"TZ": "No/Where"},
        {"PYTHONWARNINGS": "error"},
    ],
    ids=str,
)
def test_strange_variables(tmp_path: Path, variables: dict[str, str]) -> None:
    for words in (("--help",), ("workloads",), ("bench", "--only", "kernels/matmul", "--dry-run")):
        completed = run(words, tmp_path, variables=variables)
        assert completed.returncode == 0, (
            words,
            completed.stderr.decode("ascii", "replace")[-1500:],
        )
        assert b"Traceback" not in completed.stderr
    completed = run(
        ("bench", "Gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n.toml"), tmp_path, variables=variables
    )
    assert completed.returncode == 2, completed
    assert b"hint: " in completed.stderr


def test_no_home_directory(tmp_path: Path) -> None:
    completed = run(("results", "list"), tmp_path, without=("HOME", "XDG_CACHE_HOME"))
    assert completed.returncode in {0, 3}, completed
    assert b"Traceback" not in completed.stderr


@pytest.mark.parametrize("word", [b"\xff\xfe", b"\xed\xa0\x80", b"a\x01b", b"~\xff/x"])
def test_undecodable_bytes(tmp_path: Path, word: bytes) -> None:
    for words in (("bench",), ("report",), ("build", "explain"), ("explain",), ("bench", "--only")):
        completed = run((*words, word), tmp_path)
        assert completed.returncode == 2, (words, completed)
        assert b"hint: " in completed.stderr
        assert b"Traceback" not in completed.stderr


@pytest.mark.parametrize("home", ["/dev/null/x", "/proc/x", "/nowhere\x01/x"])
def test_a_results_directory_that_cannot_be_created(tmp_path: Path, home: str) -> None:
    completed = run(("results", "list"), tmp_path, variables={"TORCHYARD_HOME": home})
    assert completed.returncode in {0, 2, 3, 4}, completed
    assert b"Traceback" not in completed.stderr
