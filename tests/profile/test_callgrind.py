"""callgrind: parsing, and real runs where valgrind is installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from torchyard.core.study import Target
from torchyard.errors import StepFailed
from torchyard.profile.tool_run import plan_run, run_planned
from torchyard.profile.tools.callgrind import annotated_rows, explain_failure
from torchyard.profile.tools.interface import Job, TargetFacts, ToolOptions

ANNOTATED = """--------------------------------------------------------------------------------
Profile data file 'callgrind.out.1' (creator: callgrind-3.19.0)
--------------------------------------------------------------------------------
Events recorded:  Ir

--------------------------------------------------------------------------------
Ir
--------------------------------------------------------------------------------
14,470,578 (100.0%)  PROGRAM TOTALS

--------------------------------------------------------------------------------
Ir                  file:function
--------------------------------------------------------------------------------
1,923,698 (13.29%)  /src/obmalloc.c:_PyObject_Free'2 [/usr/lib/libpython3.11.so.1.0]
1,000,000 ( 6.91%)  /src/obmalloc.c:_PyObject_Free [/usr/lib/libpython3.11.so.1.0]
  790,010 ( 5.46%)  ???:at::native::add(at::Tensor const&) [/t/lib/libtorch_cpu.so]
   10,010 ( 0.01%)  ???:0x0000000000001234 [???]
"""


def test_rows_of_recursion_are_one_function() -> None:
    free, add, unknown = annotated_rows(ANNOTATED)
    assert (free.name, free.where, free.self_cost) == (
        "_PyObject_Free",
        "/src/obmalloc.c",
        2_923_698,
    )
    assert (add.name, add.where) == ("at::native::add(at::Tensor const&)", "/t/lib/libtorch_cpu.so")
    assert unknown.name == "0x0000000000001234"


@pytest.mark.parametrize("text", ["", "nonsense\n", "1,0 (x%) a:b\n"])
def test_texts_without_rows(text: str) -> None:
    assert annotated_rows(text) == ()


def job(folder: Path) -> Job:
    return Job(python="python", words=("x.py",), folder=folder, facts=TargetFacts())


@pytest.mark.parametrize(
    "line",
    [
        (
            "valgrind: m_debuginfo/readdwarf.c:2761 (copy_convert_CfiExpr_tree): Assertion "
            "'srcix >= 0 && srcix < VG_(sizeXA)(srcxa)' failed."
        ),
        "valgrind: the 'impossible' happened:",
        "==7== valgrind: Unrecognised instruction at address 0x4010a3.",
    ],
)
def test_valgrinds_own_failures_are_distinguished_from_the_programs(
    tmp_path: Path, line: str
) -> None:
    (tmp_path / "valgrind.log").write_text(f"==7== Callgrind\n{line}\n==7== more\n")
    with pytest.raises(StepFailed, match="valgrind failed, not the program") as caught:
        explain_failure(job(tmp_path))
    assert caught.value.log == str(tmp_path / "valgrind.log")
    assert "newer valgrind" in caught.value.hint


def test_a_log_without_failures_says_nothing(tmp_path: Path) -> None:
    explain_failure(job(tmp_path))
    (tmp_path / "valgrind.log").write_text("==7== I   refs:      14,470,578\n")
    explain_failure(job(tmp_path))


@pytest.mark.skipif(shutil.which("vgdb") is None, reason="valgrind is not installed")
@pytest.mark.slow
def test_a_real_run_counts_the_program_and_not_its_start(tmp_path: Path) -> None:
    """In an interpreter without torch: some versions of valgrind cannot load torch."""
    bare = Path(sys.base_prefix) / "bin" / "python3"
    if not bare.is_file():
        pytest.skip("this Python has no interpreter of its own")
    script = tmp_path / "busy.py"
    script.write_text(
        "import os, sys\n"
        "if os.fork() == 0:\n    os._exit(0)\nos.wait()\n"
        "sum(number * number for number in range(3000))\nprint('ends')\nsys.exit(4)\n"
    )
    planned = plan_run(
        "callgrind", Target(name="bare", python=str(bare)), (str(script),), ToolOptions()
    )
    if planned.job.facts.torch_folder is not None:
        pytest.skip("this interpreter has torch")
    profile, path = run_planned(planned, folder=tmp_path / "kept", report_progress=lambda _: None)
    assert profile.exit_code == 4
    assert profile.unit == "instructions"
    # Starting Python takes some 20 million instructions; these are not among them.
    assert 100_000 < profile.total_cost < 15_000_000
    assert any("PyLong" in row.name or "PyEval" in row.name for row in profile.rows)
    assert (path.parent / profile.files[0].name).is_file()
    assert "the target has no torch: the program has no steps" in profile.notes
