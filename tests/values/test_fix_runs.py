"""Programs run with and without a fix: measured savings, and fixes that must not be confirmed."""

from __future__ import annotations

import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torchyard.core.comparison import Interval  # noqa: E402
from torchyard.core.study import Target  # noqa: E402
from torchyard.values.fix_runs import (  # noqa: E402
    measure_fixes,
    runs_for_fixes,
    with_fix_measurement,
    with_fixes,
)
from torchyard.values.model import (  # noqa: E402
    FixMeasurement,
    Place,
    ProfileRequest,
    Saving,
    ValueFinding,
    ValueProfile,
    Worth,
    read_profile,
    write_profile,
)
from torchyard.values.profiled_run import profile_program  # noqa: E402
from torchyard.values.report.descriptions import measured_text  # noqa: E402
from torchyard.values.report.findings_page import values_html  # noqa: E402
from torchyard.values.report.findings_text import (  # noqa: E402
    values_json,
    values_markdown,
    values_text,
)
from torchyard.values.target_run import ProgramEnd  # noqa: E402
from torchyard.worker.values.pricing.native_run import NativeRunRecorder  # noqa: E402
from torchyard.worker.values.program import run_program  # noqa: E402

pytestmark = pytest.mark.torch

TRAINING = """
    import sys, torch
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, buffer, total = torch.randn(64, 64), torch.empty(1 << 20), torch.zeros(64)
    check = torch.ones(64)
    for step in range(20):
        buffer.zero_()  # dead
        buffer.fill_(step)
        total.zero_()  # needed
        total.add_(x[step])
        check.add_(1)
        check.zero_()  # fatal
        if check.sum().item():
            sys.exit(3)
        loss = (net(x) * buffer[:64] + total).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", loss.item())
"""
LOOP = """
    import sys, torch
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(256, 256)
    for step in range(20):
        x = x * 0.99
        first = x.exp().tanh()
        again = x.exp().tanh()  # duplicate
        other = (x * 2).sum().item()  # used
    print((first + again).sum().item())
"""
RANDOM = """
    import torch
    x = torch.empty(64)
    for step in range(3):
        x.zero_()  # dead
        x.copy_(torch.rand(64, generator=torch.Generator().manual_seed(torch.seed())))
    print(x.sum().item())
"""
RANDOM_AND_DONE = """
    import torch
    x = torch.empty(64)
    x.zero_()  # dead
    x.copy_(torch.rand(64, generator=torch.Generator().manual_seed(torch.seed())))
    assert x.sum().item() >= 0
    print("done after 1 step")
"""
SILENT = """
    import torch
    x = torch.empty(64)
    x.zero_()  # dead
    x.fill_(1)
"""


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs run in this process, and change settings of it."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    handler, threads = signal.getsignal(signal.SIGTERM), torch.get_num_threads()
    yield
    signal.signal(signal.SIGTERM, handler)
    torch.set_num_threads(threads)


def run_here(request: ProfileRequest, folder: Path, *, name: str, **plan: Any) -> ProgramEnd:
    """Run the program in this process, as the worker does in a target."""
    output = folder / f"{name}.json"
    code = run_program(list(request.program), NativeRunRecorder({"output": str(output), **plan}))
    return ProgramEnd(exit_code=code, output=output)


class Program:
    """A script, and findings at its marked lines."""

    def __init__(self, folder: Path, text: str) -> None:
        self.folder = folder
        self.path = folder / "program.py"
        self.path.write_text(textwrap.dedent(text))
        target = Target(name="here", python=sys.executable)
        self.request = ProfileRequest(target=target, program=(str(self.path),))

    def finding(self, mark: str, pattern: str, operator: str, share: float = 0.1) -> ValueFinding:
        lines = self.path.read_text().splitlines()
        line = next(n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))
        place = Place(file=str(self.path), line=line)
        saving = Saving(low_ns=1, high_ns=2, low_share=0.0, high_share=share, bound_share=0.99)
        worth = Worth(saving=saving, share_of_step=share / 2)
        return ValueFinding(pattern=pattern, operator=operator, place=place, count=20, worth=worth)

    def measure(self, *findings: ValueFinding, steps: int = 20, **more: Any) -> list[Any]:
        """Return the measurement of each finding."""
        profile = ValueProfile(
            format=1, state="finished", torch="2", steps=steps, findings=findings
        )
        found = measure_fixes(
            self.request, self.folder, profile, say=lambda _: None, launch=run_here, **more
        )
        return [one.worth.measured for one in found.findings]


def test_steps_with_and_without_the_fix_are_compared(tmp_path: Path) -> None:
    program = Program(tmp_path, TRAINING)
    dead = program.finding("dead", "dead initialisation", "aten::zero_", 0.5)
    needed = program.finding("needed", "dead initialisation", "aten::zero_", 0.4)
    fatal = program.finding("fatal", "redundant write", "aten::zero_", 0.3)
    good, wrong, failed = program.measure(dead, needed, fatal, launches=3)
    assert good.confirmed
    assert good.why == ""
    assert good.applied == 20
    assert good.clock == "CPU time"
    assert good.launches == 3
    assert good.pairs >= 12
    assert set(good.compared) == {"parameters", "printed text", "values read by Python"}
    assert 0 < good.share < 1, "filling four megabytes takes time"
    assert good.interval.low < good.share < good.interval.high
    assert not wrong.confirmed
    assert wrong.share is None
    assert wrong.why.startswith("with the fix the results differ: parameters, printed text")
    assert not failed.confirmed
    assert failed.why == "with the fix the program exits with code 3"


def test_whole_runs_of_a_program_without_steps_are_paired(tmp_path: Path) -> None:
    program = Program(tmp_path, LOOP)
    duplicate = program.finding("duplicate", "duplicate", "aten::exp")
    (measured,) = program.measure(duplicate, steps=1, launches=2)
    assert measured.confirmed, measured.why
    assert (measured.launches, measured.pairs) == (2, 2)
    assert measured.rounded == "", "no gradients, no rounding"
    assert measured.applied == 38, "exp and tanh, after one iteration that shows the functions"
    assert (tmp_path / "plain-0-1.json").is_file()
    missed = replace(duplicate, place=replace(duplicate.place, line=1))
    (measured,) = program.measure(missed, steps=1, launches=2)
    assert measured.why == "no call of the program matched the fix"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (RANDOM, "results differ from run to run"),
        (RANDOM_AND_DONE, "results differ from run to run without any fix (values read by Python)"),
        (SILENT, "shows no results to compare"),
        (SILENT + '    print("done")\n', "shows no results to compare"),
    ],
)
def test_without_comparable_results_nothing_is_confirmed(
    tmp_path: Path, text: str, why: str
) -> None:
    program = Program(tmp_path, text)
    (measured,) = program.measure(program.finding("dead", "dead initialisation", "aten::zero_"))
    assert not measured.confirmed
    assert why in measured.why


def test_the_largest_findings_come_first_and_the_budget_ends_it(tmp_path: Path) -> None:
    program = Program(tmp_path, LOOP)
    findings = tuple(
        program.finding("used", "duplicate", "aten::sum", share) for share in (0.1, 0.4, 0.2, 0.3)
    )
    profile = ValueProfile(format=1, state="finished", torch="2", steps=5, findings=findings)
    assert [number for number, _ in with_fixes(profile)] == [1, 3, 2]
    assert runs_for_fixes(profile) == 2 + 3 * 5
    assert runs_for_fixes(replace(profile, state="crashed")) == 0
    assert runs_for_fixes(replace(profile, compiled=True)) == 0
    measured = program.measure(*findings, budget_s=0.0)
    assert measured[0] is None, "not among the largest"
    assert {one.why for one in measured[1:]} == {"the time budget was used up"}


MEASURED = FixMeasurement(
    fix="the write left out",
    confirmed=True,
    share=0.121,
    interval=Interval(low=0.109, high=0.132),
    clock="CPU time",
    pairs=40,
    launches=4,
    applied=20,
    compared=("parameters",),
)


def test_a_measured_saving_is_shown_in_every_format(tmp_path: Path) -> None:
    program = Program(tmp_path, LOOP)
    finding = program.finding("duplicate", "duplicate", "aten::exp", 0.2)
    finding = replace(finding, worth=with_fix_measurement(finding.worth, MEASURED))
    profile = ValueProfile(format=1, state="finished", torch="2", findings=(finding,))
    wanted = "saves 12.1% [10.9%, 13.2%] of CPU time"
    for show in (values_text, values_markdown, values_html):
        text = " ".join(show(profile).replace("\\", "").split())
        assert wanted in text, show.__name__
        assert "0.00-20.0%" in text, "the estimate stays"
    assert '"share": 0.121' in values_json(profile)
    assert read_profile(write_profile(tmp_path, profile)) == profile


def test_a_saving_beyond_the_bound_corrects_it_and_is_flagged() -> None:
    saving = Saving(
        low_ns=1, high_ns=2, low_share=0.01, high_share=0.02, bound_ns=4.0, bound_share=0.1
    )
    worth = with_fix_measurement(Worth(saving=saving), MEASURED)
    assert worth.saving is not None
    assert worth.measured is not None
    assert worth.saving.bound_share == 0.121
    assert worth.saving.bound_ns == pytest.approx(4.84)
    assert worth.measured.exceeded_bound == 0.1
    assert "EXCEEDS the estimated upper bound of 10.0%" in measured_text(worth)
    wide = with_fix_measurement(Worth(saving=replace(saving, bound_share=0.2)), MEASURED)
    assert wide.measured == MEASURED
    refused = replace(MEASURED, confirmed=False, why="the results differ")
    kept = with_fix_measurement(Worth(saving=saving), refused)
    assert kept.saving == saving
    assert measured_text(kept) == "fix not confirmed (the write left out): the results differ"


def test_two_findings_with_one_fix_share_its_runs_and_correct_the_total(tmp_path: Path) -> None:
    program = Program(tmp_path, LOOP)
    first = program.finding("duplicate", "duplicate", "aten::exp", 0.3)
    second = program.finding("duplicate", "duplicate", "aten::tanh", 0.2)
    tiny = Saving(low_ns=0, high_ns=0, low_share=0, high_share=0, bound_ns=1, bound_share=1e-9)
    profile = ValueProfile(
        format=1, state="finished", torch="2", steps=1, findings=(first, second), saving=tiny
    )
    found = measure_fixes(
        program.request, tmp_path, profile, say=lambda _: None, launch=run_here, launches=2
    )
    one, other = (finding.worth.measured for finding in found.findings)
    assert one is not None
    assert one == other
    assert not (tmp_path / "fixed-1-0.json").exists()
    assert found.saving is not None
    assert found.saving.bound_share == max(1e-9, one.share or 0.0)


def test_noise_is_not_called_a_saving() -> None:
    noise = replace(MEASURED, share=-0.002, interval=Interval(low=-0.03, high=0.02))
    text = measured_text(Worth(measured=noise))
    assert text.startswith("measured: saves -0.20% [-3.0%, 2.0%] of CPU time, not distinguishable")


@pytest.mark.slow
def test_the_command_confirms_by_running_the_fixed_program(tmp_path: Path) -> None:
    program = Program(tmp_path, TRAINING)
    profile, path = profile_program(
        program.request, folder=tmp_path / "run", say=lambda _: None, gains=True
    )
    measured = [one.worth.measured for one in profile.findings if one.worth.measured]
    assert measured
    assert any(one.confirmed and one.applied for one in measured)
    assert read_profile(path) == profile
