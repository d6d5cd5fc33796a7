"""Compiled programs: planted waste is found at its line, nothing is found in clean ones, results stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters

from tests.values.compiled_corpus import CLEAN, PLANTED, REMOVED
from tests.values.corpus.profiling import SEED
from tests.values.corpus.program import Program, Waste
from torchyard.worker.values.exchange import Options
from torchyard.worker.values.findings import Finding
from torchyard.worker.values.profiling_session import ProfilingSession

pytestmark = [
    pytest.mark.torch,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*global hooks on modules:UserWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start with an empty cache of the compiler, and of source lines."""
    folder = tmp_path_factory.mktemp("compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        yield folder


def _watched(program: Program, cache: Path) -> ProfilingSession:
    torch._dynamo.reset()
    torch.manual_seed(SEED)
    session = ProfilingSession(Options(prove=False), cache=str(cache / "torchyard"))
    session.start()
    try:
        program.run()
    finally:
        session.stop()
    return session


def _is(finding: Finding, waste: Waste, program: Program) -> bool:
    name, _, sources = finding.operator.rstrip(")").partition(" (")
    operators = {name, *(f"aten::{source}" for source in sources.split(", "))}
    return (
        finding.pattern == waste.pattern
        and (finding.place.file, finding.place.line) == (program.file, waste.line)
        and waste.operator in operators
    )


@pytest.mark.parametrize("program", PLANTED, ids=lambda program: program.name)
def test_planted_waste_is_found_at_its_line(program: Program, compiler_cache: Path) -> None:
    (waste,) = program.wastes
    session = _watched(program, compiler_cache)
    findings = session.findings.all()
    assert [
        (one.pattern, one.operator, one.place.line)
        for one in findings
        if not _is(one, waste, program)
    ] == []
    assert len(findings) == 1
    assert session.kernels.counts()["kernel_calls"] > 0


@pytest.mark.parametrize("program", PLANTED[:4], ids=lambda program: program.name)
def test_planted_waste_keeps_its_line_if_the_compiler_takes_it_from_its_cache(
    program: Program, compiler_cache: Path
) -> None:
    _watched(program, compiler_cache)
    hits = (
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )
    (finding,) = _watched(program, compiler_cache).findings.all()
    assert _is(finding, program.wastes[0], program)
    now = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    assert now > hits


@pytest.mark.parametrize("program", [*REMOVED, *CLEAN], ids=lambda program: program.name)
def test_nothing_is_found_in_clean_programs(program: Program, compiler_cache: Path) -> None:
    session = _watched(program, compiler_cache)
    assert [
        (one.pattern, one.operator, one.place.line, one.detail) for one in session.findings.all()
    ] == []
    assert session.kernels.counts()["kernel_calls"] > 0
    assert session.kernels.why_not == ""


@pytest.mark.parametrize("program", [*PLANTED, *CLEAN], ids=lambda program: program.name)
def test_results_and_compilations_stay_the_same(
    program: Program, compiler_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch._dynamo.reset()
    torch.manual_seed(SEED)
    counters.clear()
    program.run()
    printed, graphs = capsys.readouterr().out, counters["stats"]["unique_graphs"]
    counters.clear()
    _watched(program, compiler_cache)
    assert capsys.readouterr().out == printed
    assert counters["stats"]["unique_graphs"] == graphs
