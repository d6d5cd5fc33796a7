"""Which variables reach CMake, by the rules of PyTorch's build."""

from __future__ import annotations

import pytest

from torchyard.builds.doctor.configuration import (
    looks_like_option,
    nearest_option,
    route_of,
)


@pytest.mark.parametrize(
    "name",
    [
        "USE_CUDA",
        "BUILD_TEST",
        "CMAKE_BUILD_TYPE",
        "USE_SOMETHING_NEW",
        "HAVE_STD_REGEX_EXITCODE",
        "X_EXITCODE__TRYRUN_OUTPUT",
        "BLAS",
        "WITH_BLAS",
        "TORCH_CUDA_ARCH_LIST",
        "CUDNN_LIB_DIR",
        "CUDAHOSTCXX",
        "Numa_LIBRARIES",
    ],
)
@pytest.mark.parametrize("release", ["2.4", "2.6.0", "2.13", "2.15"])
def test_reaches_cmake(name: str, release: str) -> None:
    assert route_of(name, release) == "cmake"


@pytest.mark.parametrize(
    "name",
    ["DEBUG_CUDA", "NO_CUDA", "WITH_DISTRIBUTED", "ENABLE_MKL", "TORCH_CUDA_ARCHLIST"],
)
def test_is_not_forwarded_although_it_resembles_an_option(name: str) -> None:
    assert looks_like_option(name)
    assert route_of(name, "2.6") == "nowhere"
    assert route_of(name, "2.6") != "cmake"


@pytest.mark.parametrize(
    ("name", "release", "route"),
    [
        ("_GLIBCXX_USE_CXX11_ABI", "2.6", "cmake"),
        ("_GLIBCXX_USE_CXX11_ABI", "2.7", "nowhere"),
        ("FLASH_ATTENTION_MAX_JOBS", "2.13", "nowhere"),
        ("FLASH_ATTENTION_MAX_JOBS", "2.15", "cmake"),
        ("CMAKE_FRESH", "2.9", "front end"),
        ("CMAKE_FRESH", "2.14", "nowhere"),
        ("CMAKE_ONLY", "2.6", "nowhere"),
        ("USE_NIGHTLY", "2.13", "front end"),
        ("JAVA_HOME", "2.6", "cmake"),
        ("ACL_ROOT_DIR", "2.6", "environment"),
        ("PYTORCH_ROCM_ARCH", "2.6", "environment"),
        ("MAX_JOBS", "2.6", "front end"),
        ("REL_WITH_DEB_INFO", "2.6", "front end"),
    ],
)
def test_route_depends_on_name_and_release(name: str, release: str, route: str) -> None:
    assert route_of(name, release) == route


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("USE_MKLDN", "USE_MKLDNN"),
        ("USE_CUDNNN", "USE_CUDNN"),
        ("BUILD_TESTS", "BUILD_TEST"),
        ("USE_FLASHATTENTION", "USE_FLASH_ATTENTION"),
        ("USE_CUDA", ""),
        ("USE_SYSTEM_FP16", ""),
        ("USE_MY_OWN_THING", ""),
        ("CMAKE_BUILD_TYP", ""),
    ],
)
def test_nearest_option(name: str, meant: str) -> None:
    assert nearest_option(name) == meant


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "CFLAGS",
        "DEBUG",
        "MAX_JOBS",
        "use_cuda",
        "NCCL_VERSION",
        "NCCL_DEBUG",
        "CUDA_VISIBLE_DEVICES",
        "TORCH_LOGS",
        "PYTORCH_CUDA_ALLOC_CONF",
        "MKL_NUM_THREADS",
        "NO_COLOR",
        "NO_PROXY",
        "JAVA_HOME",
        "DEBUG_COLORS",
    ],
)
def test_variables_of_running_programs_do_not_resemble_options(name: str) -> None:
    assert not looks_like_option(name)
