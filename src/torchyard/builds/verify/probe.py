"""Query the target: its folders, a module, its packages, and the build settings of its PyTorch.

`parse_show` and `parse_parallel_info` read `torch.__config__`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from torchyard.builds.record import PackageRecord
from torchyard.builds.verify.target_python import (
    EnvironmentFolders,
    ModuleFacts,
    SnippetOutcome,
    TargetPython,
)
from torchyard.errors import StepFailed

# Flags contain commas (`-Wl,-O1`), so only a comma before the next NAME= ends a value.
_SETTING: Final = re.compile(r"([A-Z][A-Z0-9_]*)=(.*?)(?:, (?=[A-Z][A-Z0-9_]*=)|,?\s*$)")
_BUILD_SETTINGS: Final = "Build settings:"

RENAMED: Final = {
    "CUDNN_LIB_DIR": "CUDNN_LIBRARY",
    "USE_CUDA_STATIC_LINK": "CAFFE2_STATIC_LINK_CUDA",
    "_GLIBCXX_USE_CXX11_ABI": "GLIBCXX_USE_CXX11_ABI",
}
"""Variables with another name in the CMake cache."""

IMPLIED: Final = {
    "DEBUG": ("CMAKE_BUILD_TYPE", "Debug"),
    "REL_WITH_DEB_INFO": ("CMAKE_BUILD_TYPE", "RelWithDebInfo"),
}
"""Switches that appear in the CMake cache only as the value of another entry."""

READ_FROM_ENVIRONMENT: Final = frozenset(
    {
        "ACL_ROOT_DIR", "AOTRITON_INSTALLED_PREFIX", "ATEN_AVX512_256", "CUDA_HOME", "MAX_JOBS",
        "MAGMA_HOME", "MIOPEN_PATH", "NCCL_INCLUDE_DIR", "NCCL_LIB_DIR", "NCCL_ROOT",
        "OpenBLAS_HOME", "PYTORCH_BUILD_NUMBER", "PYTORCH_BUILD_VERSION", "PYTORCH_ROCM_ARCH",
        "ROCM_PATH", "TORCH_NVCC_FLAGS",
    }
)  # fmt: skip
"""Read by find modules or by the build program, and not stored in the CMake cache."""

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
"""Value of the option BLAS -> value of BLAS_INFO."""

_CONFIG_NAMES: Final = {"BLAS": "BLAS_INFO", "CMAKE_BUILD_TYPE": "BUILD_TYPE"}


def config_name(option: str) -> str:
    """Return the name of an option in `torch.__config__.show()`."""
    return _CONFIG_NAMES.get(option, option)


def config_value(option: str, requested: str) -> str:
    """Return the value in `torch.__config__.show()` if the request was honoured."""
    return BLAS_INFO.get(requested.casefold(), requested) if option == "BLAS" else requested


def parse_show(text: str) -> dict[str, str]:
    """Return the build settings by name, and the other lines by short names."""
    settings: dict[str, str] = {}
    for line in text.splitlines():
        item = line.strip().removeprefix("- ")
        if item.startswith(_BUILD_SETTINGS):
            rest = item.removeprefix(_BUILD_SETTINGS).strip()
            settings |= {name: value.strip() for name, value in _SETTING.findall(rest)}
        elif item.startswith(("GCC ", "clang ", "MSVC ")):
            settings["compiler"] = item
        elif item.startswith("C++ Version:"):
            settings["c++"] = item.partition(":")[2].strip()
        elif "MKL-DNN" in item:
            settings["onednn"] = item.partition(" v")[2] or item
        elif "Math Kernel Library" in item:
            settings["mkl"] = item
        elif item.startswith("OpenMP "):
            settings["openmp"] = item.partition(" ")[2]
        elif item.startswith("CPU capability usage:"):
            settings["cpu capability"] = item.partition(":")[2].strip()
        elif item.startswith(("LAPACK is ", "NNPACK is ")):
            settings[item.partition(" ")[0].lower()] = item.split()[2]
    return settings


def parse_parallel_info(text: str) -> dict[str, str]:
    """Return the values of `parallel_info()` by name."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        # `at::get_num_threads() : 2`: the separator is followed by a blank, unlike `::`.
        name, separator, value = line.strip().partition(": ")
        if separator and value.strip():
            values[name.strip()] = value.strip()
    return values


_ENVIRONMENT: Final = """
import site, sys, sysconfig
folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
# A virtual environment with access to system packages also lists their folders.
folders += [f for f in getattr(site, "getsitepackages", list)() if f.startswith(sys.prefix + "/")]
answer({"prefix": sys.prefix, "site": list(dict.fromkeys(f for f in folders if f))})
"""

# The libraries are read from the process: the actual result of the loader, including the search
# paths of the interpreter and everything that the module preloads.
_MODULE: Final = """
import importlib, os, sys
name = sys.argv[1]
module = importlib.import_module(name)
file = getattr(module, "__file__", None)  # None: a folder without __init__.py
version = getattr(module, "__version__", None)
if version is None:
    from importlib import metadata
    for distribution in metadata.packages_distributions().get(name.partition(".")[0], []) \
            if hasattr(metadata, "packages_distributions") else [name]:
        try:
            version = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            pass
facts = {"file": os.path.abspath(file) if file else "", "version": str(version or "")}
if name == "torch":
    facts["show"] = module.__config__.show()
    facts["parallel"] = module.__config__.parallel_info()
    facts["git"] = getattr(module.version, "git_version", "") or ""
loaded = set()
with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
    for line in maps:
        path = line.rstrip("\\n").split(None, 5)[5:]
        if path and path[0].startswith("/") and ".so" in os.path.basename(path[0]):
            loaded.add(path[0])
facts["loaded"] = sorted(loaded)
answer(facts)
"""

# A package that is visible but not installed here (of a base interpreter or the system) has its
# folder as origin.
_PACKAGES: Final = """
import json, os, sys
from importlib import metadata
here = os.path.realpath(sys.prefix) + os.sep
packages = {}
for distribution in metadata.distributions():
    name = distribution.metadata["Name"]
    if not name or name in packages:
        continue
    origin = ""
    direct = distribution.read_text("direct_url.json")
    if direct:
        try:
            origin = json.loads(direct).get("url", "")
        except ValueError:
            pass
    folder = os.path.realpath(str(distribution.locate_file("")))
    if not (folder + os.sep).startswith(here):
        origin = folder
    packages[name] = [distribution.version, origin]
answer({"packages": packages})
"""


def probe_environment(target: TargetPython) -> EnvironmentFolders:
    """Return the folders of the interpreter; raise StepFailed if it does not start."""
    answer = _answer(target.query(_ENVIRONMENT), target, "did not report its folders")
    return EnvironmentFolders(prefix=str(answer["prefix"]), site=tuple(answer["site"]))


def probe_module(target: TargetPython, name: str, *, limit_s: float = 300.0) -> ModuleFacts:
    """Import a module and return facts about it; a failed import is reported in `failure`."""
    outcome = target.query(_MODULE, arguments=(name,), limit_s=limit_s)
    answer = outcome.answer
    if answer is None:
        timeout = f"timed out after {limit_s:g} s" if outcome.timed_out else ""
        return ModuleFacts(
            name=name,
            failure=timeout
            or outcome.tail()
            or f"the interpreter exited with code {outcome.returncode}",
        )
    config: dict[str, str] = {}
    if "show" in answer:
        config = parse_show(str(answer["show"])) | parse_parallel_info(str(answer["parallel"]))
        if answer["git"]:
            config["git version"] = str(answer["git"])
    return ModuleFacts(
        name=name,
        file=str(answer["file"]),
        version=str(answer["version"]),
        config=config,
        loaded=tuple(answer["loaded"]),
        # A module that imports but crashes at interpreter exit also counts as a failure.
        failure="" if outcome.good else f"after the import: {outcome.tail() or 'a crash at exit'}",
    )


def list_packages(target: TargetPython) -> tuple[PackageRecord, ...]:
    """Return the packages of the environment, like `pip freeze`, but without pip."""
    answer = _answer(target.query(_PACKAGES), target, "did not list its packages")
    return tuple(
        PackageRecord(name=name, version=str(version), origin=str(origin))
        for name, (version, origin) in sorted(answer["packages"].items(), key=_by_lower_name)
    )


def _by_lower_name(item: tuple[str, object]) -> str:
    return item[0].lower()


def _answer(outcome: SnippetOutcome, target: TargetPython, problem: str) -> dict[str, Any]:
    if outcome.answer is None:
        raise StepFailed(
            f"the interpreter {target.python} {problem}",
            why=outcome.tail() or f"it exited with code {outcome.returncode}",
            hint="recreate the environment: torchyard build ... --force",
        )
    return outcome.answer
