"""`torchyard values fix` on real programs: profile, patch, verify, apply, undo."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.values.patching import wrong_steps, wrong_writes  # noqa: E402
from tests.values.patching.case import Case  # noqa: E402
from torchyard.core.study import Target  # noqa: E402
from torchyard.values.model import ProfileRequest  # noqa: E402
from torchyard.values.patching.model import FixReport, NotProposed  # noqa: E402
from torchyard.values.patching.program_copy import ProgramCopy  # noqa: E402
from torchyard.values.patching.report import fix_text  # noqa: E402
from torchyard.values.patching.session import apply_patches, fix_profile  # noqa: E402
from torchyard.values.patching.verification import Verifier  # noqa: E402
from torchyard.values.profiled_run import profile_program  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(3600)]

_LIMIT_S = 3000
PROGRAM = """\
import sys

import torch

from layers import doubled

torch.set_num_threads(1)


def copied(x):
    buffer = torch.zeros(512, 1024)
    buffer.copy_(x)
    return buffer


total = torch.zeros(512, 1024)
for step in range(int(sys.argv[1])):
    total += copied(doubled(torch.randn(512, 1024)))
print(total.sum().item())
"""
LAYERS = """\
import torch


def doubled(x):
    result = torch.zeros_like(x)
    torch.mul(x, 2, out=result)
    return result
"""


def run_fix(folder: Path, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "torchyard", "values", "fix", *words],
        cwd=folder,
        env={**os.environ, "TORCHYARD_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


Fixed = tuple[Path, Path, FixReport, Path]


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fixed]:
    """A program of two files: its folder, its profile, the report of its patches and their folder."""
    folder, before = tmp_path_factory.mktemp("program"), Path.cwd()
    (folder / "train.py").write_text(PROGRAM)
    (folder / "layers.py").write_text(LAYERS)
    request = ProfileRequest(
        target=Target(name="here", python=sys.executable), program=("train.py", "6")
    )
    os.chdir(folder)
    try:
        _, path = profile_program(
            request, folder=tmp_path_factory.mktemp("profile"), say=lambda _text: None
        )
        report, place = fix_profile(path, target=request.target, pairs=2)
        yield folder, path, report, place
    finally:
        os.chdir(before)


def test_patches_of_two_files_are_verified_alone_and_together(fixed: Fixed) -> None:
    folder, _, report, place = fixed
    proposed = report.proposed
    assert {(Path(one.file).name, one.kind) for one in proposed} == {
        ("train.py", "uninitialized"),
        ("layers.py", "uninitialized"),
    }, [one.why_not for one in report.proposals]
    for verification, gain in (
        *((one.verification, one.gain) for one in proposed),
        (report.together, report.gain),
    ):
        assert verification.passed
        assert verification.runs == 3
        assert verification.seeds_matter
        assert not verification.rounded
        assert "printed text" in verification.compared
        assert gain.pairs == 2
        assert gain.share is not None
    assert "-    buffer = torch.zeros(512, 1024)\n+    buffer = torch.empty(512, 1024)\n" in (
        report.diff
    )
    assert (folder / "train.py").read_text() == PROGRAM
    assert (folder / "layers.py").read_text() == LAYERS
    assert not (place / "program").exists()


def test_the_diff_is_accepted_by_git(fixed: Fixed, tmp_path: Path) -> None:
    report = fixed[2]
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "layers.py").write_text(LAYERS)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=report.diff, text=True, check=True)
    assert (tmp_path / "train.py").read_text() == PROGRAM.replace(
        "buffer = torch.zeros", "buffer = torch.empty"
    )


def test_apply_changes_the_files_and_says_how_to_undo(fixed: Fixed) -> None:
    folder, path, report, place = fixed
    (folder / "train.py").chmod(0o750)
    applied = apply_patches(report, place)
    changed = (folder / "train.py").read_text()
    assert changed == PROGRAM.replace("buffer = torch.zeros", "buffer = torch.empty")
    assert (folder / "train.py").stat().st_mode & 0o777 == 0o750
    assert "zeros_like" not in (folder / "layers.py").read_text()
    # The profile is of the files before: nothing is proposed for the changed ones.
    again, _ = fix_profile(path, target=Target(name="here", python=sys.executable))
    assert not again.proposed
    assert {one.why_not for one in again.proposals if Path(one.file).name == "train.py"} == {
        "the file has changed since the program was profiled"
    }
    text = fix_text(applied, folder=str(place))
    undo = [line.partition("to undo: ")[2] for line in text.splitlines() if "undo" in line]
    assert len(undo) == 2
    for command in undo:
        subprocess.run(shlex.split(command), check=True)
    assert (folder / "train.py").read_text() == PROGRAM
    assert (folder / "layers.py").read_text() == LAYERS


def _verifier(folder: Path, script: Path, *words: str, patched: Path | None = None) -> Verifier:
    request = ProfileRequest(
        target=Target(name="here", python=sys.executable), program=(str(script), *words)
    )
    place = folder / "runs"
    place.mkdir()
    copy = ProgramCopy(request, folder, place / "copy")
    file = patched or script
    copy.create([file])
    return Verifier(
        copy=copy,
        folder=place,
        original={file: file.read_bytes()},
        profiled_s=1.0,
    )


_SEEN_ON_THESE_VALUES = ("other",)
FORCED = [
    case
    for case in (*wrong_writes.CASES, *wrong_steps.CASES)
    if case.name
    in {
        "overwritten_for_usual_values_only",
        "read_after_an_exception",
        "gradient_read_before_backward",
        "embedding_with_adam",
        "graph_of_one_step",
        "random_numbers_after_a_seed",
    }
]


@pytest.mark.parametrize("case", FORCED, ids=lambda case: case.name)
def test_a_wrong_patch_that_is_forced_fails_verification(case: Case, tmp_path: Path) -> None:
    """The second line of defence: results differ on values that need the work."""
    script = case.write(tmp_path)
    verifier = _verifier(tmp_path, script, *_SEEN_ON_THESE_VALUES)
    verifier.prepare()
    verification = verifier.verify({script: case.changed.encode()})
    assert not verification.passed
    assert verification.why.startswith("with the patch")
    assert script.read_text() == case.source


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("x = 3", "no results to compare"),
        (
            "import time; x = torch.tensor(time.time(), dtype=torch.float64)",
            "differ from run to run",
        ),
        ("raise SystemExit(4)", "does not finish"),
    ],
)
def test_programs_whose_results_cannot_be_compared(tmp_path: Path, body: str, reason: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(f"import torch\n{body}\n")
    with pytest.raises(NotProposed, match=reason):
        _verifier(tmp_path, script).prepare()


def test_a_patch_that_is_not_loaded_is_not_verified(tmp_path: Path) -> None:
    """An installed package is imported from its own folder, whatever the copy contains."""
    script, library = tmp_path / "program.py", tmp_path / "src" / "library.py"
    library.parent.mkdir()
    library.write_text("import torch\nVALUE = torch.ones(3)\n")
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(library.parent)!r})\nimport library\nprint(library.VALUE)\n"
    )
    verifier = _verifier(tmp_path, script, patched=library)
    verifier.prepare()
    verification = verifier.verify({library: b"import torch\nVALUE = torch.zeros(3)\n"})
    assert not verification.passed
    assert "from another place" in verification.why


def test_a_file_that_the_program_writes_is_not_patched(tmp_path: Path) -> None:
    (tmp_path / "program").mkdir()
    script = tmp_path / "program" / "main.py"
    made = """
        import torch


        def copied(x):
            buffer = torch.zeros(64, 256)
            buffer.copy_(x)
            return buffer
        """
    script.write_text(
        textwrap.dedent(
            f"""
            import pathlib, torch
            here = pathlib.Path(__file__).parent
            (here / "made.py").write_text({textwrap.dedent(made)!r})
            import made
            print([made.copied(torch.randn(64, 256)).sum().item() for _ in range(4)])
            """
        )
    )
    done = run_fix(script.parent, "-q", "main.py", home=tmp_path / "home")
    assert done.returncode == 3, done.stderr
    assert "the program writes this file itself" in " ".join(done.stdout.split())


def test_an_interrupt_keeps_the_report(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "layers.py").write_text(LAYERS)
    with subprocess.Popen(
        [sys.executable, "-m", "torchyard", "values", "fix", "train.py", "8"],
        cwd=tmp_path,
        env={**os.environ, "TORCHYARD_HOME": str(tmp_path / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "timing the program" in line:
                break
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=_LIMIT_S)
    assert process.returncode == 130
    assert "Interrupted" in output
    (stored,) = (tmp_path / "home").glob("values/*/fixes/*/fixes.json")
    report = json.loads(stored.read_text())
    assert report["interrupted"]
    assert any(one["verification"]["passed"] for one in report["proposals"])
    assert (tmp_path / "train.py").read_text() == PROGRAM
    assert not list(stored.parent.glob("program"))
