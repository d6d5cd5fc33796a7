"""The roofline of a run: rows and peak, as text, as a picture and on the page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.bench.report.test_golden import check
from tests.bench.report.test_page import HOSTILE
from tests.bench.roofline.sample_roofline import (
    COMPARISONS,
    FACTS,
    MACHINE,
    PEAK,
    metrics,
    roofline_run,
    row,
)
from tests.bench.sample_run import write_run
from tests.presentation.parsed_page import Page
from torchyard.bench.report.page import to_html
from torchyard.bench.report.sharing import redacted_run
from torchyard.bench.roofline.chart import roofline_description, roofline_spec, to_roofline_svg
from torchyard.bench.roofline.machine_peak import write_peak
from torchyard.bench.roofline.report import (
    Roofline,
    peak_command,
    peak_text,
    roofline_of,
    to_roofline_text,
)
from torchyard.core.comparison import BUSY_NOTE_PREFIX
from torchyard.core.roofline import MachinePeak
from torchyard.core.study import MeasureSettings, Workload
from torchyard.errors import NothingToDo
from torchyard.results.run_reader import Run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return roofline_run(tmp_path / "run")


def found_with(run: Run, *peaks: MachinePeak) -> Roofline:
    for peak in peaks:
        write_peak(peak)
    return roofline_of(run)


def test_each_variant_of_each_workload_is_one_row(run: Run) -> None:
    rows = found_with(run, PEAK).rows
    assert [(row.name, row.variant) for row in rows] == [
        ("matmul size=1000", "eager"),
        ("matmul size=1000", "inductor"),
        ("matmul size=1000", "inductor+bfloat16"),
        ("matmul-vector", "eager"),
        ("matmul-vector", "inductor"),
        ("layer-norm training", "eager"),
        ("layer-norm training", "inductor"),
    ]


def test_shares_by_hand(run: Run) -> None:
    rows = {(row.name, row.variant): row.attainment for row in found_with(run, PEAK).rows}
    matmul = rows["matmul size=1000", "eager"]
    assert matmul is not None
    assert matmul.bound == "arithmetic"
    assert matmul.roof_share == pytest.approx(0.8)
    vector = rows["matmul-vector", "inductor"]
    assert vector is not None
    assert vector.bound == "memory"
    assert vector.roof_share == pytest.approx(0.7)
    norm = rows["layer-norm training", "inductor"]
    assert norm is not None
    assert norm.roof_share == pytest.approx(1.2)
    assert rows["matmul size=1000", "inductor+bfloat16"] is None


def test_a_peak_of_another_machine_precision_or_thread_count_does_not_count(run: Run) -> None:
    others = (
        replace(PEAK, machine="other-2c-0000"),
        replace(PEAK, threads=1),
        replace(PEAK, device="cuda", threads=0),
    )
    roofline = found_with(run, *others)
    assert roofline.peaks == ()
    assert [key.command for key in roofline.missing] == [
        "torchyard machine peak --threads 2",
        "torchyard machine peak --precision bfloat16 --threads 2",
    ]
    assert all(row.attainment is None for row in roofline.rows)


def test_threads_are_the_cores_where_none_were_asked_for(run: Run) -> None:
    plain = replace(run, study=replace(run.study, settings=MeasureSettings()))
    assert {key.threads for key in roofline_of(plain).missing} == {2}
    unknown = replace(plain, info={**run.info, "machine": {"cpu": "Example 9000"}})
    assert {key.threads for key in roofline_of(unknown).missing} == {0}


def test_a_row_on_a_gpu_is_compared_with_the_peak_of_the_gpu(run: Run) -> None:
    gpu = replace(COMPARISONS[0].workload, device="cuda")
    mixed = replace(
        run,
        info={**run.info, "targets": {"nightly": {"devices": ["cpu", "cuda:0 NVIDIA H200"]}}},
        comparisons=(
            row(gpu, "inductor", metrics(1e-3, flops=2e9, moved=12e6), metrics(1e-3)),
            COMPARISONS[0],
        ),
    )
    keys = roofline_of(mixed).missing
    assert [(key.device, key.threads) for key in keys] == [("cuda", 0), ("cpu", 2)]
    assert keys[0].machine.startswith("nvidia-h200")
    assert keys[1].machine == MACHINE


def test_a_flushed_cache_is_no_roofline_bound(run: Run) -> None:
    gpu = replace(COMPARISONS[0].workload, device="cuda")
    one = row(gpu, "inductor", metrics(1e-5, moved=1e5), metrics(1e-5, moved=1e5))
    facts = {"nightly": {"devices": ["cpu", "cuda:0 NVIDIA H200"]}}
    warm = replace(run, info={**run.info, "targets": facts}, comparisons=(one,))
    key = roofline_of(warm).missing[0]
    write_peak(replace(PEAK, machine=key.machine, device="cuda", threads=0))
    cold = replace(warm, study=replace(run.study, settings=MeasureSettings(flush_l2=True)))
    bounds = [roofline_of(each).rows[0].attainment for each in (warm, cold)]
    assert [each.bound for each in bounds if each] == ["cache", "memory"]


def test_text_is_golden(run: Run) -> None:
    write_peak(PEAK)
    check("roofline.txt", to_roofline_text(run))


def test_text_without_a_peak_names_the_command(run: Run) -> None:
    text = to_roofline_text(run)
    assert "measure it there with: torchyard machine peak --threads 2" in text
    assert "80.0 GFLOP/s" in text
    assert "%" not in text


def test_untrusted_rows_are_counted(run: Run) -> None:
    busy = replace(COMPARISONS[3], notes=(f"{BUSY_NOTE_PREFIX}: 6 of 6 pairs were disturbed",))
    text = to_roofline_text(replace(run, comparisons=(COMPARISONS[0], busy)))
    assert "2 of 4 rows have untrusted times" in text
    assert "untrusted" not in to_roofline_text(run)


def test_a_small_share_is_not_rounded_to_zero(run: Run) -> None:
    write_peak(PEAK)
    slow = row(COMPARISONS[0].workload, "inductor", metrics(9.0, flops=2e9), metrics(9.0))
    text = to_roofline_text(replace(run, comparisons=(slow,)))
    assert " <1%" in text
    assert " 0%" not in text


def test_text_of_a_run_without_kernels_says_which_have_rooflines(tmp_path: Path) -> None:
    text = to_roofline_text(write_run(tmp_path / "other"))
    assert "torchyard bench --suite kernels" in text


def test_the_peak_as_text_is_golden() -> None:
    check("peak.txt", peak_text(PEAK, fresh=True, lasts_days=30.0))
    kept = peak_text(replace(PEAK, notes=("one \x1b[31mred",)), fresh=False, lasts_days=30.0)
    assert "--measure measures again" in kept
    assert "\x1b" not in kept


@pytest.mark.parametrize(
    ("wish", "command"),
    [
        (("cpu", "float32", 0), "torchyard machine peak"),
        (("cuda:1", "amp", 0), "torchyard machine peak --device cuda:1 --precision amp"),
        (("cpu", "float32", 8), "torchyard machine peak --threads 8"),
    ],
)
def test_the_command_that_measures_a_peak(wish: tuple[str, str, int], command: str) -> None:
    assert peak_command(*wish) == command


def spec_of(run: Run) -> dict[str, Any]:
    roofline = found_with(run, PEAK)
    ((key, peak),) = roofline.peaks
    return roofline_spec(key, peak, roofline)


def test_the_picture_has_every_mark_and_both_bounds(run: Run) -> None:
    spec = spec_of(run)
    cache, memory, *_, points, _ = (layer["data"]["values"] for layer in spec["layer"])
    assert len(points) == 4
    corner = memory[1]
    assert (corner["x"], corner["y"]) == (pytest.approx(5.0), 100e9)
    assert cache[1]["x"] == pytest.approx(100e9 / 60e9)
    assert memory[2]["y"] == 100e9
    marks = spec["layer"][4]["encoding"]
    low, high = marks["x"]["scale"]["domain"]
    bottom, top = marks["y"]["scale"]["domain"]
    assert all(low < point["intensity"] < high for point in points)
    assert all(bottom < point["rate"] < top for point in points)
    assert low < corner["x"] < high
    assert corner["y"] < top
    names = {text["text"] for text in spec["layer"][5]["data"]["values"]}
    assert names == {"matmul size=1000", "matmul-vector"}


def test_the_ends_of_a_bound_are_on_the_line_and_inside_the_picture(run: Run) -> None:
    spec = spec_of(run)
    foot = spec["layer"][1]["data"]["values"][0]
    assert foot["y"] == pytest.approx(foot["x"] * 20e9)
    bottom = spec["layer"][4]["encoding"]["y"]["scale"]["domain"][0]
    assert foot["y"] >= bottom * 0.999


def test_variants_differ_in_shape_and_in_color(run: Run) -> None:
    marks = spec_of(run)["layer"][4]["encoding"]
    for channel in ("shape", "color"):
        scale = marks[channel]["scale"]
        assert scale["domain"] == ["eager", "inductor"]
        assert len(set(scale["range"])) == 2


def test_the_description_says_it_in_words(run: Run) -> None:
    roofline = found_with(run, PEAK)
    ((key, peak),) = roofline.peaks
    description = roofline_description(key, peak, roofline)
    assert "4 marks from 56% to 95% of their roofline bounds" in description
    assert "100 GFLOP/s and 20.0 GB/s" in description


def test_the_standalone_picture_has_its_colors(run: Run) -> None:
    write_peak(PEAK)
    svg = to_roofline_svg(run)
    root = ET.fromstring(svg)  # noqa: S314 - we wrote it
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme:dark" in svg
    used = set(re.findall(r"var\((--[a-z]+)\)", svg))
    style, _, dark = svg.partition("<style>")[2].partition("</style>")[0].partition("@media")
    for colours, page in ((style, "#fdfdfc"), (dark, "#15181b")):
        assert used <= set(re.findall(r"(--[a-z]+):#", colours)), colours
        assert f"--page:{page};" in colours
    texts = {element.text for element in root.iter() if element.tag.endswith("text")}
    assert {"matmul size=1000", "matmul-vector", "eager", "inductor"} <= texts
    assert "<script" not in svg


def test_no_picture_says_why(run: Run, tmp_path: Path) -> None:
    with pytest.raises(NothingToDo) as caught:
        to_roofline_svg(run)
    assert "torchyard machine peak --threads 2" in caught.value.why
    with pytest.raises(NothingToDo) as caught:
        to_roofline_svg(write_run(tmp_path / "other"))
    assert "none of its workloads" in caught.value.why


def test_the_page_has_the_picture_and_the_table(run: Run) -> None:
    write_peak(PEAK)
    page = Page(to_html(run))
    assert "#roofline" in {link.get("href") for link in page.all("a")}
    labels = [svg.get("aria-label", "") for svg in page.all("svg")]
    assert any(label.startswith("Roofline of cpu, float32, 2 threads") for label in labels)
    assert any("bfloat16" in text and "torchyard machine peak" in text for text in page.texts)
    assert "80%" in {text.strip() for text in page.texts}


def test_a_page_without_kernels_has_no_such_part(tmp_path: Path) -> None:
    write_peak(PEAK)
    page = to_html(write_run(tmp_path / "other"))
    assert "roofline" not in page.lower()


@pytest.mark.parametrize("text", HOSTILE)
def test_names_from_outside_stay_text(run: Run, text: str) -> None:
    hostile = Workload(suite="kernels", name=text)
    one = row(hostile, "inductor", metrics(1.0, flops=1e9, moved=1e9), metrics(1.0))
    wild = replace(run, comparisons=(one,))
    write_peak(PEAK)
    svg = to_roofline_svg(wild)
    ET.fromstring(svg)  # noqa: S314 - we wrote it
    assert "<script" not in svg.lower()
    assert "\x1b" not in to_roofline_text(wild)
    page = Page(to_html(wild))
    assert not [tag for tag, _ in page.elements if tag in {"img", "iframe"}]


def test_a_copy_for_sharing_keeps_its_roofline(run: Run) -> None:
    write_peak(PEAK)
    assert len(roofline_of(redacted_run(run)).peaks) == 1
    assert FACTS["cpu"] == "Example 9000"
