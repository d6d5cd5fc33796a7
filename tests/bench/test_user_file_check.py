"""User files are checked before a run: readable, parseable, and with the requested name."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from tests.cli.command_line import program
from torchyard.bench.study_assembly import check_user_file
from torchyard.errors import UsageError

SOURCE = """
import torch.nn as nn
from elsewhere import Imported
class Net: ...
async def background(): ...
make = lambda: None
first, (second, *rest) = 1, (2, 3)
annotated: int = 1
try:
    import fast
except ImportError as failure:
    def fallback(inner): local = 1
with open(__file__) as opened:
    if (walrus := 1):
        for index in range(3): pass
def later():
    global late
    late = 1
"""


def check(path: Path, name: str = "", *, same_python: bool = True) -> None:
    check_user_file(path, name, where="--only", same_python=same_python)


def error_of(path: Path, name: str = "") -> UsageError:
    with pytest.raises(UsageError) as caught:
        check(path, name)
    assert caught.value.what.startswith(f"--only: {path} ")
    return caught.value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mine.py"


@pytest.mark.parametrize(
    "name",
    [
        "Net",
        "background",
        "make",
        "second",
        "rest",
        "annotated",
        "fast",
        "fallback",
        "opened",
        "walrus",
        "index",
        "late",
        "later",
        "nn",
        "Imported",
    ],
)
def test_every_name_bound_at_module_level_is_accepted(path: Path, name: str) -> None:
    path.write_text(SOURCE)
    check(path, name)
    check(path)


@pytest.mark.parametrize("name", ["inner", "local", "torch", "elsewhere", "missing", "print"])
def test_other_names_are_rejected(path: Path, name: str) -> None:
    path.write_text(SOURCE)
    assert error_of(path, name).what.endswith(f"has no function or class {name!r}")


@pytest.mark.parametrize(
    ("source", "name", "hint"),
    [
        ("class Net: ...\ndef make(): ...\n", "Nte", "did you mean 'Net'?"),
        ("import x\nclass Net: ...\ndef _hidden(): ...\ndef make(): ...\n", "zzz", "make"),
        ("from models import Net\n", "Nte", "did you mean 'Net'?"),
        ("", "Net", "valid names: none"),
    ],
)
def test_the_hint_names_what_there_is(path: Path, source: str, name: str, hint: str) -> None:
    path.write_text(source)
    error = error_of(path, name)
    assert hint in error.hint
    assert "_hidden" not in error.hint
    assert "x" not in error.hint


@pytest.mark.parametrize(
    "source",
    [
        "from models import *\n",
        "globals()['Net'] = 1\n",
        "exec('class Net: ...')\n",
        "import sys\nsetattr(sys.modules[__name__], 'Net', 1)\n",
        "def __getattr__(name): return print\n",
    ],
)
def test_dynamic_names_are_left_to_the_worker(path: Path, source: str) -> None:
    path.write_text(source)
    check(path, "Net")


@pytest.mark.parametrize(
    ("source", "line", "why"),
    [
        (b"x = 1\ndef f(:\n", 2, "invalid syntax"),
        (b"return 3\n", 1, "'return' outside function"),
        (b"# coding: latin-1\nx = '\xe9'\ny y\n", 3, "invalid syntax"),
    ],
)
def test_a_syntax_error_has_its_line(path: Path, source: bytes, line: int, why: str) -> None:
    path.write_bytes(source)
    error = error_of(path)
    assert error.what.endswith(f"has a syntax error in line {line}")
    assert why in error.why


def test_null_bytes_are_reported(path: Path) -> None:
    path.write_bytes(b"x = 1\0\n")
    assert "null bytes" in error_of(path).why


def test_syntax_that_another_python_may_accept_is_left_to_the_worker(path: Path) -> None:
    path.write_text("x = )\n")
    check(path, "Net", same_python=False)


def test_a_warning_of_the_compiler_is_not_shown(path: Path) -> None:
    path.write_text("pattern = '\\d'\nx = 1 is 1\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(path)


def test_too_deep_nesting_is_left_to_the_worker(path: Path) -> None:
    path.write_text("x = " + "-" * 50_000 + "1\n")
    check(path, "Net")


def test_an_unreadable_file_is_reported(path: Path) -> None:
    path.mkdir()
    assert error_of(path).what.endswith("cannot be read")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["mine.py:Nte"], "did you mean 'Net'?"),
        (["--only", "mine.py:Nte"], "--only: "),
        (["broken.py"], "has a syntax error in line 1"),
        (["missing.py"], "no such file"),
        (["mine.py", "--candidate", "mine.py:Nte"], "the variant 'mine.py:Nte': "),
    ],
)
def test_bench_reports_it_before_a_run_folder_exists(
    tmp_path: Path, arguments: list[str], text: str
) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')\nclass Net: ...\n")
    (tmp_path / "broken.py").write_text("x = )\n")
    home = tmp_path / "home"
    ended = program("bench", *arguments, cwd=tmp_path, TORCHYARD_HOME=str(home))
    assert ended.code == 2, ended.err
    assert text in ended.err
    assert "imported" not in ended.err
    assert not home.exists()


def test_a_file_for_another_python_is_only_checked_for_names(tmp_path: Path) -> None:
    (tmp_path / "newer.py").write_text("x = )\n")
    (tmp_path / "python").symlink_to(sys.executable)
    target = f"new={tmp_path / 'python'}"
    ended = program("bench", "newer.py", "--target", target, "--dry-run", cwd=tmp_path)
    assert ended.code == 0, ended.err
