"""Components that must match: torch and its companion libraries, oneDNN and ACL; stray variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds.doctor.fake_machine import FakeMachine, running_python, severities
from torchyard.builds.recipe import EnvironmentTable, GitSource, Recipe, Scalar, SourceTable

CURRENT = EnvironmentTable(use="current")


def part(name: str, version: str, **options: Scalar) -> Recipe:
    return Recipe(name=name, version=version, environment=CURRENT, options=options)


class TestCompanions:
    def test_that_fit(self, machine: FakeMachine) -> None:
        recipes = (
            part("pytorch", "2.6.0"),
            part("torchvision", "0.21.0"),
            part("torchaudio", "2.6.0"),
        )
        assert machine.examine(*recipes, only="stack") == ()

    def test_that_do_not_match(self, machine: FakeMachine) -> None:
        recipes = (part("pytorch", "2.9.1"), part("torchvision", "0.21.0"))
        (finding,) = machine.examine(*recipes, only="stack")
        assert finding.severity == "warns"
        assert finding.what == (
            "torchvision 0.21.0 belongs to torch 2.6, but the stack has torch 2.9.1"
        )
        assert finding.fix == "--set torchvision/version=0.24.0"

    def test_against_the_torch_of_a_base(self, machine: FakeMachine) -> None:
        site = machine.folder / "site"
        meta = site / "torch-2.13.0+cpu.dist-info"
        meta.mkdir(parents=True)
        text = "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0+cpu\n"
        (meta / "METADATA").write_text(text, encoding="utf-8")
        machine.variables["PYTHONPATH"] = str(site)
        base = EnvironmentTable(use="venv", base=running_python())
        recipe = Recipe(name="torchvision", version="0.21.0", environment=base)
        (finding,) = machine.examine(recipe, only="stack")
        assert "has torch 2.13.0+cpu" in finding.what
        fitting = Recipe(name="torchvision", version="0.28.0", environment=base)
        assert machine.examine(fitting, only="stack") == ()

    def test_branches_are_not_checked(self, machine: FakeMachine) -> None:
        recipes = (part("pytorch", "main"), part("torchvision", "main"))
        assert machine.examine(*recipes, only="stack") == ()


class TestAcl:
    def torch(self, version: str, onednn: str = "") -> Recipe:
        overrides = {"third_party/ideep/mkl-dnn": onednn} if onednn else {}
        return Recipe(
            name="pytorch",
            version=version,
            environment=EnvironmentTable(use="current", variables={"ACL_ROOT_DIR": "/opt/acl"}),
            source=SourceTable(git=GitSource(url="https://x", overrides=overrides)),
            options={"USE_MKLDNN_ACL": True},
        )

    def test_of_the_stack_outside_the_range(self, machine: FakeMachine) -> None:
        recipes = (part("arm-compute-library", "24.11"), self.torch("2.8.0"))
        (finding,) = machine.examine(*recipes, only="stack")
        assert finding.severity == "blocks"
        assert "oneDNN 3.7.1 (pytorch 2.8.0)" in finding.what
        assert ">=24.11.1" in finding.why

    def test_limit_that_was_not_read_in_the_release_itself_only_warns(
        self, machine: FakeMachine
    ) -> None:
        recipes = (part("arm-compute-library", "24.11.1"), self.torch("2.13.0"))
        (finding,) = machine.examine(*recipes, only="stack")
        assert finding.severity == "warns"
        assert "not confirmed" in finding.why
        assert finding.fix.startswith("--set arm-compute-library/version=52.6.0,")

    def test_of_the_stack_within_the_range(self, machine: FakeMachine) -> None:
        recipes = (part("arm-compute-library", "25.02.1"), self.torch("2.8.0"))
        assert machine.examine(*recipes, only="stack") == ()

    def test_override_of_the_copy_inside_pytorch(self, machine: FakeMachine) -> None:
        acl = part("arm-compute-library", "24.04")
        assert machine.examine(acl, self.torch("2.5.0"), only="stack") == ()
        (finding,) = machine.examine(acl, self.torch("2.5.0", onednn="v3.7.1"), only="stack")
        assert "the override of third_party/ideep/mkl-dnn" in finding.what

    def test_built_tree(self, machine: FakeMachine, tmp_path: Path) -> None:
        embed = tmp_path / "build/src/core/arm_compute_version.embed"
        embed.parent.mkdir(parents=True)
        embed.write_text('"arm_compute_version=v24.11 Build options: {}"', encoding="utf-8")
        table = EnvironmentTable(use="current", variables={"ACL_ROOT_DIR": str(tmp_path)})
        recipe = Recipe(
            name="pytorch", version="2.8.0", environment=table, options={"USE_MKLDNN_ACL": True}
        )
        (finding,) = machine.examine(recipe, only="stack")
        assert "Arm Compute Library 24.11" in finding.what

    def test_without_a_place(self, machine: FakeMachine) -> None:
        (finding,) = machine.examine(part("pytorch", "2.8.0", USE_MKLDNN_ACL=True), only="stack")
        assert "ACL_ROOT_DIR is not set" in finding.what

    def test_not_asked_for(self, machine: FakeMachine) -> None:
        recipes = (part("arm-compute-library", "20.08"), part("pytorch", "2.8.0"))
        assert machine.examine(*recipes, only="stack") == ()

    def test_onednn_as_a_part_of_its_own(self, machine: FakeMachine) -> None:
        recipes = (part("arm-compute-library", "24.11"), part("onednn", "3.7.2"))
        (finding,) = machine.examine(*recipes, only="stack")
        assert finding.severity == "blocks"


class TestVariables:
    def test_option_that_goes_nowhere(self, machine: FakeMachine) -> None:
        (finding,) = machine.examine(part("pytorch", "2.6.0", DEBUG_CUDA=True), only="variables")
        assert finding.severity == "warns"
        assert finding.what == "the option DEBUG_CUDA has no effect in pytorch 2.6"
        assert "CMAKE_ARGS=-DDEBUG_CUDA" in finding.fix

    @pytest.mark.parametrize(
        ("name", "fix"),
        [
            ("NO_CUDA", "USE_CUDA=0"),
            ("USE_MKLDN", "did you mean USE_MKLDNN?"),
            ("TORCH_CUDA_ARCHLIST", "did you mean TORCH_CUDA_ARCH_LIST?"),
        ],
    )
    def test_what_was_meant(self, name: str, fix: str, machine: FakeMachine) -> None:
        (finding,) = machine.examine(part("pytorch", "2.6.0", **{name: 1}), only="variables")
        assert finding.fix == fix

    def test_right_options_are_silent(self, machine: FakeMachine) -> None:
        options: dict[str, Scalar] = {
            "USE_CUDA": False,
            "BLAS": "OpenBLAS",
            "REL_WITH_DEB_INFO": True,
            "PYTORCH_ROCM_ARCH": "gfx90a",
        }
        assert machine.examine(part("pytorch", "2.6.0", **options), only="variables") == ()

    def test_variables_of_the_shell_only_where_they_reach_the_build(
        self, machine: FakeMachine
    ) -> None:
        machine.variables["DEBUG_CUDA"] = "1"
        recipe = part("pytorch", "2.6.0")
        assert severities(machine.examine(recipe, only="variables")) == ["warns"]
        # A plan hands a stated few variables to the build, and this one is not among them.
        assert machine.examine(plan=machine.plan(recipe), only="variables") == ()
        assert severities(machine.examine(only="variables")) == ["warns"]

    def test_install_prefix_ends_setup_py(self, machine: FakeMachine) -> None:
        for version, expected in (("2.13.0", ["blocks"]), ("2.14.0", [])):
            recipe = part("pytorch", version, CMAKE_INSTALL_PREFIX="/opt/torch")
            assert severities(machine.examine(recipe, only="variables")) == expected

    def test_switches_that_went_with_setup_py(self, machine: FakeMachine) -> None:
        (finding,) = machine.examine(part("pytorch", "2.15.0", CMAKE_FRESH=1), only="variables")
        assert "was removed with setup.py" in finding.fix

    def test_cflags_count_for_cxx(self, machine: FakeMachine) -> None:
        machine.variables["CFLAGS"] = "-O1"
        recipe = part("pytorch", "2.6.0")
        assert severities(machine.examine(recipe, only="variables")) == ["notes"]
        machine.variables["CXXFLAGS"] = "-O1"
        assert machine.examine(recipe, only="variables") == ()

    def test_other_projects_have_other_rules(self, machine: FakeMachine) -> None:
        assert machine.examine(part("openblas", "0.3.29", NO_LAPACK=1), only="variables") == ()
