"""Audit reports as text and as a page: golden files and escaping.

UPDATE_GOLDEN=1 rewrites the golden files; look at the difference.
"""

from __future__ import annotations

import base64
import hashlib
import math
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.presentation.page_outline import page_outline
from tests.presentation.parsed_page import Page
from torchyard.audit.model import (
    Audit,
    AuditChange,
    AuditLaunch,
    BlockPoint,
    Disturbance,
    Drift,
    EarlierSpread,
    Resolvable,
    Spread,
)
from torchyard.audit.report import (
    audit_text,
    change_text,
    disturbance_text,
    earlier_text,
    verdict_sentence,
)
from torchyard.audit.report_html import Axis, audit_page, blocks_chart, curve_chart, launches_chart
from torchyard.core.comparison import Interval, Verdict

GOLDEN = Path(__file__).parents[1] / "golden"
EFFECTS = (0.011, -0.024, 0.003, 0.031, -0.008, 0.019)


def sample() -> Audit:
    """Six launches of five rounds, the last of each disturbed, one block far away."""
    points, launches = [], []
    for launch, effect in enumerate(EFFECTS):
        began = 4.5 * launch
        for number in range(10):
            side = number % 2
            time_ns = 1.3e6 * math.exp((effect if side else 0) + 0.004 * ((number * 7) % 5 - 2))
            far = launch == 3 and number == 6
            points.append(
                BlockPoint(
                    at_s=began + 0.2 * number,
                    launch=launch,
                    side=side,
                    time_ns=time_ns * (3 if far else 1),
                    dirty=number >= 8,
                )
            )
        launches.append(
            AuditLaunch(
                began_s=began,
                ended_s=began + 2.0,
                start_s=2.5,
                levels_ns=(1.3e6, 1.3e6 * math.exp(effect)),
                effect=effect,
                spread=0.006 + 0.002 * (launch % 3),
                pairs=4,
                dirty_blocks=2,
                blocks=10,
            )
        )
    return Audit(
        started="2025-01-02T03:04:05+00:00",
        asked_s=60.0,
        measured_s=24.5,
        machine=(
            ("cpu", "Arm implementer 0x41 part 0xd0c"),
            ("governor", "unavailable, because x"),
        ),
        target=(("interpreter", "/opt/venv/bin/python"), ("torch", "2.6.0")),
        kernel="kernels/layered-mlp inference layers=10",
        threads=2,
        cores=(2, 3),
        time_ns=1.3e6,
        launches=tuple(launches),
        pairs=24,
        blocks=60,
        dirty_blocks=12,
        dirty=(("waited for a core", 10), ("stolen by the host", 2)),
        within=Spread(sd=0.0078, interval=Interval(low=0.0064, high=0.0095)),
        between=Spread(sd=0.02, interval=Interval(low=0.013, high=0.031)),
        unpaired=Spread(sd=0.034),
        drift=Drift(per_minute=0.012, interval=Interval(low=0.004, high=0.02), explains=0.31),
        verdict=Verdict.UNDECIDED,
        ratio=0.996,
        ratio_interval=Interval(low=0.975, high=1.017),
        resolvable=tuple(
            Resolvable(
                minutes=minutes,
                launches=13 * minutes,
                difference=0.0161 / math.sqrt(minutes),
                interval=Interval(low=0.0105 / math.sqrt(minutes), high=0.025 / math.sqrt(minutes)),
            )
            for minutes in range(1, 31)
        ),
        assumptions=("launches as here: 4.5 s each", "80% power"),
        disturbances=(
            Disturbance(
                kind="process",
                what="cc1plus",
                amount=0.934,
                unit="cores",
                share_of_blocks=0.88,
                slower=0.12,
                advice="stop it while measuring, or `torchyard machine quiet --cores auto`",
            ),
            Disturbance(
                kind="interrupt",
                what="eth0-TxRx-0",
                amount=2345.6,
                unit="per second",
                share_of_blocks=0.4,
                slower=-0.002,
                advice="keep it off the cores",
            ),
            Disturbance(
                kind="steal",
                what="the host",
                amount=0.031,
                unit="of the time",
                share_of_blocks=0.07,
            ),
        ),
        watched=(("looks", "49"), ("pressure", "unavailable, because /proc/pressure/cpu: gone")),
        series=tuple(points),
        notes=("12 of 36 pairs left out",),
    )


CHANGES = (
    AuditChange(
        name="within launches",
        before=0.0078,
        after=0.0031,
        ratio=0.397,
        interval=Interval(low=0.31, high=0.52),
        verdict="quieter",
    ),
    AuditChange(
        name="between launches",
        before=0.02,
        after=0.017,
        ratio=0.85,
        interval=Interval(low=0.42, high=1.7),
        verdict="not told apart",
    ),
    AuditChange(
        name="without pairing",
        before=0.034,
        after=None,
        ratio=None,
        interval=None,
        verdict="unknown",
    ),
)
DIFFERENCES = ("governor: powersave before, performance after",)


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_bytes(text.encode())
    assert text.encode() == path.read_bytes(), f"{name} differs; UPDATE_GOLDEN=1 accepts it"


def test_text() -> None:
    changed = change_text(CHANGES, title="Against an earlier audit", differences=DIFFERENCES)
    check("audit.txt", audit_text(sample()) + "\n" + changed)


def test_spreads_of_earlier_comparisons() -> None:
    spread = EarlierSpread(
        machine="neoverse-n1-2c-09b3",
        device="cpu",
        suite="kernels",
        comparisons=12,
        launches=61,
        launch_sd=0.0123,
        observed_sd=0.0181,
        detectable=0.018,
    )
    hostile = replace(
        spread, machine="\x1b[31mred\n" * 20, device="cuda\u202e", suite="x" * 99, detectable=None
    )
    lines = earlier_text([spread, hostile]).splitlines()
    assert "that 10 launches detect" in " ".join(lines[:2])
    headings, first, second = (line.split("  ") for line in lines[2:])
    assert [cell.strip() for cell in headings if cell] == [
        *("machine", "device", "suite", "comparisons", "launches"),
        *("launch SD", "with pair noise", "detectable"),
    ]
    assert [cell.strip() for cell in first if cell] == [
        *("neoverse-n1-2c-09b3", "cpu", "kernels", "12", "61", "1.2%", "1.8%", "1.8%")
    ]
    assert "\x1b" not in "".join(second)
    assert [cell for cell in second if cell][1].strip() == "cuda"
    assert max(map(len, second)) <= 32
    lines = earlier_text([spread, spread], width=80).splitlines()
    assert "on neoverse-n1-2c-09b3 (" in lines[0]
    assert max(map(len, lines)) <= 80


def test_no_earlier_comparison_is_one_sentence() -> None:
    assert earlier_text([]).count("\n") == 1
    assert "three or more launches." in earlier_text([])


def test_text_in_forty_columns_breaks_no_line_it_need_not() -> None:
    lines = audit_text(sample(), width=40).splitlines()
    assert max(len(line) for line in lines[2:]) <= 62  # long words stay whole


def test_page() -> None:
    page = audit_page(sample(), changes=CHANGES, changes_title="Against X", differences=DIFFERENCES)
    check("audit.html.txt", page_outline(page))


@pytest.mark.parametrize(
    ("kind", "what", "unit", "amount", "said"),
    [
        ("process", "cc1plus", "cores", 0.934, "process cc1plus used 93.4% of a core"),
        ("process", "java", "cores", 3.21, "process java used 3.2 cores"),
        ("kernel thread", "kdamond", "cores", 0.014, "kernel thread kdamond used 1.4% of a core"),
        ("steal", "the host", "of the time", 0.031, "the host took 3.1% of the time"),
        (
            "interrupt",
            "eth0",
            "per second",
            2345.6,
            "interrupt eth0 occurred 2,346 times per second per core",
        ),
        (
            "waiting for a core",
            "some process",
            "of the time",
            0.98,
            "some process was waiting for a core 98.0% of the time",
        ),
        (
            "page moves",
            "pages migrated",
            "per second",
            900.0,
            "the kernel counted pages migrated: 900 per second",
        ),
    ],
)
def test_every_kind_makes_a_sentence(
    kind: str, what: str, unit: str, amount: float, said: str
) -> None:
    disturbance = Disturbance(kind=kind, what=what, amount=amount, unit=unit, share_of_blocks=1.0)
    assert disturbance_text(disturbance) == f"{said}, active in 100% of the blocks"


def test_the_answer_comes_first() -> None:
    good = sample()
    assert audit_text(good).startswith("Quiet enough: 5 minutes resolve a difference of 0.72%.\n")
    bad = replace(good, dirty_blocks=50)
    assert verdict_sentence(bad) == "Too noisy: 83% of the blocks were disturbed."
    worse = replace(bad, resolvable=())
    assert verdict_sentence(worse).count(", and ") == 1


def test_a_false_alarm_and_an_interrupt_are_prominent() -> None:
    audit = replace(sample(), verdict=Verdict.SLOWER, interrupted=True)
    text = audit_text(audit)
    assert "FALSE POSITIVE, identical code was called slower" in text
    assert "Interrupted after 24 s." in text
    page = audit_page(audit)
    assert "a false positive" in page
    assert "was interrupted" in page


def test_nothing_measured_is_a_page_too() -> None:
    empty = replace(
        sample(),
        launches=(),
        series=(),
        resolvable=(),
        blocks=0,
        dirty_blocks=0,
        time_ns=None,
        ratio=None,
        ratio_interval=None,
        drift=None,
        within=Spread(),
        between=Spread(),
        unpaired=Spread(),
        disturbances=(),
    )
    assert blocks_chart(empty) is None
    assert launches_chart(empty) is None
    assert curve_chart(empty) is None
    assert "No block was measured." in audit_page(empty)
    assert "No noise source was detected." in audit_text(empty)


HOSTILE = (
    "<script>alert(1)</script>",
    "</style><script>alert(1)</script>",
    '" onmouseover="alert(1)" x="',
    "{{ 7 * 7 }}",
    "\x1b[31mred\x07\u202e",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_names_from_outside_are_escaped(text: str) -> None:
    audit = sample()
    plain = Page(audit_page(audit, changes=CHANGES, changes_title="x", differences=DIFFERENCES))
    evil = replace(
        audit,
        started=text,
        label="",
        kernel=text,
        machine=((text, text),) * 2,
        target=((text, text),) * 2,
        dirty=((text, 10), (text, 2)),
        disturbances=tuple(
            replace(one, kind="process", what=text, advice=text) for one in audit.disturbances
        ),
        assumptions=(text, text),
        watched=((text, text),) * 2,
        notes=(text,),
    )
    changes = tuple(replace(change, name=text) for change in CHANGES)
    page = audit_page(evil, changes=changes, changes_title=text, differences=(text,))
    parsed_page = Page(page)
    assert [tag for tag, _ in parsed_page.elements] == [tag for tag, _ in plain.elements]
    assert all(not name.startswith("on") for _, names in parsed_page.elements for name in names)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", page)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", audit_text(evil))


def test_the_page_allows_itself_its_style_and_nothing_else() -> None:
    page = audit_page(sample())
    elements = Page(page).elements
    assert not {"script", "link", "img", "iframe", "a"} & {tag for tag, _ in elements}
    style = re.search("<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(e["content"] for t, e in elements if t == "meta" and "http-equiv" in e)
    assert f"'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "style=" not in page.replace(style[0], "")
    assert "http://" not in page
    assert "https://" not in page


def test_blocks_lie_inside_the_picture_and_far_ones_at_its_edge() -> None:
    chart = blocks_chart(sample())
    assert chart is not None
    assert len(chart.points) == 60
    assert all(64 <= x <= 792 and 10 <= y <= chart.height - 28 for x, y, _ in chart.points)
    (far,) = [point for point in chart.points if "beyond" in point[2]]
    assert far[1] == 10
    assert sum("dirty" in classes for _, _, classes in chart.points) == 12
    assert len(chart.launches) == 6
    lefts = [left for left, _ in chart.launches]
    assert lefts == sorted(lefts)
    assert ("0%" in dict(map(reversed, chart.y_ticks))) is True


def test_each_launch_is_a_row() -> None:
    chart = launches_chart(sample())
    assert chart is not None
    assert len(chart.rows) == 6
    for (x, left, right, _, text), effect in zip(chart.rows, EFFECTS, strict=True):
        assert left <= x <= right
        assert (x > chart.zero) is (effect > 0)
        assert text.startswith("launch ")


def test_the_curve_falls_and_keeps_its_band() -> None:
    chart = curve_chart(sample())
    assert chart is not None
    assert [text.partition(":")[0] for _, _, text in chart.points] == ["1 min", "5 min", "30 min"]
    heights = [y for _, y, _ in chart.points]
    assert heights == sorted(heights)  # downwards on a page
    assert chart.band.endswith("Z")
    without = replace(
        sample(), resolvable=tuple(replace(one, interval=None) for one in sample().resolvable)
    )
    bare = curve_chart(without)
    assert bare is not None
    assert bare.band == ""


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-0.013, 0.013), (0.0, 61.7), (-1.0, 3.0)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    axis = Axis(low=low, high=high, start=0.0, end=100.0)
    ticks = axis.ticks()
    assert 3 <= len(ticks) <= 7
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    assert axis.place(low) == 0.0
    assert axis.place(high + 5) == 100.0
