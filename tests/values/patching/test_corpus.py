"""No patch where the tempting one is wrong, the expected patch where it is right."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from tests.values.patching import (  # noqa: E402
    right_patches,
    wrong_operands,
    wrong_ordinary,
    wrong_settings,
    wrong_steps,
    wrong_writes,
)
from tests.values.patching.case import Case  # noqa: E402
from torchyard.values.model import read_profile  # noqa: E402
from torchyard.values.patching.candidates import patch_of  # noqa: E402
from torchyard.values.patching.model import OPTIONAL_CLASSES, NotProposed, Patch  # noqa: E402
from torchyard.values.patching.source_file import SourceFile  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.timeout(1800)]

WRONG = (
    *wrong_writes.CASES,
    *wrong_steps.CASES,
    *wrong_settings.CASES,
    *wrong_operands.CASES,
    *wrong_ordinary.CASES,
)
RIGHT = right_patches.CASES
_SCRIPT = Path(__file__).parent / "profile_cases.py"
_ALL_CLASSES = OPTIONAL_CLASSES


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Patches of one program, reasons for none, and whether its change alters the output."""

    patches: tuple[Patch, ...]
    reasons: tuple[str, ...]
    changed: tuple[str, ...]
    """The source with each patch."""
    matters: bool


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Of all programs, profiled in one process."""
    home = tmp_path_factory.mktemp("programs")
    done = subprocess.run(
        [sys.executable, str(_SCRIPT), str(home)],
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    matters = json.loads(done.stdout.splitlines()[-1])
    return {
        case.name: _outcome(case, home / case.name, matters[case.name]) for case in (*WRONG, *RIGHT)
    }


def _outcome(case: Case, folder: Path, matters: bool) -> Outcome:
    patches, reasons, changed = [], [], []
    for finding in read_profile(folder / "profile.json").findings:
        try:
            source = SourceFile.read(Path(finding.place.file))
            patch = patch_of(
                finding, source, main=folder / "program.py", root=folder, classes=_ALL_CLASSES
            )
        except NotProposed as why:
            reasons.append(f"{finding.pattern} line {finding.place.line}: {why}")
            continue
        patches.append(patch)
        changed.append(source.edited(patch.edits).decode())
    return Outcome(
        patches=tuple(patches), reasons=tuple(reasons), changed=tuple(changed), matters=matters
    )


def test_the_corpus_is_large_enough() -> None:
    assert len(WRONG) >= 60
    assert len(RIGHT) >= 18
    assert len({case.name for case in (*WRONG, *RIGHT)}) == len(WRONG) + len(RIGHT)


def test_tempting_patches_change_results(outcomes: dict[str, Outcome]) -> None:
    assert [case.name for case in WRONG if not outcomes[case.name].matters] == []


def test_right_patches_change_no_results(outcomes: dict[str, Outcome]) -> None:
    assert [case.name for case in RIGHT if outcomes[case.name].matters] == []


def test_no_wrong_patch_passes_the_source_analysis(outcomes: dict[str, Outcome]) -> None:
    wrong = {
        case.name: outcomes[case.name].changed for case in WRONG if outcomes[case.name].patches
    }
    assert wrong == {}


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.name)
def test_the_right_patch_is_exactly_the_expected_change(
    case: Case, outcomes: dict[str, Outcome]
) -> None:
    outcome = outcomes[case.name]
    # Two findings of one chain can have the same patch, which is proposed once.
    assert {patch.kind for patch in outcome.patches} == {case.kind}, outcome.reasons
    assert set(outcome.changed) == {case.changed}
    assert len({patch.edits for patch in outcome.patches}) == 1


def test_most_tempting_programs_have_a_finding(outcomes: dict[str, Outcome]) -> None:
    """A program without findings would test nothing: refusals must be for a reason."""
    silent = [case.name for case in WRONG if not outcomes[case.name].reasons]
    assert len(silent) <= len(WRONG) // 4, silent


@pytest.mark.parametrize(
    "name",
    [
        "source_that_is_sometimes_the_buffer",
        "buffer_that_a_function_sometimes_returns",
        "fill_before_a_copy_of_a_view",
    ],
)
def test_a_fill_that_an_alias_may_read_is_not_proven(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    reasons = [one for one in outcomes[name].reasons if "not proven" in one]
    assert any(one.startswith("dead initialisation") for one in reasons), outcomes[name].reasons
