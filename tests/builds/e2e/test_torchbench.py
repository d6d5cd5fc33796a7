"""One model of a checkout, installed into its own target from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.builds.e2e.build_cli import Cli

TREE = Path(__file__).parents[2] / "torchbench_tree"


@pytest.mark.slow
def test_a_model_is_installed_over_a_base_without_network(cli: Cli) -> None:
    source = ("--set", "source.use=folder", "--set", f"source.folder.path={TREE}")
    cli.build("torchbench", *source, "--set", "model=with_install", "--base", sys.executable)
    python = cli.folder("torchbench-main-with_install") / "bin" / "python"
    code = (
        "import importlib.util as u, torchyard_tiny_extra as t; "
        "print(t.WIDTH, u.find_spec('torchbenchmark').origin)"
    )
    said = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    width, origin = said.stdout.split()
    assert width == "8"
    assert Path(origin).is_relative_to(cli.folder("torchbench-main-with_install") / "trees")
    # The base is as it was.
    assert subprocess.run(
        [sys.executable, "-c", "import torchyard_tiny_extra"], check=False, capture_output=True
    ).returncode
