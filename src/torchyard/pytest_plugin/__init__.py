"""Plugin for pytest: tests that compare two callables, with a limit on the slowdown.

    @pytest.mark.torchyard(limit="5%")
    def test_fused_is_not_slower(torchyard_compare):
        torchyard_compare(reference, fused, inputs=(x,))

pytest loads this module in every session of an environment that has Torchyard: it imports nothing else
before a test needs it. With pytest-xdist, tests are timed one at a time (`timing_lock`), and the
controller collects the results from the reports of tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from torchyard.api.result import Comparison
    from torchyard.pytest_plugin.session import ComparisonLine

__all__ = ["torchyard_compare"]

_FIXTURE = "torchyard_compare"
_MARKER = "torchyard"
_LINES = pytest.StashKey["list[ComparisonLine]"]()
"""Of a test: its comparisons. Of a session: those of all tests."""
_SAVED = pytest.StashKey[str]()
_LOCK_FOLDER = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("torchyard", "comparisons with Torchyard")
    group.addoption(
        "--torchyard-time",
        metavar="DURATION",
        help="Measuring time of each comparison, such as 20s; overrides markers and arguments.",
    )
    group.addoption(
        "--torchyard-retries",
        metavar="N",
        help="Measure up to N times again, each time twice as long, if noise left no usable result; "
        "overrides markers.",
    )
    group.addoption(
        "--torchyard-skip", action="store_true", help="Skip tests that compare with Torchyard."
    )
    group.addoption(
        "--torchyard-save",
        metavar="NAME",
        help="Save the comparisons of this session as the baseline NAME; an existing one is replaced.",
    )
    group.addoption(
        "--torchyard-compare",
        metavar="NAME",
        help="Compare each comparison with the baseline NAME; fail if the slowdown exceeds the limit.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the options."""
    config.addinivalue_line(
        "markers",
        "torchyard(limit, time, retries): fail if the candidate of a comparison is slower than the "
        "baseline by more than the limit, such as '5%'; measure for this time, such as '20s'; measure "
        "again up to this often after noise",
    )
    config.stash[_LINES] = []
    config.pluginmanager.register(_Collector(config.stash[_LINES]))
    if any(
        config.getoption(f"torchyard_{name}") for name in ("time", "retries", "save", "compare")
    ):
        from torchyard.pytest_plugin.session import check_options

        check_options(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that compare, if requested."""
    if config.getoption("torchyard_skip"):
        skip = pytest.mark.skip(reason="--torchyard-skip")
        for item in items:
            if _compares(item):
                item.add_marker(skip)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make tests of other workers of pytest-xdist wait while one compares."""
    folder = getattr(session.config, "workerinput", {}).get("torchyard_locks")
    if folder is not None and any(_compares(item) for item in session.items):
        from torchyard.pytest_plugin.timing_lock import TimingLock

        session.config.pluginmanager.register(TimingLock(folder, needs_machine=_compares))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each worker of pytest-xdist the folder of the locks."""
    import tempfile

    stash = node.config.stash
    if _LOCK_FOLDER not in stash:
        stash[_LOCK_FOLDER] = tempfile.mkdtemp(prefix="torchyard-pytest-")
    node.workerinput["torchyard_locks"] = stash[_LOCK_FOLDER]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Delete the folder of the locks."""
    if _LOCK_FOLDER in config.stash:
        import shutil

        shutil.rmtree(config.stash[_LOCK_FOLDER], ignore_errors=True)


@pytest.fixture
def torchyard_compare(request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """Compare two callables, as `torchyard.compare` with the same arguments.

    The test fails if results are wrong, or if the whole confidence interval is beyond the limit of the
    marker `torchyard`. The comparison is kept in the results directory under the id of the test.
    """
    from torchyard.pytest_plugin.session import TestComparisons

    lines = request.node.stash.setdefault(_LINES, [])
    return TestComparisons(request.node, lines).compare


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Attach the comparisons of the test to its report, which pytest-xdist sends to the controller."""
    report = yield
    lines = item.stash.get(_LINES, None)
    if lines:
        report.torchyard = list(lines)
        lines.clear()
    return report


class _Collector:
    """Collects the comparisons of reports, in the order of arrival."""

    def __init__(self, lines: list[ComparisonLine]) -> None:
        self._lines = lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the comparisons of a test."""
        self._lines += getattr(report, "torchyard", ())


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Save the comparisons under a name; not those of an interrupted session."""
    config = session.config
    name = config.getoption("torchyard_save")
    finished = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
    if name and not hasattr(config, "workerinput"):
        from torchyard.pytest_plugin.session import save

        lines = config.stash[_LINES]
        config.stash[_SAVED] = save(name, lines if finished else [])


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Show one line for each comparison."""
    lines = config.stash[_LINES]
    saved = config.stash.get(_SAVED, "")
    if lines or saved:
        terminalreporter.section("torchyard")
        for line in lines:
            color = {"fail": "red", "note": "yellow"}.get(line["outcome"], "green")
            terminalreporter.write_line(f"{line['test']}: {line['text']}", **{color: True})
        if saved:
            terminalreporter.write_line(saved)


def _compares(item: pytest.Item) -> bool:
    uses = _FIXTURE in getattr(item, "fixturenames", ())
    return uses or item.get_closest_marker(_MARKER) is not None
