"""The recipe `torchbench`: steps for one model, and what their commands do in a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.plan import Command, Plan, Step
from torchyard.builds.planner import default_name, make_plan
from torchyard.builds.recipe_file import BuildRequest, resolve
from torchyard.errors import UsageError

ENVIRON = {"PATH": "/usr/bin:/bin", "HOME": "/home/somebody"}
TREE = Path(__file__).parents[1] / "torchbench_tree"

# Stands for the environment's interpreter: writes down how it is started, and says which torch it has.
PYTHON = """\
#!/bin/sh
here=$(dirname "$0")
if [ "$1" = -c ]; then cat "$here/torch"; exit; fi
echo "$(basename "$PWD"): $*" >> "$here/calls"
if [ "$1" = install.py ]; then . "$here/install"; fi
"""


def request(**settings: Any) -> BuildRequest:
    source = {"source.use": "folder", "source.folder.path": str(TREE)}
    return BuildRequest(recipe="torchbench", settings={"": {**source, **settings}})


def planned(folder: Path, **settings: Any) -> Plan:
    return make_plan(
        request(**settings), home=BuildsDirectory(folder=folder / "home"), environ=ENVIRON
    )


def step_of(plan: Plan, name: str) -> Step:
    return next(step for step in plan.steps if step.name == f"torchbench/{name}")


class Checkout:
    """Runs a step's command in the tests' own tree, with another interpreter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)
        (folder / "torch").write_text("2.11.0\n")
        (folder / "install").write_text("")

    def run(self, step: str, model: str) -> subprocess.CompletedProcess[str]:
        plan = planned(self.folder, model=model)
        (command,) = step_of(plan, step).actions
        assert isinstance(command, Command)
        replaced = {plan.components[0].tree: str(TREE), plan.components[0].python: str(self.python)}
        argv = [replaced.get(word, word) for word in command.argv]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

    @property
    def calls(self) -> str:
        path = self.folder / "calls"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_without_a_model_only_the_checkout_is_made(tmp_path: Path) -> None:
    names = [step.name for step in planned(tmp_path).steps if step.component == "torchbench"]
    assert names == [
        "torchbench/fetch",
        "torchbench/tree",
        "torchbench/requirements",
        "torchbench/verify",
    ]


def test_a_model_gets_its_requirements_with_the_network_and_its_install_without(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path, model="with_install")
    requirements, install = (step_of(plan, f"model-{what}") for what in ("requirements", "install"))
    assert requirements.needs == ("torchbench/requirements",)
    assert requirements.network
    assert install.needs == (requirements.name,)
    assert not install.network
    assert ("PIP_NO_INDEX", "1") in install.variables
    assert step_of(plan, "verify").needs == (install.name,)


def test_an_install_that_downloads_is_allowed_on_request(tmp_path: Path) -> None:
    install = step_of(
        planned(tmp_path, model="with_install", **{"install-online": True}), "model-install"
    )
    assert install.network
    assert "PIP_NO_INDEX" not in dict(install.variables)


def test_each_model_has_a_build_of_its_own() -> None:
    assert default_name(resolve(request())) == "torchbench-main"
    assert default_name(resolve(request(model="tiny_cnn"))) == "torchbench-main-tiny_cnn"


@pytest.mark.parametrize("model", ["../../etc", "a/b", ".hidden", "a b", "$(id)"])
def test_a_model_is_the_name_of_a_folder(tmp_path: Path, model: str) -> None:
    with pytest.raises(UsageError, match="not a valid model name"):
        planned(tmp_path, model=model)


def test_other_options_are_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no option 'modle'") as caught:
        planned(tmp_path, modle="tiny_cnn")
    assert "model" in caught.value.hint
    with pytest.raises(UsageError, match="install-online is 'perhaps'"):
        planned(tmp_path, model="tiny_cnn", **{"install-online": "perhaps"})


def test_commands_run_in_the_folder_of_the_model(checkout: Checkout) -> None:
    assert checkout.run("model-requirements", "with_install").returncode == 0
    assert checkout.run("model-install", "with_install").returncode == 0
    pip, install = checkout.calls.splitlines()
    assert pip.startswith("with_install: -m pip install")
    assert pip.endswith("-r requirements.txt")
    assert install == "with_install: install.py"


def test_a_model_without_files_to_install_needs_nothing(checkout: Checkout) -> None:
    for step, said in (("requirements", "requirements.txt"), ("install", "install.py")):
        ended = checkout.run(f"model-{step}", "tiny_cnn")
        assert (ended.returncode, ended.stdout) == (0, f"tiny_cnn has no {said}\n")
    assert checkout.calls == ""


def test_canary_models_are_found(checkout: Checkout) -> None:
    assert "aborts has no install.py" in checkout.run("model-install", "aborts").stdout


def test_a_model_that_is_not_there(checkout: Checkout) -> None:
    ended = checkout.run("model-install", "nobody")
    assert (ended.returncode, ended.stderr) == (1, "the checkout has no model nobody\n")


def test_an_install_that_fails_or_replaces_torch_ends_the_step(checkout: Checkout) -> None:
    (checkout.folder / "install").write_text("exit 3\n")
    assert checkout.run("model-install", "with_install").returncode == 3
    (checkout.folder / "install").write_text('echo 2.10.0 > "$here/torch"\n')
    ended = checkout.run("model-install", "with_install")
    assert ended.returncode == 1
    assert "install.py of with_install replaced torch 2.11.0 by 2.10.0" in ended.stderr
