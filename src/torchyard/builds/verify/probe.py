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


_ENVIRONMENT: Final = """
import site, sys, sysconfig
folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
# A virtual environment that sees the system's packages lists their folders, too.
folders += [f for f in getattr(site, "getsitepackages", list)() if f.startswith(sys.prefix + "/")]
answer({"prefix": sys.prefix, "site": list(dict.fromkeys(f for f in folders if f))})
"""

# The libraries are read from the process itself: that is what the loader really did, with the
# search paths of the interpreter and whatever the module preloads.
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

# A package that is seen and not installed here (of a base interpreter, of the system) has its
# folder as its origin.
_PACKAGES: Final = """
import json, os, sys
from importlib import metadata
here = os.path.realpath(sys.prefix) + os.sep
found = {}
for distribution in metadata.distributions():
    name = distribution.metadata["Name"]
    if not name or name in found:
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
    found[name] = [distribution.version, origin]
answer({"packages": found})
"""


def probe_environment(target: TargetPython) -> EnvironmentFolders:
    """Where the interpreter keeps its things; raises StepFailed when it does not even start."""
    answer = _answer(target.ask(_ENVIRONMENT), target, "does not say where its packages are")
    return EnvironmentFolders(prefix=str(answer["prefix"]), site=tuple(answer["site"]))


def probe_module(target: TargetPython, name: str, *, limit_s: float = 300.0) -> ModuleFacts:
    """Import the module and look at it; a failed import is an answer, too."""
    outcome = target.ask(_MODULE, arguments=(name,), limit_s=limit_s)
    answer = outcome.answer
    if answer is None:
        ending = f"took longer than {limit_s:g} s" if outcome.timed_out else ""
        return ModuleFacts(
            name=name,
            failure=ending or outcome.tail() or f"the interpreter ended with {outcome.returncode}",
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
        # A module that imports and then dies when the interpreter ends is not well, either.
        failure="" if outcome.good else f"after the import: {outcome.tail() or 'a crash at exit'}",
    )


def list_packages(target: TargetPython) -> tuple[PackageRecord, ...]:
    """The packages of the environment, as `pip freeze` would list them, without needing pip."""
    answer = _answer(target.ask(_PACKAGES), target, "does not list its packages")
    return tuple(
        PackageRecord(name=name, version=str(version), origin=str(origin))
        for name, (version, origin) in sorted(answer["packages"].items(), key=_by_lower_name)
    )


def _by_lower_name(item: tuple[str, object]) -> str:
    return item[0].lower()


def _answer(outcome: SnippetOutcome, target: TargetPython, trouble: str) -> dict[str, Any]:
    if outcome.answer is None:
        raise StepFailed(
            f"the interpreter {target.python} {trouble}",
            why=outcome.tail() or f"it ended with {outcome.returncode}",
            hint="make the environment again: torchyard build ... --force",
        )
    return outcome.answer
