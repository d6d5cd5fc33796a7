from __future__ import annotations

from pathlib import Path

import pytest

from tests.builds.verify.sample_components import make_target
from torchyard.builds.verify.target_python import (
    config_name,
    config_value,
    parse_parallel_info,
    parse_show,
    probe_module,
)

SHOW = """PyTorch built with:
  - GCC 12.2
  - C++ Version: 201703
  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64
  - Intel(R) MKL-DNN v3.5.3 (Git Hash 66f0cb9eb66affd2da3bf5f8d897376f04aae6af)
  - OpenMP 201511 (a.k.a. OpenMP 4.5)
  - LAPACK is enabled (usually provided by MKL)
  - CPU capability usage: AVX2
  - Build settings: BLAS_INFO=mkl, BUILD_TYPE=Release, CXX_COMPILER=/usr/bin/c++, CXX_FLAGS= -O2 \
-Wl,-z,now -DX=1, TORCH_VERSION=2.6.0, USE_CUDA=0, USE_MKLDNN=ON, USE_NNPACK=OFF,\x20
"""
PARALLEL = """ATen/Parallel:
\tat::get_num_threads() : 4
\tat::get_num_interop_threads() : 2
OpenMP 201511 (a.k.a. OpenMP 4.5)
\tomp_get_max_threads() : 4
std::thread::hardware_concurrency() : 8
Environment variables:
\tOMP_NUM_THREADS : [not set]
ATen parallel backend: OpenMP
"""


def test_settings_with_commas_in_flags() -> None:
    found = parse_show(SHOW)
    assert found["CXX_FLAGS"] == "-O2 -Wl,-z,now -DX=1"
    assert found["BLAS_INFO"] == "mkl"
    assert found["USE_MKLDNN"] == "ON"
    assert found["USE_NNPACK"] == "OFF", "the last one, behind which a comma stands"
    assert found["TORCH_VERSION"] == "2.6.0"
    assert found["CXX_COMPILER"] == "/usr/bin/c++"


def test_the_other_lines() -> None:
    found = parse_show(SHOW)
    assert found["compiler"] == "GCC 12.2"
    assert found["c++"] == "201703"
    assert found["onednn"].startswith("3.5.3")
    assert found["mkl"].startswith("Intel(R) oneAPI Math Kernel Library Version 2024.2")
    assert found["lapack"] == "enabled"
    assert found["cpu capability"] == "AVX2"
    assert "nnpack" not in found


def test_parallel_info() -> None:
    found = parse_parallel_info(PARALLEL)
    assert found["at::get_num_threads()"] == "4"
    assert found["ATen parallel backend"] == "OpenMP"
    assert found["OMP_NUM_THREADS"] == "[not set]"
    assert "Environment variables" not in found


def test_empty_config() -> None:
    assert parse_show("") == {}
    assert parse_show("PyTorch built with:\n  - Build settings: \n") == {}
    assert parse_parallel_info("") == {}


def test_names_in_the_config() -> None:
    assert config_name("BLAS") == "BLAS_INFO"
    assert config_name("CMAKE_BUILD_TYPE") == "BUILD_TYPE"
    assert config_name("USE_MKLDNN") == "USE_MKLDNN"
    assert config_value("BLAS", "OpenBLAS") == "open"
    assert config_value("BLAS", "Unheard") == "Unheard"
    assert config_value("USE_MKLDNN", "mkl") == "mkl"


@pytest.mark.slow
@pytest.mark.torch
def test_a_real_torch(tmp_path: Path) -> None:
    module = probe_module(make_target(tmp_path), "torch")
    assert not module.failure
    assert module.version.startswith(module.config["TORCH_VERSION"])
    assert module.config["BUILD_TYPE"] == "Release"
    assert module.config["ATen parallel backend"] in ("OpenMP", "native thread pool")
    assert set(module.config["USE_CUDA"]) <= set("01OFN")
    assert len(module.config["git version"]) == 40
    assert module.config["c++"].isdigit()
    assert any("libtorch_cpu" in path for path in module.loaded)
