"""Text and pages of tool profiles: golden files, and names from outside."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.presentation.page_outline import page_outline
from torchyard.core.records import decode, encode
from torchyard.profile.model import (
    CostRow,
    CounterValue,
    KeptFile,
    ShapeCost,
    StackCost,
    ToolProfile,
)
from torchyard.profile.report import profile_page, profile_text

GOLDEN = Path(__file__).parent / "golden"

TORCH = ToolProfile(  # noqa: S604 - a field of ours, not an argument of subprocess
    tool="torch",
    tool_version="2.13.0",
    program=("train.py", "--epochs", "1"),
    python="/opt/t/bin/python",
    started="2025-01-02T03:04:05+00:00",
    shell="mkdir -p p && python run_program.py p/plan.json -- train.py --epochs 1",
    rows=(
        CostRow(
            name="aten::addmm",
            calls=40,
            self_cost=12.5e6,
            total_cost=13e6,
            self_device_cost=2e6,
            total_device_cost=2e6,
            memory_bytes=3 << 20,
            device_memory_bytes=1 << 20,
            shapes=(ShapeCost(shapes="128, 32x64, 64x128", calls=20, self_cost=8e6),),
        ),
        CostRow(name="aten::zero_", calls=1200, self_cost=5e5, total_cost=6e5, memory_bytes=-512),
        CostRow(name="void at::native::" + "vectorized_elementwise_kernel<4, " * 4 + ">", calls=3),
    ),
    rows_left_out=7,
    total_cost=15e6,
    recorded_ns=2e7,
    steps=10,
    recorded_steps=5,
    peak_memory_bytes=900 << 20,
    peak_device_bytes=2 << 30,
    files=(KeptFile(name="trace.json.gz", about="Chrome trace"),),
    notes=("the program profiles itself: recording ended there",),
)
PERF = ToolProfile(
    tool="perf",
    tool_version="perf version 6.1",
    program=("train.py",),
    state="crashed",
    exit_code=3,
    row_kind="function",
    rows=(CostRow(name="sgemm_kernel", where="libopenblas.so", self_cost=9e8, total_cost=9e8),),
    total_cost=1e9,
    counters=(
        CounterValue(name="task-clock", value=1012.5, unit="msec"),
        CounterValue(name="page-faults", value=12345.0),
        CounterValue(name="cycles", value=None),
    ),
    stacks=(StackCost(frames=("main", "sgemm_kernel"), cost=9e8),),
    files=(KeptFile(name="perf.data", about="samples"),),
)


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{name} differs; UPDATE_GOLDEN=1 accepts it"


@pytest.mark.parametrize(("name", "profile"), [("torch", TORCH), ("perf", PERF)])
def test_golden(name: str, profile: ToolProfile) -> None:
    check(f"profile-{name}.txt", profile_text(profile, folder=Path("/kept")))
    check(f"profile-{name}.html.txt", page_outline(profile_page(profile, files_at="../kept")))


HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e\"'&"


def hostile() -> ToolProfile:
    return ToolProfile(
        tool="perf",
        program=(HOSTILE,),
        python=HOSTILE,
        shell=HOSTILE,
        tool_version=HOSTILE,
        rows=(
            CostRow(
                name=HOSTILE,
                where=HOSTILE,
                self_cost=1.0,
                shapes=(ShapeCost(shapes=HOSTILE, calls=1, self_cost=1.0),),
            ),
        ),
        total_cost=1.0,
        unit=HOSTILE,
        row_kind="function",
        counters=(CounterValue(name=HOSTILE, value=1.0, unit=HOSTILE),),
        stacks=(StackCost(frames=(HOSTILE,), cost=1.0),),
        files=(
            KeptFile(name="javascript:alert(1)", about=HOSTILE),
            KeptFile(name=HOSTILE, about=""),
        ),
        notes=(HOSTILE,),
    )


def test_names_from_outside_stay_text_on_the_page() -> None:
    page = profile_page(hostile(), files_at="a b")
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    links = re.findall(r'href="([^"]*)"', page)
    assert links
    assert all(link.startswith("./a%20b/") for link in links)
    assert "script-src" not in page
    assert "<script" not in page


def test_a_file_name_alone_is_a_relative_address() -> None:
    links = re.findall(r'href="([^"]*)"', profile_page(hostile()))
    assert all(link.startswith("./") for link in links)


def test_names_from_outside_are_one_line_of_text() -> None:
    profile = replace(hostile(), notes=("a\nnote: forged",))
    text = profile_text(profile)
    assert "\x1b" not in text
    assert "\nnote: forged" not in text


def test_nothing_recorded() -> None:
    empty = ToolProfile(tool="nsys", row_kind="kernel", state="interrupted")
    assert "No kernels were recorded." in profile_text(empty)
    assert "interrupted" in profile_text(empty)
    assert "No kernels were recorded." in profile_page(empty)
    assert "The profiler wrote no files." in profile_page(empty)


def test_a_stored_profile_round_trips() -> None:
    for profile in (TORCH, PERF, hostile()):
        assert decode(ToolProfile, encode(profile), where="x", strict=True) == profile


def test_bars_are_relative_to_the_costliest() -> None:
    page = profile_page(TORCH)
    widths = [float(text) for text in re.findall(r'class="bar" width="([\d.]+)"', page)]
    assert widths[0] == 100
    assert widths == sorted(widths, reverse=True)
