"""Running a test file of the project in the target, until every test of it is accounted for.

pytest runs outside the source root, with a plugin of ours that writes a line per event. When the
interpreter dies, it is started again for the tests that are left.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Final

from torchyard.build.verify.accounting import RunLog, make_account, read_log
from torchyard.build.verify.smoke_check import say_ending
from torchyard.build.verify.target_python import (
    RunInTarget,
    SnippetOutcome,
    TargetPython,
    last_lines,
)
from torchyard.core.build_record import TestAccount
from torchyard.errors import MissingTool, UsageError
from torchyard.results.durable import write_failed

__all__ = ["run_test_file"]

_MODULE: Final = "torchyard_reporter"
# The module comes in before pytest changes sys.path for conftest files: so the installed one is
# tested even where the tests lie beside a folder of the same name. No addopts: a project's own may
# ask for plugins that the target lacks, or for several processes.
_PYTEST: Final = f"""
import importlib, json, sys
sys.dont_write_bytecode = True
plugin_folder, path, junit, import_name = sys.argv[1:5]
if import_name:
    importlib.import_module(import_name)
sys.path.insert(0, plugin_folder)
import pytest
from {_MODULE} import Reporter
with open(plugin_folder + "/reporter.json", encoding="utf-8") as file:
    reporter = Reporter(**json.load(file))
sys.exit(pytest.main([
    "-p", "no:cacheprovider", "-o", "addopts=", "-o", "faulthandler_timeout=0",
    "--junitxml=" + junit, "--", path,
], plugins=[reporter]))
"""


def run_test_file(
    path: str,
    known_failures: Sequence[str] = (),
    *,
    python: str,
    run: RunInTarget,
    results: Path,
    import_name: str = "",
    test_limit_s: float = 900.0,
    limit_s: float = 6 * 3600.0,
    restarts: int = 10,
) -> TestAccount:
    """Run the file and account for every test; logs and XML go to `results`, which the target sees.

    Raises MissingTool when the target has no pytest, UsageError when there is no such file.
    """
    if not Path(path).is_file():
        raise UsageError(
            f"there is no test file {path}",
            hint="correct verify.tests in the recipe, or the option",
        )
    desk = _Desk(results, Path(path).name)
    target = TargetPython(
        python=python, run=run, folder=str(desk.work), variables={"PYTEST_ADDOPTS": ""}
    )
    _require_pytest(target)
    started = time.monotonic()
    logs: list[RunLog] = []
    crashes: list[tuple[str, str]] = []
    done: set[str] = set()
    timed_out = False
    for start in range(1 + restarts):
        left_s = limit_s - (time.monotonic() - started)
        if left_s <= 0:
            timed_out = True
            break
        desk.configure(start, done, test_limit_s=test_limit_s, limit_s=left_s)
        arguments = (str(desk.plugin), path, str(desk.junit(start)), import_name)
        outcome = target.snippet(_PYTEST, limit_s=left_s + 120.0, arguments=arguments)
        desk.keep(outcome)
        log = read_log(desk.read_lines(start))
        logs.append(log)
        timed_out = log.out_of_time
        if log.ended and outcome.returncode >= 0 and outcome.returncode < 128:  # noqa: PLR2004
            break
        crashes.append((log.running, _how(outcome, log, desk.stack(start), test_limit_s)))
        done |= set(log.outcomes) | {log.running}
        if log.ended or not log.running or not set(log.collected) - done:
            break
    account = make_account(
        path, logs, known_failures=known_failures, crashes=crashes, timed_out=timed_out
    )
    return replace(
        account, duration_s=time.monotonic() - started, junit=desk.junits(), log=str(desk.log)
    )


def _require_pytest(target: TargetPython) -> None:
    code = (
        "import importlib.util\nanswer({'there': importlib.util.find_spec('pytest') is not None})"
    )
    outcome = target.ask(code)
    if outcome.answer is None or not outcome.answer["there"]:
        raise MissingTool(
            f"the target {target.python} has no pytest",
            why=outcome.tail() if outcome.answer is None else "the project's tests run with it",
            hint=f"{target.python} -m pip install pytest",
        )


def _how(outcome: SnippetOutcome, log: RunLog, stack: str, test_limit_s: float) -> str:
    if stack.startswith("Timeout ("):
        return f"the limit of {test_limit_s:g} s for one test" if log.running else "a limit of time"
    if not log.collected and not log.ended:
        return f"pytest did not start: {last_lines(outcome.stderr or outcome.stdout, 1)}"
    return say_ending(outcome.returncode)


class _Desk:
    """The files of one test run; those of an earlier run of the same file are removed."""

    def __init__(self, results: Path, name: str) -> None:
        self._files = results / f"{name}.files"
        self.log = results / f"{name}.log"
        self.work = self._files / "work"
        self.plugin = self._files / "plugin"
        try:
            shutil.rmtree(self._files, ignore_errors=True)
            self.work.mkdir(parents=True)
            self.plugin.mkdir()
            text = resources.files(__package__).joinpath("reporter_plugin.py").read_text("utf-8")
            (self.plugin / f"{_MODULE}.py").write_text(text, encoding="utf-8")
            self.log.write_text("", encoding="utf-8")
        except OSError as error:
            raise write_failed(self.log, error, kept="the build") from error

    def configure(self, start: int, done: set[str], *, test_limit_s: float, limit_s: float) -> None:
        """What the plugin reads at the next start."""
        config = {
            "lines": str(self._lines(start)),
            "stacks": str(self._stacks(start)),
            "done": sorted(done),
            "test_limit_s": test_limit_s,
            "limit_s": limit_s,
        }
        (self.plugin / "reporter.json").write_text(json.dumps(config), encoding="utf-8")

    def keep(self, outcome: SnippetOutcome) -> None:
        """Put what pytest said at the end of the log."""
        with self.log.open("a", encoding="utf-8", errors="replace") as file:
            file.write(outcome.stdout + outcome.stderr)

    def read_lines(self, start: int) -> list[str]:
        """What the plugin wrote."""
        return _read(self._lines(start)).splitlines()

    def stack(self, start: int) -> str:
        """What the watchdog wrote."""
        return _read(self._stacks(start))

    def junit(self, start: int) -> Path:
        """The XML of one start."""
        return self._files / f"junit-{start + 1}.xml"

    def junits(self) -> tuple[str, ...]:
        """The XML files there are."""
        return tuple(str(path) for path in sorted(self._files.glob("junit-*.xml")))

    def _lines(self, start: int) -> Path:
        return self._files / f"lines-{start + 1}.jsonl"

    def _stacks(self, start: int) -> Path:
        return self._files / f"stacks-{start + 1}.txt"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
