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
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.values.patching import wrong_steps, wrong_writes  # noqa: E402
from tests.values.patching.case import Case  # noqa: E402
from torchyard.core.study import Target  # noqa: E402
from torchyard.values.model import ProfileRequest  # noqa: E402
from torchyard.values.patching.model import NotProposed  # noqa: E402
from torchyard.values.patching.program_copy import ProgramCopy  # noqa: E402
from torchyard.values.patching.verification import Verifier  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.long, pytest.mark.timeout(900)]

_LIMIT_S = 600
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


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A program of two files in a package-free folder, and the report of its patches."""
    folder = tmp_path_factory.mktemp("program")
    home = tmp_path_factory.mktemp("home")
    (folder / "train.py").write_text(PROGRAM)
    (folder / "layers.py").write_text(LAYERS)
    done = run_fix(folder, "--json", "train.py", "12", home=home)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, home, json.loads(done.stdout)["fixes"]


def test_patches_of_two_files_are_verified_alone_and_together(
    fixed: tuple[Path, Path, Any],
) -> None:
    folder, _, report = fixed
    proposed = [one for one in report["proposals"] if not one["why_not"]]
    assert {(one["file"].rpartition("/")[2], one["kind"]) for one in proposed} == {
        ("train.py", "uninitialized"),
        ("layers.py", "uninitialized"),
    }
    for one in (*proposed, {"verification": report["together"], "gain": report["gain"]}):
        assert one["verification"]["passed"]
        assert one["verification"]["runs"] == 3
        assert one["verification"]["seeds_matter"]
        assert "printed text" in one["verification"]["compared"]
        assert one["gain"]["pairs"] >= 4
        assert one["gain"]["interval"]["low"] <= one["gain"]["share"]
    assert (
        "-    buffer = torch.zeros(512, 1024)\n+    buffer = torch.empty(512, 1024)\n"
        in (report["diff"])
    )
    assert (folder / "train.py").read_text() == PROGRAM
    assert (folder / "layers.py").read_text() == LAYERS


def test_the_diff_applies_with_patch(fixed: tuple[Path, Path, Any], tmp_path: Path) -> None:
    folder, _, report = fixed
    for name in ("train.py", "layers.py"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=report["diff"], text=True, check=True)
    assert (tmp_path / "train.py").read_text() == PROGRAM.replace(
        "buffer = torch.zeros", "buffer = torch.empty"
    )


def test_apply_changes_the_files_and_says_how_to_undo(
    fixed: tuple[Path, Path, Any],
) -> None:
    folder, home, _ = fixed
    (folder / "train.py").chmod(0o750)
    done = run_fix(folder, "latest", "--apply", "-q", home=home)
    assert done.returncode == 0, done.stderr[-3000:]
    changed = (folder / "train.py").read_text()
    assert changed == PROGRAM.replace("buffer = torch.zeros", "buffer = torch.empty")
    assert (folder / "train.py").stat().st_mode & 0o777 == 0o750
    assert "zeros_like" not in (folder / "layers.py").read_text()
    undo = [line.partition("to undo: ")[2] for line in done.stdout.splitlines() if "undo" in line]
    assert len(undo) == 2
    # The profile is of the file before: nothing is proposed for the changed one.
    again = run_fix(folder, "latest", "--apply", "-q", home=home)
    assert again.returncode == 3
    assert "has changed since the program was profiled" in " ".join(again.stdout.split())
    for command in undo:
        subprocess.run(shlex.split(command), cwd=folder, check=True)
    assert (folder / "train.py").read_text() == PROGRAM
    assert (folder / "layers.py").read_text() == LAYERS


def _verifier(folder: Path, script: Path, *words: str) -> Verifier:
    request = ProfileRequest(
        target=Target(name="here", python=sys.executable), program=(str(script), *words)
    )
    place = folder / "runs"
    place.mkdir()
    copy = ProgramCopy(request, folder, place / "copy")
    copy.create([script])
    return Verifier(
        copy=copy,
        folder=place,
        original={script: script.read_bytes()},
        profiled_s=1.0,
    )


_SEEN_ON_THESE_VALUES = ("other",)
FORCED = [
    case
    for case in (*wrong_writes.CASES, *wrong_steps.CASES)
    if case.name
    in {
        "overwritten_for_usual_values_only",
        "accumulated_by_index",
        "read_after_an_exception",
        "every_second_column",
        "scale_from_the_command_line",
        "layer_in_some_steps_with_adam",
        "gradient_read_before_backward",
        "embedding_with_adam",
        "mask_changed_for_unusual_values",
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
        ("import time; x = torch.tensor(time.time())", "differ from run to run"),
        ("raise SystemExit(4)", "does not finish"),
    ],
)
def test_programs_whose_results_cannot_be_compared(tmp_path: Path, body: str, reason: str) -> None:
    script = tmp_path / "program.py"
    script.write_text(f"import torch\n{body}\n")
    with pytest.raises(NotProposed, match=reason):
        _verifier(tmp_path, script).prepare()


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
