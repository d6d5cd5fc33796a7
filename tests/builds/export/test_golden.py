"""Exports of shipped recipes against golden files.

UPDATE_GOLDEN=1 rewrites them; look at the difference. Texts that belong to other parts (the
meter, make-root.sh) are left out of the plans.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from tests.builds.export.sample_plans import FACTS, REQUESTS, shipped_plan
from torchyard import __version__
from torchyard.builds.commands.run import run
from torchyard.builds.export import EXPORTS, export_plan

GOLDEN = Path(__file__).parent / "golden"
ALL = ("text", "script", "dockerfile", "apptainer", "devcontainer")
GOLDENS = [
    *((name, form) for name in ("arm-stack", "trimmed-root") for form in ALL),
    *((name, "script") for name in ("cpu-arm", "cuda-conda", "rocm-conda", "dev-stack")),
    *((name, "dockerfile") for name in ("cuda-venv", "cuda-conda", "rocm-conda", "dev-stack")),
    *((name, "devcontainer") for name in ("cuda-venv", "rocm-conda")),
    *((name, "text") for name in ("cpu-arm", "cuda-venv", "rocm-conda")),
]


def check(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
    assert text.encode() == path.read_bytes(), f"{name} differs; UPDATE_GOLDEN=1 accepts it"


@pytest.mark.parametrize(("name", "form"), GOLDENS)
def test_golden(name: str, form: str, tmp_path: Path) -> None:
    main, *_ = export_plan(shipped_plan(name, tmp_path), form, FACTS)
    text = main.text.replace(f"torchyard.version {__version__}", "torchyard.version X")
    assert str(tmp_path) not in text
    check(f"{name}.{form}", text)


def test_every_plan_has_a_golden_file_and_no_file_is_left_over() -> None:
    assert {name for name, _ in GOLDENS} == set(REQUESTS)
    files = {path.name for path in GOLDEN.iterdir()}
    assert files == {f"{name}.{form}" for name, form in GOLDENS}


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_scripts_are_shell(name: str, tmp_path: Path) -> None:
    plan = shipped_plan(name, tmp_path)
    (file,) = export_plan(plan, "script", FACTS)
    path = tmp_path / file.name
    path.write_text(file.text)
    shells = [shell for shell in ("sh", "dash", "bash") if shutil.which(shell)]
    for shell in shells:
        subprocess.run([shell, "-n", str(path)], check=True)
    for step in plan.steps:
        assert f"# {step.name}" in file.text or "meter" in step.name or "verify" in step.name
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", "--shell=sh", str(path)], check=True)


@pytest.mark.parametrize("name", sorted(REQUESTS))
@pytest.mark.parametrize("form", ["dockerfile", "apptainer", "devcontainer"])
def test_images_hold_no_path_of_this_machine(name: str, form: str, tmp_path: Path) -> None:
    plan = shipped_plan(name, tmp_path)
    for file in export_plan(plan, form, FACTS):
        for place in ("/yard", "/home/user", str(tmp_path)):
            assert place not in file.text.replace("/opt/torchyard", ""), file.name
        assert f"/opt/torchyard/{plan.name}" in file.text
        assert "meter" not in re.sub(r"parameter|diameter", "", file.text)


def test_the_development_container_builds_the_dockerfile(tmp_path: Path) -> None:
    plan = shipped_plan("cuda-venv", tmp_path)
    definition, dockerfile = export_plan(plan, "devcontainer", FACTS)
    assert definition.name == ".devcontainer/devcontainer.json"
    assert dockerfile.name == ".devcontainer/Dockerfile"
    assert dockerfile.text == export_plan(plan, "dockerfile", FACTS)[0].text
    said = json.loads(definition.text)
    assert said["build"]["dockerfile"] == "Dockerfile"
    assert f"AS {said['build']['target']}\n" in dockerfile.text
    assert said["runArgs"] == ["--gpus", "all"]


def test_the_command_offers_every_format() -> None:
    option = next(one for one in run.params if one.name == "plan_format")
    assert isinstance(option.type, click.Choice)
    assert set(option.type.choices) == set(EXPORTS)
