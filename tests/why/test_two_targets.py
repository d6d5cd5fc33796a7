"""Build against build: TORCHYARD_TEST_TARGETS names other interpreters, joined by colons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.second_target, pytest.mark.torch]

OTHERS = [path for path in os.environ.get("TORCHYARD_TEST_TARGETS", "").split(":") if path]


@pytest.mark.skipif(not OTHERS, reason="TORCHYARD_TEST_TARGETS names none")
def test_the_software_of_both_targets_is_compared(tmp_path: Path) -> None:
    home = {"TORCHYARD_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    shown = ""
    for command in (
        f"bench kernels/matmul --target mine={sys.executable} --target other={OTHERS[0]} --time 5s",
        "why --launches 2 --seconds 2 --json",
    ):
        completed = subprocess.run(
            [sys.executable, "-m", "torchyard", *command.split()],
            env=home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert completed.returncode in {0, 6}, completed.stderr
        shown = completed.stdout
    result = json.loads(shown)["attribution"]
    versions = {one["name"]: one for one in result["software"] if one["group"] == "torch"}
    assert versions["version"]["baseline"] != versions["version"]["candidate"]
    assert any(one["group"] == "library" for one in result["software"])
    assert result["memory"]
