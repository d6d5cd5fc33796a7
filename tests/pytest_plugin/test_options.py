"""Options, marker and fixture of the plugin in real pytest processes, without torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytest_plugin.pytest_process import run_pytest
from torchyard.errors import UsageError
from torchyard.pytest_plugin.session import read_retries

TESTS = """
import pytest

@pytest.mark.torchyard(limit="5%")
def test_marked():
    raise AssertionError("it ran")

def test_fixture(torchyard_compare):
    raise AssertionError("it ran")

def test_plain():
    pass
"""


def test_skip_leaves_out_tests_that_compare(tmp_path: Path) -> None:
    session = run_pytest(
        tmp_path, "-rs", "--strict-markers", "--torchyard-skip", files={"test_it.py": TESTS}
    )
    assert session.code == 0, session.output
    assert "1 passed, 2 skipped" in session.output
    assert "--torchyard-skip" in session.output


LOADED = """
import sys

def pytest_unconfigure(config):
    names = ("torchyard", "torch", "numpy", "click", "msgspec", "rich", "tempfile")
    print("LOADED", sorted(n for n in sys.modules if n.partition(".")[0] in names))
"""


def test_a_session_without_comparisons_imports_only_the_plugin(tmp_path: Path) -> None:
    # An interpreter without torch: a module of that name that cannot be imported.
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "torch.py").write_text("raise ImportError('no torch')")
    files = {"test_it.py": "def test_plain():\n    pass\n", "conftest.py": LOADED}
    session = run_pytest(tmp_path, "-q", "-s", files=files)
    assert session.code == 0, session.output
    loaded = session.output.partition("LOADED ")[2].splitlines()[0]
    names = [name for name in json.loads(loaded.replace("'", '"')) if name != "tempfile"]
    assert names == ["torchyard", "torchyard.pytest_plugin"]
    assert "= torchyard =" not in session.output


def test_invalid_options_end_the_session_with_a_hint(tmp_path: Path) -> None:
    for option, text in {
        "--torchyard-compare=main": "there is no baseline 'main'",
        "--torchyard-save=a/b": "'a/b' is not a valid name of a baseline",
        "--torchyard-time=soon": "'soon' is not a duration",
    }.items():
        session = run_pytest(tmp_path, option, files={"test_it.py": TESTS})
        assert session.code == 4, session.output
        assert f"{option.partition('=')[0]}: {text}" in session.output
        assert "hint: " in session.output
        assert "Traceback" not in session.output


@pytest.mark.parametrize("value", ["-1", "7", "x", 1.5, True])
def test_retries_are_a_small_number(value: object) -> None:
    with pytest.raises(UsageError, match=r"retries is .*, not a number from 0 to 6"):
        read_retries(value)
    assert read_retries("6") == 6


def test_an_unknown_argument_of_the_marker_fails_the_test(tmp_path: Path) -> None:
    text = """
import pytest

@pytest.mark.torchyard(limits="5%")
def test_it(torchyard_compare):
    pass
"""
    session = run_pytest(tmp_path, "--torchyard-save=main", files={"test_it.py": text})
    assert session.code == 1
    assert "the marker torchyard has no argument limits" in session.output
    assert "not saved as the baseline main" in session.output


TIMED = """
import json, os, time
import pytest

def record(name):
    began = time.monotonic()
    time.sleep(0.3)
    line = json.dumps([name, os.environ["PYTEST_XDIST_WORKER"], began, time.monotonic()])
    with open("times.jsonl", "a") as file:
        file.write(line + "\\n")

@pytest.mark.parametrize("number", range(6))
def test_plain(number):
    record("plain")

@pytest.mark.parametrize("number", range(4))
def test_compared(torchyard_compare, number):
    record("compared")
"""


def test_workers_of_xdist_run_nothing_while_one_compares(tmp_path: Path) -> None:
    session = run_pytest(tmp_path, "-q", "-n2", files={"test_it.py": TIMED})
    assert session.code == 0, session.output
    times = [json.loads(line) for line in (tmp_path / "times.jsonl").read_text().splitlines()]
    assert len(times) == 10
    assert {worker for _, worker, _, _ in times} == {"gw0", "gw1"}
    for name, _, began, ended in times:
        if name == "compared":
            beside = [one for one in times if one[2] < ended and one[3] > began]
            assert len(beside) == 1, beside


def test_settings_of_the_project_apply_to_every_test(tmp_path: Path) -> None:
    text = """
import pytest

@pytest.mark.torchyard(time="1s")
def test_it(request, torchyard_compare):
    from torchyard.pytest_plugin.session import settings_of
    assert settings_of(request.node) == {"limit": "7%", "time": "1s"}
"""
    settings = "[tool.torchyard.pytest]\nlimit = '7%'\ntime = '30s'\n"
    session = run_pytest(tmp_path, files={"test_it.py": text, "pyproject.toml": settings})
    assert session.code == 0, session.output
    wrong = run_pytest(tmp_path, files={"pyproject.toml": settings.replace("limit", "limits")})
    assert wrong.code == 1
    assert "unknown key tool.torchyard.pytest.limits" in wrong.output
