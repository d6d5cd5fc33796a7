"""Run smoke tests of the recipe and test files of the project, and account for every test.

A smoke test is a few lines in a process of its own with a time limit. For test files pytest runs
outside the source root with `reporter_plugin`, which writes a line per event; when the interpreter
dies, it is started again for the remaining tests.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

from torchyard.builds.record import CheckFinding, CheckResult, SmokeResult, TestFileReport
from torchyard.builds.verify.target_python import (
    RunInTarget,
    SnippetOutcome,
    Subject,
    TargetPython,
    has_device,
    last_lines,
)
from torchyard.errors import MissingTool, UsageError
from torchyard.files.safe_writing import write_error

Outcome = Literal["passed", "skipped", "expected", "error", "failed"]
_ORDER: tuple[Outcome, ...] = ("passed", "skipped", "expected", "error", "failed")


@dataclass(kw_only=True)
class RunLog:
    """Events of one start of the interpreter."""

    collected: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    collect_errors: dict[str, str] = field(default_factory=dict)
    running: str = ""
    """The test that was started and did not finish."""
    ended: bool = False
    """Whether pytest finished."""
    out_of_time: bool = False


def read_log(lines: Iterable[str]) -> RunLog:
    """Parse the lines of the plugin; a line truncated by a crash is skipped."""
    log = RunLog()
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        _add(log, line)
    return log


def _add(log: RunLog, line: dict[str, Any]) -> None:
    event = line.get("event")
    if event == "collected":
        log.collected = [str(name) for name in line["ids"]]
    elif event == "collect-error":
        log.collect_errors[str(line["id"])] = str(line["text"])
    elif event == "start":
        log.running = str(line["id"])
    elif event == "finish":
        log.running = ""
    elif event == "report":
        name, outcome = str(line["id"]), _outcome(line)
        before = log.outcomes.get(name, "passed")
        log.outcomes[name] = max(before, outcome, key=_ORDER.index)
    elif event == "limit":
        log.out_of_time = True
    elif event == "end":
        log.ended = True


def _outcome(line: dict[str, Any]) -> Outcome:
    if line["outcome"] == "failed":
        return "failed" if line["when"] == "call" else "error"
    if line["outcome"] == "skipped":
        return "expected" if line["expected"] else "skipped"
    return "passed"


def names_test(known: str, test: str) -> bool:
    """Return whether the name of a known failure refers to a test.

    Names may have the form of unittest, `TestNN.test_x`, or of pytest,
    `test/test_nn.py::TestNN::test_x`; a name without `[...]` means all parameters of the test.
    """
    known_name, known_bracket, known_parameters = known.strip().partition("[")
    test_name, test_bracket, test_parameters = test.partition("[")
    if known_bracket and (known_bracket, known_parameters) != (test_bracket, test_parameters):
        return False
    names = known_name.split("::") if "::" in known_name else known_name.split(".")
    parts = test_name.split("::")
    if len(names) > len(parts) or names[1:] != parts[len(parts) - len(names) + 1 :]:
        return False
    first = parts[len(parts) - len(names)]
    # The first part may be a file, given with fewer folders.
    return first == names[0] or first.endswith(f"/{names[0]}") or names[0].endswith(f"/{first}")


def make_account(
    path: str,
    logs: Sequence[RunLog],
    *,
    known_failures: Sequence[str],
    crashes: Sequence[tuple[str, str]],
    timed_out: bool,
) -> TestFileReport:
    """Combine the logs of all starts; `crashes` are (test or empty, reason)."""
    collected = list(dict.fromkeys(name for log in logs for name in log.collected))
    outcomes: dict[str, Outcome] = {}
    for log in logs:
        outcomes |= log.outcomes
    for name, _ in crashes:
        if name:
            outcomes[name] = "failed"
    # A collection error repeats at every start; it belongs to a module, not a test.
    broken = {name: text for log in logs for name, text in log.collect_errors.items()}
    bad = [name for name, outcome in outcomes.items() if outcome in ("failed", "error")]

    def known(name: str) -> bool:
        return any(names_test(item, name) for item in known_failures)

    new = [name for name in bad if not known(name)]
    new += [f"{name or path} (not collected: {text})" for name, text in broken.items()]
    new += [f"{path} ({how} outside any test)" for name, how in crashes if not name]
    counts = {kind: list(outcomes.values()).count(kind) for kind in _ORDER}
    return TestFileReport(
        path=path,
        passed=counts["passed"],
        failed=counts["failed"],
        errors=counts["error"] + len(broken),
        skipped=counts["skipped"],
        expected_failures=counts["expected"],
        not_run=sum(1 for name in collected if name not in outcomes),
        new_failures=tuple(new),
        known_failures=tuple(name for name in bad if known(name)),
        now_passing=tuple(
            name for name, outcome in outcomes.items() if outcome == "passed" and known(name)
        ),
        unseen=tuple(
            item for item in known_failures if not any(names_test(item, name) for name in collected)
        ),
        crashed_in=tuple(name for name, _ in crashes if name),
        crashes=tuple(how for _, how in crashes),
        timed_out=timed_out,
    )


def check_smoke(subject: Subject) -> CheckResult:
    """Run the smoke tests of the recipe, unless the module cannot be imported."""
    tests = subject.component.recipe.verify.smoke
    if subject.target is None or not tests:
        return CheckResult()
    if subject.module is not None and not subject.module.file:
        return CheckResult()
    results: list[SmokeResult] = []
    findings: list[CheckFinding] = []
    for test in tests:
        if test.device and not has_device(test.device, subject.device_folder):
            why = f"this machine has no {test.device} device"
            results.append(SmokeResult(name=test.name, passed=False, duration_s=0.0, skipped=why))
            continue
        outcome = subject.target.snippet(test.python, limit_s=subject.smoke_limit_s)
        results.append(
            SmokeResult(
                name=test.name,
                passed=outcome.good,
                duration_s=outcome.duration_s,
                output="" if outcome.good else outcome.tail(),
            )
        )
        if not outcome.good:
            findings.append(
                CheckFinding(
                    check="smoke",
                    level="failure",
                    what=f"smoke test {test.name!r} {_ending(outcome, subject.smoke_limit_s)}",
                    why=outcome.tail(),
                    fix="activate the build and run the code of verify.smoke in the recipe by hand",
                )
            )
    return CheckResult(findings=tuple(findings), smoke=tuple(results))


def exit_text(returncode: int) -> str:
    """Return `signal NAME` or `exit code N`."""
    number = -returncode if returncode < 0 else returncode - 128
    # A shell or a sandbox reports a signal as 128 plus its number.
    if returncode < 0 or 0 < number < 65:  # noqa: PLR2004
        try:
            return f"signal {signal.Signals(number).name}"
        except ValueError:
            return f"signal {number}"
    return f"exit code {returncode}"


def _ending(outcome: SnippetOutcome, limit_s: float) -> str:
    if outcome.timed_out:
        return f"timed out after {limit_s:g} s"
    return f"failed ({exit_text(outcome.returncode)})"


_MODULE: Final = "torchyard_reporter"
# The module is imported before pytest changes sys.path for conftest files, so that the installed one
# is tested even if there is a folder of the same name next to the tests. No addopts: those of a
# project may require plugins that the target lacks, or several processes.
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
) -> TestFileReport:
    """Run a test file and account for every test; logs and XML go to `results`.

    `results` must be visible in the target. Raises MissingTool if the target has no pytest,
    UsageError if the file does not exist.
    """
    if not Path(path).is_file():
        raise UsageError(
            f"there is no test file {path}",
            hint="correct verify.tests in the recipe, or the option",
        )
    files = _TestRunFiles(results, Path(path).name)
    target = TargetPython(
        python=python, run=run, folder=str(files.work), variables={"PYTEST_ADDOPTS": ""}
    )
    _require_pytest(target)
    started = time.monotonic()
    logs: list[RunLog] = []
    crashes: list[tuple[str, str]] = []
    done: set[str] = set()
    timed_out = False
    for start in range(1 + restarts):
        remaining_s = limit_s - (time.monotonic() - started)
        if remaining_s <= 0:
            timed_out = True
            break
        files.configure(start, done, test_limit_s=test_limit_s, limit_s=remaining_s)
        arguments = (str(files.plugin), path, str(files.junit(start)), import_name)
        outcome = target.snippet(_PYTEST, limit_s=remaining_s + 120.0, arguments=arguments)
        files.keep(outcome)
        log = read_log(files.read_lines(start))
        logs.append(log)
        timed_out = log.out_of_time
        if log.ended and outcome.returncode >= 0 and outcome.returncode < 128:  # noqa: PLR2004
            break
        crashes.append((log.running, _crash_reason(outcome, log, files.stack(start), test_limit_s)))
        done |= set(log.outcomes) | {log.running}
        if log.ended or not log.running or not set(log.collected) - done:
            break
    account = make_account(
        path, logs, known_failures=known_failures, crashes=crashes, timed_out=timed_out
    )
    return replace(
        account, duration_s=time.monotonic() - started, junit=files.junits(), log=str(files.log)
    )


def _require_pytest(target: TargetPython) -> None:
    code = (
        "import importlib.util\nanswer({'there': importlib.util.find_spec('pytest') is not None})"
    )
    outcome = target.query(code)
    if outcome.answer is None or not outcome.answer["there"]:
        raise MissingTool(
            f"the target {target.python} has no pytest",
            why=outcome.tail() if outcome.answer is None else "the tests of the project need it",
            hint=f"{target.python} -m pip install pytest",
        )


def _crash_reason(outcome: SnippetOutcome, log: RunLog, stack: str, test_limit_s: float) -> str:
    if stack.startswith("Timeout ("):
        return f"test timed out after {test_limit_s:g} s" if log.running else "timeout"
    if not log.collected and not log.ended:
        return f"pytest did not start: {last_lines(outcome.stderr or outcome.stdout, 1)}"
    return exit_text(outcome.returncode)


class _TestRunFiles:
    """The files of one test run; those of an earlier run are removed."""

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
            raise write_error(self.log, error, kept="the build") from error

    def configure(self, start: int, done: set[str], *, test_limit_s: float, limit_s: float) -> None:
        """Write the configuration of the plugin for the next start."""
        config = {
            "lines": str(self._lines(start)),
            "stacks": str(self._stacks(start)),
            "done": sorted(done),
            "test_limit_s": test_limit_s,
            "limit_s": limit_s,
        }
        (self.plugin / "reporter.json").write_text(json.dumps(config), encoding="utf-8")

    def keep(self, outcome: SnippetOutcome) -> None:
        """Append the output of pytest to the log."""
        with self.log.open("a", encoding="utf-8", errors="replace") as file:
            file.write(outcome.stdout + outcome.stderr)

    def read_lines(self, start: int) -> list[str]:
        """Return the lines of the plugin."""
        return _read(self._lines(start)).splitlines()

    def stack(self, start: int) -> str:
        """Return the stack dump of the watchdog."""
        return _read(self._stacks(start))

    def junit(self, start: int) -> Path:
        """Return the path of the XML file of one start."""
        return self._files / f"junit-{start + 1}.xml"

    def junits(self) -> tuple[str, ...]:
        """Return the paths of all XML files."""
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
