"""Settings without effect are errors, and lists can be changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.commands.run import build_request
from torchyard.builds.planner import make_plan
from torchyard.builds.recipe_file import ResolvedBuild, resolve
from torchyard.errors import UsageError


def build(recipe: str, *settings: str, variant: str = "") -> ResolvedBuild:
    return resolve(build_request(recipe, variant, "", settings, ""))


@pytest.mark.parametrize(
    ("recipe", "setting", "hint"),
    [
        ("pytorch", "variant=nonsense", "valid variants"),
        ("dev-stack", "pytorch/variant=nonsense", "valid variants"),
        ("dev-stack", "USE_CUDA=1", "put the component before the key"),
        ("dev-stack", "pytorch/environment.python=3.12", "share one environment"),
        ("pytorch", "name=mine", "--name"),
        ("pytorch", "verison=2.6.0", "'version'"),
        ("pytorch", "USE_CUDAA=1", "'USE_CUDA'"),
        ("pytorch", "cmake.generator=Ninja", "the builder is 'python'"),
        ("pytorch", "environment.conda.packages+=zlib", "environment.use=conda"),
        ("pytorch", "source.debian.suite=sid", "source.use=debian"),
    ],
)
def test_settings_without_effect_are_errors(recipe: str, setting: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(recipe, setting)
    assert hint in caught.value.hint


def test_a_setting_chooses_the_variant() -> None:
    assert build("pytorch", "variant=cuda").recipe.options["USE_CUDA"] is True
    torch, *_ = build("dev-stack", "pytorch/variant=cuda").components
    assert (torch.variant, torch.options["USE_CUDA"]) == ("cuda", True)


def test_unusual_options_can_be_passed() -> None:
    options: dict[str, Any] = build("pytorch", "options.USE_CUDAA=1", "CMAKE_X=1").recipe.options
    assert (options["USE_CUDAA"], options["CMAKE_X"]) == (1, 1)


def test_lists_are_changed_and_keep_their_other_entries() -> None:
    conda = ("environment.use=conda",)
    before = build("pytorch", *conda, variant="cuda").environment.conda.packages
    key = "environment.conda.packages"
    after = build(
        *("pytorch", *conda, f"{key}+=zlib", f'{key}+=["libpng=1.6", "zlib"]', f"{key}-=cmake"),
        variant="cuda",
    ).environment.conda.packages
    kept = [item for item in before if not item.startswith("cmake")]
    assert list(after) == [*kept, "zlib", "libpng=1.6"]
    with pytest.raises(UsageError, match="the list has no 'ninjaa'") as caught:
        build("pytorch", *conda, f"{key}-=ninjaa", variant="cuda")
    assert "ninja" in caught.value.hint


def test_the_gcc_folder_of_rocm_follows_the_chosen_gcc(tmp_path: Path) -> None:
    def flags(*settings: str) -> str:
        request = build_request("pytorch", "rocm", "", ("environment.use=conda", *settings), "")
        plan = make_plan(request, home=BuildsDirectory(folder=tmp_path), environ={})
        step = next(step for step in plan.steps if step.name == "pytorch/build")
        return dict(step.variables)["HIPCC_COMPILE_FLAGS_APPEND"]

    key = "environment.conda.packages"
    assert flags().endswith("/x86_64-conda-linux-gnu/13.3.0")
    chosen = flags(f"{key}-=gcc_linux-64", f"{key}+=gcc_linux-64=14.2.0")
    assert chosen.endswith("/x86_64-conda-linux-gnu/14.2.0")
    with pytest.raises(UsageError, match="exact version of gcc"):
        flags(f"{key}-=gcc_linux-64", f"{key}+=gcc_linux-64=14")
