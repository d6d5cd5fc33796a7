"""No program of the collection gets a false proof, and real waste is proven."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.values.adversary.program import Program  # noqa: E402
from tests.values.adversary.register import FALSE, TRUE  # noqa: E402
from torchyard.worker.values.proofs.certainty import PROVEN, TESTED  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

PROFILE_ALL = Path(__file__).parent / "adversary" / "profile_all.py"
DEPTHS = ("fast", "deep")
_LIMIT_S = 900


@pytest.fixture(scope="module")
def profiles() -> Any:
    """The findings of every program. One process for all of them: most of the time goes to starting."""
    done = subprocess.run(
        [sys.executable, str(PROFILE_ALL)],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_collection_is_large_enough() -> None:
    assert len(FALSE) >= 70
    assert len(TRUE) >= 40
    assert len({program.name for program in (*FALSE, *TRUE)}) == len(FALSE) + len(TRUE)


def test_no_false_proof(profiles: Any) -> None:
    proven = [
        (program.name, depth, found["operator"], found["line"], found["why"])
        for program in FALSE
        for depth in DEPTHS
        for found in profiles[program.name][depth]
        if found["certainty"] == PROVEN
    ]
    assert proven == []


def test_the_advice_of_a_false_proof_would_change_results(profiles: Any) -> None:
    harmless = [one.name for one in FALSE if not profiles[one.name]["advice changes"]]
    assert harmless == []


def test_true_waste_is_proven_at_both_depths(profiles: Any) -> None:
    missed = [
        (program.name, depth, profiles[program.name][depth])
        for program in TRUE
        for depth in DEPTHS
        if not _proven(program, profiles[program.name][depth])
    ]
    assert missed == []


def test_the_advice_of_a_proof_changes_nothing(profiles: Any) -> None:
    harmful = [one.name for one in TRUE if profiles[one.name]["advice changes"]]
    assert harmful == []


def test_deep_says_no_less_than_fast(profiles: Any) -> None:
    order = [PROVEN, TESTED]
    less = []
    for name, said in profiles.items():
        for found in said["fast"]:
            if found["certainty"] not in order:
                continue
            same = [
                deep["certainty"]
                for deep in said["deep"]
                if (deep["pattern"], deep["line"]) == (found["pattern"], found["line"])
            ]
            surer = order[: order.index(found["certainty"]) + 1]
            if not any(certainty in surer for certainty in same):
                less.append((name, found, same))
    assert less == []


def test_the_writes_of_a_program_are_its_own(profiles: Any) -> None:
    """A fill, copy or product that the program asked for is never reported as work inside torch."""
    inside = [
        (program.name, found)
        for program in TRUE
        for found in profiles[program.name]["deep"]
        if found["line"] in program.lines and found["path"]
    ]
    assert inside == []


def _proven(program: Program, found: list[dict[str, Any]]) -> bool:
    return any(one["certainty"] == PROVEN and one["line"] in program.lines for one in found)


def _start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROFILE_ALL.with_name("false_outside.py")), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables},
    )


def _without_proofs(process: subprocess.Popen[str], least: int) -> None:
    text, _ = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 0, text[-3000:]
    profiles = json.loads(text.splitlines()[-1])
    assert len(profiles) >= least
    proven = [
        (name, depth, found)
        for name, said in profiles.items()
        for depth in DEPTHS
        for found in said[depth]
        if found["certainty"] == PROVEN
    ]
    assert proven == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_collectives_are_not_proven(size: int) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    ranks = [_start("gloo", str(rank), str(size), port) for rank in range(size)]
    for process in ranks:
        _without_proofs(process, 5)


@pytest.mark.slow
def test_code_in_cpp_is_not_proven(tmp_path: Path) -> None:
    _without_proofs(_start("extension", TORCH_EXTENSIONS_DIR=str(tmp_path)), 4)


@pytest.mark.slow
def test_compiled_functions_are_not_proven(tmp_path: Path) -> None:
    _without_proofs(_start("compiled", TORCHINDUCTOR_CACHE_DIR=str(tmp_path)), 2)
