"""Accounting of a project's own tests, with interpreters that crash."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.builds.verify.sample_components import make_venv, run_here
from torchyard.builds.record import TestFileReport
from torchyard.builds.verify.project_tests import run_test_file
from torchyard.errors import MissingTool, UsageError

SEEN = """
    import os, time, unittest
    import pytest

    class TestNN(unittest.TestCase):
        def test_good(self): pass
        def test_known(self): self.fail("as ever")
        def test_fixed(self): pass
        def test_new(self): self.assertEqual(1, 2)
        @unittest.skip("no device")
        def test_skipped(self): pass
        @unittest.expectedFailure
        def test_expected(self): self.fail()

    @pytest.mark.parametrize("size", [1, 2.5])
    def test_sizes(size): assert size == 1

    @pytest.fixture
    def broken(): raise RuntimeError("no fixture")

    def test_setup(broken): pass
"""


def run_bare(argv: Sequence[str], variables: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Without the plugins of this environment: each start of pytest is a second shorter."""
    return run_here(argv, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **variables})


def account(tmp_path: Path, code: str, *known: str, **options: Any) -> TestFileReport:
    folder = tmp_path / "project/test"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "test_nn.py"
    path.write_text(textwrap.dedent(code))
    return run_test_file(
        str(path),
        known,
        python=options.pop("python", sys.executable),
        run=run_bare,
        results=tmp_path / "results",
        **options,
    )


def names(tests: tuple[str, ...]) -> list[str]:
    return [test.partition("::")[2] for test in tests]


def test_every_outcome_is_counted(tmp_path: Path) -> None:
    found = account(
        tmp_path, SEEN, "TestNN.test_known", "test_nn.py::TestNN::test_fixed", "TestNN.test_gone"
    )
    assert (found.passed, found.failed, found.errors) == (3, 3, 1)
    assert (found.skipped, found.expected_failures, found.not_run) == (1, 1, 0)
    assert names(found.known_failures) == ["TestNN::test_known"]
    assert names(found.now_passing) == ["TestNN::test_fixed"]
    assert names(found.new_failures) == ["TestNN::test_new", "test_sizes[2.5]", "test_setup"]
    assert found.unseen == ("TestNN.test_gone",)
    assert found.crashed_in == ()
    assert not found.good
    root = ET.parse(found.junit[0]).getroot()  # noqa: S314 - our own file
    assert len(root.findall(".//testcase")) == 9
    assert "as ever" in Path(found.log).read_text()


def test_only_known_failures_is_a_success(tmp_path: Path) -> None:
    found = account(
        tmp_path, SEEN, "TestNN.test_known", "TestNN.test_new", "test_sizes[2.5]", "test_setup"
    )
    assert found.good
    assert found.failed == 3


def test_a_crash_is_attributed_to_its_test_and_the_rest_still_runs(tmp_path: Path) -> None:
    code = """
        import os
        def test_first(): pass
        def test_abort(): os.abort()
        def test_middle(): pass
        def test_segfault(): os.kill(os.getpid(), 11)
        def test_exit(): os._exit(3)
        def test_last(): assert False
    """
    found = account(tmp_path, code, "test_segfault")
    assert names(found.crashed_in) == ["test_abort", "test_segfault", "test_exit"]
    assert found.crashes == ("signal SIGABRT", "signal SIGSEGV", "exit code 3")
    assert (found.passed, found.failed, found.not_run) == (2, 4, 0)
    assert names(found.new_failures) == ["test_abort", "test_exit", "test_last"]
    assert names(found.known_failures) == ["test_segfault"]
    assert len(found.junit) == 1, "only the last start came to its end"


def test_too_many_crashes_leave_tests_that_never_ran(tmp_path: Path) -> None:
    code = """
        import os, pytest
        @pytest.mark.parametrize("n", range(5))
        def test_abort(n): os.abort()
        def test_last(): pass
    """
    found = account(tmp_path, code, "test_abort", restarts=1)
    assert len(found.crashed_in) == 2
    assert found.not_run == 4
    assert not found.good, "what never ran is not good, even when the crash is known"


def test_a_hanging_test_is_ended_and_the_rest_still_runs(tmp_path: Path) -> None:
    code = """
        import time
        def test_hangs(): time.sleep(60)
        def test_last(): pass
    """
    found = account(tmp_path, code, test_limit_s=1.0)
    assert names(found.crashed_in) == ["test_hangs"]
    assert found.crashes == ("test timed out after 1 s",)
    assert found.passed == 1
    assert not found.timed_out
    stacks = (tmp_path / "results/test_nn.py.files/stacks-1.txt").read_text()
    assert "in test_hangs" in stacks


def test_the_limit_of_the_whole_file(tmp_path: Path) -> None:
    code = """
        import time
        def test_slow(): time.sleep(60)
        def test_never(): pass
    """
    found = account(tmp_path, code, limit_s=1.2)
    assert found.timed_out or found.crashes
    assert not found.good
    assert found.not_run == 1


def test_a_module_that_does_not_import(tmp_path: Path) -> None:
    found = account(tmp_path, "import expecttest_that_is_not_here\n")
    assert found.errors == 1
    (name,) = found.new_failures
    assert "No module named 'expecttest_that_is_not_here'" in name
    assert not found.good


def test_a_crash_while_collecting(tmp_path: Path) -> None:
    found = account(tmp_path, "import os\nos.abort()\n")
    assert found.crashes
    assert not found.good
    assert "outside any test" in found.new_failures[0]


def test_a_crash_behind_the_last_test(tmp_path: Path) -> None:
    code = "import atexit, os\natexit.register(os.abort)\ndef test_good(): pass\n"
    found = account(tmp_path, code)
    assert found.passed == 1
    assert found.crashes == ("signal SIGABRT",)
    assert not found.good


def test_the_installed_module_is_tested_not_the_tree(tmp_path: Path) -> None:
    """A conftest.py in the source root puts that root on sys.path."""
    python, site = make_venv(tmp_path / "env")
    (site / "yard.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages"))
    )
    (site / "part.py").write_text("where = 'installed'\n")
    root = tmp_path / "project"
    root.mkdir()
    (root / "part.py").write_text("where = 'tree'\n")
    (root / "conftest.py").write_text("")
    code = "import part\ndef test_where(): assert part.where == 'installed'\n"
    assert account(tmp_path, code, python=python, import_name="part").good
    assert not account(tmp_path, code, python=python).good, "the trap is real"
    assert not list(root.rglob("__pycache__")), "the tree is left alone"
    assert not list(root.rglob(".pytest_cache"))


def test_the_project_s_own_pytest_options_are_harmless(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    ini = "[pytest]\naddopts = --no-such-option -n 8\nmarkers =\n  heavy: takes long\n"
    (tmp_path / "project/pytest.ini").write_text(ini)
    code = "import pytest\n@pytest.mark.heavy\ndef test_good(): pass\n"
    assert account(tmp_path, code).good


def test_no_pytest_in_the_target(tmp_path: Path) -> None:
    python, _ = make_venv(tmp_path / "env")
    with pytest.raises(MissingTool) as caught:
        account(tmp_path, "def test_good(): pass", python=python)
    assert caught.value.hint == f"{python} -m pip install pytest"


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no test file"):
        run_test_file(str(tmp_path / "x.py"), python=sys.executable, run=run_here, results=tmp_path)


def test_a_second_run_starts_again(tmp_path: Path) -> None:
    assert not account(tmp_path, "def test_x(): assert False").good
    found = account(tmp_path, "def test_x(): pass")
    assert found.good
    assert found.failed == 0
