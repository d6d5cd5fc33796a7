"""Reading what a PyTorch says of its own build, and which of its options show up where.

Parses `torch.__config__.show()` and `parallel_info()`. The names are those of PyTorch's
cmake/Dependencies.cmake, caffe2/core/macros.h.in and tools/setup_helpers. Starts nothing.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = [
    "BLAS_INFO",
    "IMPLIED",
    "READ_FROM_ENVIRONMENT",
    "RENAMED",
    "config_name",
    "config_value",
    "parse_parallel_info",
    "parse_show",
]

# Flags contain commas (`-Wl,-O1`), so that only a comma before the next NAME= ends a value.
_SETTING: Final = re.compile(r"([A-Z][A-Z0-9_]*)=(.*?)(?:, (?=[A-Z][A-Z0-9_]*=)|,?\s*$)")
_BUILD_SETTINGS: Final = "Build settings:"

RENAMED: Final = {
    "CUDNN_LIB_DIR": "CUDNN_LIBRARY",
    "USE_CUDA_STATIC_LINK": "CAFFE2_STATIC_LINK_CUDA",
    "_GLIBCXX_USE_CXX11_ABI": "GLIBCXX_USE_CXX11_ABI",
}
"""Variables that reach the cache under another name."""

IMPLIED: Final = {
    "DEBUG": ("CMAKE_BUILD_TYPE", "Debug"),
    "REL_WITH_DEB_INFO": ("CMAKE_BUILD_TYPE", "RelWithDebInfo"),
}
"""Switches that reach the cache only as a value of something else."""

READ_FROM_ENVIRONMENT: Final = frozenset(
    {
        "ACL_ROOT_DIR", "AOTRITON_INSTALLED_PREFIX", "ATEN_AVX512_256", "CUDA_HOME", "MAX_JOBS",
        "MAGMA_HOME", "MIOPEN_PATH", "NCCL_INCLUDE_DIR", "NCCL_LIB_DIR", "NCCL_ROOT",
        "OpenBLAS_HOME", "PYTORCH_BUILD_NUMBER", "PYTORCH_BUILD_VERSION", "PYTORCH_ROCM_ARCH",
        "ROCM_PATH", "TORCH_NVCC_FLAGS",
    }
)  # fmt: skip
"""Read by find modules or by the build program, and never kept in the cache under their name."""

BLAS_INFO: Final = {
    "mkl": "mkl",
    "openblas": "open",
    "atlas": "atlas",
    "nvpl": "nvpl",
    "veclib": "veclib",
    "accelerate": "accelerate",
    "apl": "apl",
    "generic": "generic",
    "flexiblas": "flexi",
    "blis": "blis",
    "flame": "FLAME",
}
"""Value of the option BLAS -> what BLAS_INFO says."""

_CONFIG_NAMES: Final = {"BLAS": "BLAS_INFO", "CMAKE_BUILD_TYPE": "BUILD_TYPE"}


def config_name(option: str) -> str:
    """The name under which `show()` tells the value of an option."""
    return _CONFIG_NAMES.get(option, option)


def config_value(option: str, requested: str) -> str:
    """What `show()` says when the request was honoured."""
    return BLAS_INFO.get(requested.casefold(), requested) if option == "BLAS" else requested


def parse_show(text: str) -> dict[str, str]:
    """Build settings by their own names, and the other lines by short names of ours."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        item = line.strip().removeprefix("- ")
        if item.startswith(_BUILD_SETTINGS):
            rest = item.removeprefix(_BUILD_SETTINGS).strip()
            found |= {name: value.strip() for name, value in _SETTING.findall(rest)}
        elif item.startswith(("GCC ", "clang ", "MSVC ")):
            found["compiler"] = item
        elif item.startswith("C++ Version:"):
            found["c++"] = item.partition(":")[2].strip()
        elif "MKL-DNN" in item:
            found["onednn"] = item.partition(" v")[2] or item
        elif "Math Kernel Library" in item:
            found["mkl"] = item
        elif item.startswith("OpenMP "):
            found["openmp"] = item.partition(" ")[2]
        elif item.startswith("CPU capability usage:"):
            found["cpu capability"] = item.partition(":")[2].strip()
        elif item.startswith(("LAPACK is ", "NNPACK is ")):
            found[item.partition(" ")[0].lower()] = item.split()[2]
    return found


def parse_parallel_info(text: str) -> dict[str, str]:
    """What `parallel_info()` says, by its own names."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        # `at::get_num_threads() : 2`: the separator has a blank behind it, a `::` has none.
        name, separator, value = line.strip().partition(": ")
        if separator and value.strip():
            found[name.strip()] = value.strip()
    return found
