"""Settings without effect are errors, and lists can be changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from torchyard.builds.build_folders import BuildsDirectory
from torchyard.builds.commands.run import build_request
from torchyard.builds.plan import Command, WriteFile
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
        ("pytorch", "MAX_JOBS=4", "--set pytorch/jobs=N"),
        ("dev-stack", 'pytorch/environment.variables.MAX_JOBS="4"', "--jobs N"),
        ("pytorch", "jobs=-1", "number of jobs"),
        ("pytorch", "USE_CUDA=maybe", "neither on nor off"),
        ("pytorch", "environment.cuda=12.4", "nothing in this build uses a CUDA toolkit"),
        ("dev-stack", "environment.cuda=12.4", "nothing in this build uses a CUDA toolkit"),
    ],
)
def test_settings_without_effect_are_errors(recipe: str, setting: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(recipe, setting)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("variant", "setting", "hint"),
    [
        ("cpu", "TORCH_CUDA_ARCH_LIST=9.0", "USE_CUDA is off"),
        ("cuda", "PYTORCH_ROCM_ARCH=gfx90a", "USE_ROCM is off"),
        ("cuda", "USE_CUDA=0", "must have torch/lib/libtorch_cuda.so"),
        ("rocm", "USE_ROCM=OFF", "must have torch/lib/libtorch_hip.so"),
        ("cpu", "environment.gcc=13.3.0", "nothing in this build uses gcc of conda"),
    ],
)
def test_settings_without_effect_in_a_variant_are_errors(
    variant: str, setting: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build("pytorch", "environment.use=conda", setting, variant=variant)
    assert hint in caught.value.hint


def test_switches_that_agree_with_the_variant_are_accepted() -> None:
    build("pytorch", "USE_CUDA=1", variant="cuda")
    build("pytorch", "USE_CUDA=0", variant="cpu")
    build("pytorch", "USE_CUDA=0", variant="rocm")


def test_versions_that_a_variant_uses_are_accepted() -> None:
    for recipe in ("pytorch", "torchvision", "torchaudio", "dev-stack"):
        settings = ("environment.cuda=12.4", "environment.gcc=12")
        assert build(recipe, *settings, variant="cuda").environment.cuda == "12.4"
    conda = ("environment.use=conda", "version=2.4.0")
    assert build("pytorch", *conda, variant="cuda").environment.cuda == "12.4.1"
    chosen = build("pytorch", *conda, "environment.cuda=12.1.0", variant="cuda")
    assert chosen.environment.cuda == "12.1.0"
    options = build(
        "pytorch", "USE_CUDA=1", "TORCH_CUDA_ARCH_LIST=9.0", variant="cpu"
    ).recipe.options
    assert options["TORCH_CUDA_ARCH_LIST"] == "9.0"


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
        request = replace(request, machine="x86_64")
        plan = make_plan(request, home=BuildsDirectory(folder=tmp_path), environ={})
        step = next(step for step in plan.steps if step.name == "pytorch/build")
        return dict(step.variables)["HIPCC_COMPILE_FLAGS_APPEND"]

    key = "environment.conda.packages"
    assert flags().endswith("/x86_64-conda-linux-gnu/13.3.0")
    chosen = flags(f"{key}-=gcc_linux-64", f"{key}+=gcc_linux-64=14.2.0")
    assert chosen.endswith("/x86_64-conda-linux-gnu/14.2.0")
    assert flags("environment.gcc=12.4.0").endswith("/x86_64-conda-linux-gnu/12.4.0")
    with pytest.raises(UsageError, match="exact version of gcc"):
        flags(f"{key}-=gcc_linux-64", f"{key}+=gcc_linux-64=14")
    with pytest.raises(UsageError, match="exact version of gcc"):
        flags("environment.gcc=14")


@pytest.mark.parametrize("variant", ["cpu", "cuda", "rocm"])
def test_a_variant_of_the_development_stack(variant: str, tmp_path: Path) -> None:
    resolved = build("dev-stack", "environment.use=conda", variant=variant)
    torch, vision, audio, bench = resolved.components
    assert bench.name == "torchbench"
    assert torch.options["USE_CUDA"] is (variant == "cuda")
    assert torch.options["USE_ROCM"] is (variant == "rocm")
    assert vision.options["FORCE_CUDA"] is (variant != "cpu")
    assert audio.options["USE_CUDA"] is (variant == "cuda")
    # The environment that all share has what PyTorch's recipe needs.
    conda = resolved.environment.conda.packages
    assert ("cuda-toolkit={cuda}" in conda) == (variant == "cuda")
    assert ("/opt/rocm/bin" in resolved.environment.path) == (variant == "rocm")
    plan = make_plan(
        build_request("dev-stack", variant, "", ("environment.use=conda",), ""),
        home=BuildsDirectory(folder=tmp_path),
        environ={"PATH": ""},
    )
    assert plan.name == f"dev-stack-main-{variant}"


def test_one_setting_for_the_toolkit_and_one_for_gcc(tmp_path: Path) -> None:
    words = ("environment.cuda=12.6.3", "environment.gcc=12")
    request = build_request("dev-stack", "cuda", "", words, "")
    plan = make_plan(request, home=BuildsDirectory(folder=tmp_path), environ={"PATH": ""})
    for name in ("pytorch/build", "torchvision/build"):
        step = next(step for step in plan.steps if step.name == name)
        variables = dict(step.variables)
        assert (variables["CC"], variables["CXX"]) == ("gcc-12", "g++-12")
        assert variables["CUDAHOSTCXX"] == "g++-12"
        assert variables["PATH"].startswith("/usr/local/cuda-12.6/bin:")
    torch = next(step for step in plan.steps if step.name == "pytorch/build")
    assert dict(torch.variables)["CUDA_HOME"] == "/usr/local/cuda-12.6"


def test_pip_does_not_install_over_conda(tmp_path: Path) -> None:
    words = ("environment.use=conda",)
    request = build_request("pytorch", "cuda", "2.4.0", words, "")
    plan = make_plan(request, home=BuildsDirectory(folder=tmp_path), environ={"PATH": ""})
    (packages,) = (step for step in plan.steps if step.name == "environment/packages")
    command = packages.actions[-1]
    assert isinstance(command, Command)
    names = [text.partition("=")[0].rstrip("<>") for text in command.argv]
    assert "numpy" in names
    assert not {"cmake", "ninja", "pip"} & set(names[names.index("--") :])
    (environment,) = (step for step in plan.steps if step.name == "environment/python")
    texts = [action.text for action in environment.actions if isinstance(action, WriteFile)]
    assert '"cmake=3.26"' in texts[0]
    assert '"python>=3.8,<3.13"' in texts[0]
    assert any("cmake" in note and "conda, not by pip" in note for note in plan.notes)
