from __future__ import annotations

import json

import pytest

from torchyard.builds.verify.project_tests import make_account, names_test, read_log

TEST = "test/test_nn.py::TestNNDeviceTypeCUDA::test_GRU_grad_and_gradgrad_cuda_float64"


@pytest.mark.parametrize(
    "known",
    [
        "TestNNDeviceTypeCUDA.test_GRU_grad_and_gradgrad_cuda_float64",
        "TestNNDeviceTypeCUDA::test_GRU_grad_and_gradgrad_cuda_float64",
        "test_nn.py::TestNNDeviceTypeCUDA::test_GRU_grad_and_gradgrad_cuda_float64",
        "pytorch/test/test_nn.py::TestNNDeviceTypeCUDA::test_GRU_grad_and_gradgrad_cuda_float64",
        "test_GRU_grad_and_gradgrad_cuda_float64",
        TEST,
    ],
)
def test_names_of_one_test(known: str) -> None:
    assert names_test(known, TEST)


@pytest.mark.parametrize(
    "known",
    [
        "TestNN.test_GRU_grad_and_gradgrad_cuda_float64",
        "TestNNDeviceTypeCUDA.test_GRU",
        "GRU_grad_and_gradgrad_cuda_float64",
        "other.py::TestNNDeviceTypeCUDA::test_GRU_grad_and_gradgrad_cuda_float64",
        "",
    ],
)
def test_names_of_another_test(known: str) -> None:
    assert not names_test(known, TEST)


def test_parameters() -> None:
    assert names_test("T.test_x", "f.py::T::test_x[2.5-a::b]")
    assert names_test("T.test_x[2.5-a::b]", "f.py::T::test_x[2.5-a::b]")
    assert not names_test("T.test_x[2]", "f.py::T::test_x[2.5]")
    assert not names_test("T.test_x[2]", "f.py::T::test_x")


def line(**values: object) -> str:
    return json.dumps(values)


def report(name: str, when: str, outcome: str, *, expected: bool = False) -> str:
    return line(event="report", id=name, when=when, outcome=outcome, expected=expected, text="")


def test_the_worst_phase_counts() -> None:
    log = read_log(
        [
            line(event="collected", ids=["a", "b", "c", "d"]),
            report("a", "setup", "passed"),
            report("a", "call", "passed"),
            report("a", "teardown", "failed"),
            report("b", "call", "failed"),
            report("b", "teardown", "failed"),
            report("c", "setup", "skipped"),
            report("d", "call", "skipped", expected=True),
        ]
    )
    assert log.outcomes == {"a": "error", "b": "failed", "c": "skipped", "d": "expected"}


def test_a_line_truncated_by_a_crash() -> None:
    log = read_log([line(event="start", id="a"), '{"event": "repo'])
    assert log.running == "a"
    assert not log.ended


def test_a_crash_after_the_call_passed_is_a_failure() -> None:
    log = read_log(
        [
            line(event="collected", ids=["a"]),
            line(event="start", id="a"),
            report("a", "call", "passed"),
        ]
    )
    account = make_account(
        "f.py", [log], known_failures=(), crashes=[("a", "signal SIGSEGV")], timed_out=False
    )
    assert (account.passed, account.failed) == (0, 1)
    assert account.new_failures == ("a",)


def test_two_starts_together() -> None:
    first = read_log([line(event="collected", ids=["a", "b", "c"]), report("a", "call", "passed")])
    second = read_log([line(event="collected", ids=["a", "b", "c"]), report("c", "call", "passed")])
    account = make_account(
        "f.py", [first, second], known_failures=("b",), crashes=[("b", "x")], timed_out=False
    )
    assert (account.passed, account.failed, account.not_run) == (2, 1, 0)
    assert account.known_failures == ("b",)
    assert account.good
