"""Software of two sides: what differs, and which parts it may explain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.why.synthetic import source
from torchyard.builds.build_folders import BuildFolder, BuildsDirectory
from torchyard.builds.record import BuildRecord, ComponentRecord, RecipeIdentity, write_record
from torchyard.core.study import Target
from torchyard.why.model import Part, Source
from torchyard.why.software import (
    Software,
    library_links,
    record_facts,
    software_differences,
)

SHOW = """PyTorch built with:
  - GCC {gcc}
  - C++ Version: 201703
  - Intel(R) MKL-DNN v{onednn} (Git Hash N/A)
  - OpenMP 201511 (a.k.a. OpenMP 4.5)
  - LAPACK is enabled (usually provided by MKL)
  - CPU capability usage: {capability}
  - Build settings: BLAS_INFO=open, BUILD_TYPE=Release, CXX_FLAGS={flags}, TORCH_VERSION={torch},
"""
MATMUL = source("up", "addmm", line=1)
NORM = source("norm", "native_layer_norm", line=2)
TARGET = Target(name="here", python="/usr/bin/python3")


def answer(
    *,
    torch: str = "2.6.0",
    gcc: str = "11.2",
    onednn: str = "3.5.3",
    capability: str = "SVE256",
    flags: str = "-O2 -fopenmp",
    libraries: tuple[tuple[str, str, int], ...] = (("libopenblas", "0.3.20", 100),),
) -> dict[str, object]:
    fields = {"gcc": gcc, "onednn": onednn, "capability": capability, "flags": flags}
    return {
        "torch": torch,
        "git": "",
        "python": "3.11.9",
        "show": SHOW.format(torch=torch, **fields),
        "parallel": "ATen/Parallel:\n\tat::get_num_threads() : 2\n",
        "libraries": [list(one) for one in libraries],
        "primitives": [],
    }


def software(**fields: object) -> Software:
    return Software.of(answer(**fields), TARGET)  # type: ignore[arg-type]


def part(*sources: Source, named: bool = True) -> Part:
    return Part(
        kind="operators",
        name="part",
        baseline_ns=1e6,
        candidate_ns=2e6,
        low_ns=0.9e6,
        high_ns=1.1e6,
        p_value=0.001,
        adjusted_p=0.001,
        named=named,
        sources=sources,
    )


def links(one: Software, other: Software, *parts: Part) -> list[str]:
    differences = software_differences(one, other)
    return [text for _, text in library_links(parts, one, other, differences)]


def test_facts_that_differ_are_listed_once() -> None:
    libraries = (("libgomp", "of GCC 14.2", 10), ("libopenblas", "0.3.29", 100))
    other = software(torch="2.13.0", gcc="13.3", flags="-O3 -fopenmp", libraries=libraries)
    texts = {
        one.name: (one.group, one.baseline, one.candidate)
        for one in software_differences(software(), other)
    }
    assert texts == {
        "version": ("torch", "2.6.0", "2.13.0"),
        "compiler": ("torch", "GCC 11.2", "GCC 13.3"),
        "CXX_FLAGS": ("torch", "-O2", "-O3"),
        "libopenblas": ("library", "0.3.20 (100 B)", "0.3.29 (100 B)"),
        "libgomp": ("library", "none", "of GCC 14.2 (10 B)"),
    }


def test_the_same_software_has_no_difference_and_no_link() -> None:
    assert software_differences(software(), software()) == ()
    assert links(software(), software(), part(MATMUL), part(NORM)) == []


def test_equal_versions_of_different_files_differ() -> None:
    other = software(libraries=(("libopenblas", "0.3.20", 101),))
    (difference,) = software_differences(software(), other)
    assert (difference.baseline, difference.candidate) == ("0.3.20 (100 B)", "0.3.20 (101 B)")


def test_switches_are_compared_by_meaning() -> None:
    sides = [
        software(flags=f"-O2, USE_MKLDNN={one}, USE_CUDA={two}")
        for one, two in (("1", "0"), ("ON", "OFF"), ("ON", "ON"))
    ]
    assert software_differences(sides[0], sides[1]) == ()
    (difference,) = software_differences(sides[1], sides[2])
    assert (difference.name, difference.baseline, difference.candidate) == (
        "USE_CUDA",
        "none",
        "ON",
    )


def test_two_copies_of_a_runtime_are_both_shown() -> None:
    other = software(libraries=(("libgomp", "of GCC 10", 1), ("libgomp", "of GCC 14", 2)))
    texts = {one.name: one.candidate for one in software_differences(software(), other)}
    assert texts["libgomp"] == "of GCC 10 (1 B), of GCC 14 (2 B)"


NEW_BLAS = software(libraries=(("libopenblas", "0.3.29", 100),))


def test_a_matrix_product_may_be_served_by_the_blas_that_changed() -> None:
    (text,) = links(software(), NEW_BLAS, part(MATMUL))
    assert text == "may be served by libopenblas 0.3.20 (100 B) -> 0.3.29 (100 B)"


def test_other_operators_are_not_linked_with_a_blas() -> None:
    assert links(software(), NEW_BLAS, part(NORM)) == []
    (text,) = links(software(), software(gcc="13.3"), part(NORM))
    assert text == "computed by torch itself, may depend on compiler GCC 11.2 -> GCC 13.3"


def test_parts_that_are_not_significant_are_not_linked() -> None:
    silent = part(MATMUL, named=False)
    assert links(software(), NEW_BLAS, silent) == []
    changed = replace(NEW_BLAS, primitives=((MATMUL, "matmul", "gemm:acl"),))
    assert links(changed, changed, silent) == []
    assert links(software(), changed, silent) == ["oneDNN executed nothing -> 1x matmul (gemm:acl)"]


def test_reported_primitives_are_evidence() -> None:
    changed = replace(software(), primitives=((MATMUL, "matmul", "gemm:acl"),) * 2)
    (text,) = links(changed, NEW_BLAS, part(MATMUL))
    assert text.startswith("oneDNN executed 2x matmul (gemm:acl) -> nothing; may be served by ")
    assert "libopenblas 0.3.20" in text


def test_a_blas_is_not_suspected_where_onednn_computes_both_sides() -> None:
    primitives = ((MATMUL, "matmul", "gemm:acl"),)
    one, other = (replace(side, primitives=primitives) for side in (software(), NEW_BLAS))
    assert links(one, other, part(MATMUL)) == ["oneDNN executed 1x matmul (gemm:acl) on both sides"]


def test_primitives_of_other_operators_are_no_evidence() -> None:
    changed = replace(software(), primitives=((NORM, "layer_normalization", "simple:any"),))
    (text,) = links(changed, NEW_BLAS, part(MATMUL))
    assert "oneDNN" not in text


def test_primitives_of_compiled_code_count_by_class() -> None:
    changed = replace(
        software(), primitives=((None, "matmul", "brg:sve"), (None, "reorder", "any"))
    )
    (text,) = links(software(), changed, part(MATMUL))
    assert text == "oneDNN executed nothing -> 1x matmul (brg:sve)"


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuildsDirectory:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    home = BuildsDirectory.default()
    for name, blas in (("one", "OpenBLAS"), ("two", "Eigen")):
        folder = home.builds / name
        BuildFolder(folder=folder).record_file.parent.mkdir(parents=True)
        component = ComponentRecord(name="pytorch", version="2.6.0", options={"BLAS": blas})
        recipe = RecipeIdentity(name="pytorch")
        python = str(folder / "python")
        record = BuildRecord(name=name, recipe=recipe, components=(component,), python=python)
        write_record(folder, record)
    return home


def test_build_records_are_compared(builds: BuildsDirectory) -> None:
    one, other, stranger = (
        replace(software(), record=record_facts(Target(name=name, python=str(path))))
        for name, path in (
            ("one", builds.builds / "one" / "python"),
            ("two", builds.builds / "two" / "python"),
            ("stranger", Path("/usr/bin/python3")),
        )
    )
    (difference,) = software_differences(one, other)
    assert (difference.group, difference.name) == ("build record", "pytorch: BLAS")
    assert (difference.baseline, difference.candidate) == ("OpenBLAS", "Eigen")
    (difference,) = software_differences(one, stranger)
    assert (difference.name, difference.baseline, difference.candidate) == (
        "recipe",
        "pytorch",
        "none",
    )
