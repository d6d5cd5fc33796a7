"""The tables of an operator sweep."""

from __future__ import annotations

from pathlib import Path

from torchyard.values.model import Certainty, Proof
from torchyard.values.operator_sweep.model import (
    CaseState,
    OperatorCase,
    OperatorFinding,
    OperatorWorth,
    Sweep,
    SweepSettings,
)
from torchyard.values.operator_sweep.report import values_sweep_markdown, values_sweep_text

GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS = SweepSettings(python="python3", target="here")


def finding(
    pattern: str,
    *operators: str,
    certainty: Certainty = Certainty.PROVEN,
    share: float | None = None,
    gain: float | None = None,
    native: int = 1,
    size: int = 1 << 20,
) -> OperatorFinding:
    worth = OperatorWorth(
        operator_ns=None if share is None else 1000.0,
        wasted_ns=None if share is None else 1000.0 * share,
        gain=gain,
    )
    return OperatorFinding(
        direction="backward",
        pattern=pattern,
        operator=operators[-1],
        path=operators[:-1],
        bytes_wasted=size,
        native=native,
        proof=Proof(certainty=certainty),
        worth=worth,
    )


def sample() -> Sweep:
    dead, redundant = "dead initialisation", "redundant write"
    both = ("forward", "backward")
    cases = (
        OperatorCase(
            case="mse_loss",
            state=CaseState.DONE,
            directions=both,
            findings=(
                finding(dead, "aten::mse_loss_backward", "aten::zeros_like", share=0.2, gain=1.18),
            ),
        ),
        OperatorCase(
            case="huber_loss",
            state=CaseState.DONE,
            directions=both,
            findings=(
                finding(dead, "aten::huber_loss_backward", "aten::zero_", share=0.31, gain=1.3),
            ),
        ),
        OperatorCase(
            case="isclose",
            state=CaseState.DONE,
            written_bytes=3 << 20,
            not_seen_bytes=1 << 20,
            not_tried=2,
            directions=("forward",),
            findings=(
                finding(
                    redundant, "aten::bitwise_or_", certainty=Certainty.INPUT_DEPENDENT, size=65536
                ),
            ),
        ),
        OperatorCase(
            case="max",
            state=CaseState.DONE,
            directions=both,
            findings=(finding(redundant, "aten::logical_or_", native=0),),
        ),
        OperatorCase(case="odd|case\x1b[31m", state=CaseState.UNSUPPORTED, why="no such\n<thing>"),
        OperatorCase(case="bad", state=CaseState.CRASHED, why="the process was ended by signal 11"),
    )
    return Sweep(
        settings=SETTINGS,
        torch="2.13.0",
        device="cpu",
        names=(*(case.case for case in cases), "left"),
        cases=cases,
    )


def test_the_table_for_a_terminal() -> None:
    assert values_sweep_text(sample()) == (GOLDEN / "values-sweep.txt").read_text()


def test_the_table_for_a_page() -> None:
    assert values_sweep_markdown(sample()) == (GOLDEN / "values-sweep.md").read_text()


def test_the_most_certain_and_expensive_come_first() -> None:
    names = [line.split()[0] for line in values_sweep_text(sample()).splitlines()[1:4]]

    assert names == ["huber_loss", "mse_loss", "isclose"]


def test_what_only_the_profiler_causes_is_counted_and_not_shown() -> None:
    text = values_sweep_text(sample())

    assert "logical_or_" not in text
    assert "1 not shown: torch does this work only while it is profiled" in text


def test_nothing_found_is_reported() -> None:
    empty = Sweep(settings=SETTINGS, torch="2.13.0", device="cpu", names=("a",))

    assert values_sweep_text(empty).startswith("no wasted work was found\n")
    assert "No wasted work was found." in values_sweep_markdown(empty)


def test_a_device_that_cannot_be_examined_is_not_reported_as_clean() -> None:
    case = OperatorCase(case="a", state=CaseState.DONE, written_bytes=64, not_seen_bytes=64)
    blind = Sweep(settings=SETTINGS, torch="2.13.0", device="odd", names=("a",), cases=(case,))

    assert values_sweep_text(blind).startswith("nothing was examined\n")
    assert "64 B of 64 B written could not be examined" in values_sweep_text(blind)


def test_names_from_outside_steer_nothing() -> None:
    for text in (values_sweep_text(sample()), values_sweep_markdown(sample())):
        assert "\x1b" not in text
    odd = OperatorCase(
        case="a`b|c", state=CaseState.DONE, findings=(finding("redundant write", "aten::x"),)
    )
    page = values_sweep_markdown(Sweep(settings=SETTINGS, names=("a",), cases=(odd,)))
    assert "| `a'b\\|c` |" in page
    assert "odd\\|case" in values_sweep_markdown(sample())
    assert "\\<thing>" in values_sweep_markdown(sample())
