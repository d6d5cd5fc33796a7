"""Run Python in the finished target and query it; the interface of all checks.

Python runs outside the source tree and with a time limit. The caller passes a function that runs a
command in the target (a plain process, or a sandbox with a root folder). A check is a function that
takes a `Subject` and returns a `CheckResult`; checks are independent, and shared data (the folders of
the environment, the imported module) are in `Subject`. `probe_*` query folders, a module and the
build settings of its PyTorch, which `parse_show` and `parse_parallel_info` read.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from torchyard.builds.plan import Component
from torchyard.builds.record import (
    CheckResult,
    PackageRecord,
)
from torchyard.errors import StepFailed

# -I (isolated) keeps the working folder, PYTHONPATH and user packages off sys.path, so that only
# packages of the environment can be imported. The watchdog of faulthandler is a C thread: it ends a
# snippet that hangs in native code, and prints the stack.
_BOOT: Final = """
import faulthandler, os, sys
_folder, _limit, _code = sys.argv[1:4]
sys.argv[1:4] = []
os.chdir(_folder)
faulthandler.dump_traceback_later(float(_limit), exit=True)
exec(compile(_code, "<torchyard check>", "exec"), {"__name__": "__main__"})
"""
_TIMEOUT_MARK: Final = "Timeout ("
_ANSWER_MARK: Final = "torchyard-answer:"


RunInTarget = Callable[[Sequence[str], Mapping[str, str]], subprocess.CompletedProcess[str]]
"""Runs a command in the target, with additional environment variables; an exit code does not raise."""


@dataclass(frozen=True, kw_only=True)
class SnippetOutcome:
    """Result of a snippet."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool
    duration_s: float
    answer: dict[str, Any] | None = None
    """The value passed to `answer(...)`."""

    @property
    def good(self) -> bool:
        """Whether it succeeded."""
        return self.returncode == 0 and not self.timed_out

    def tail(self) -> str:
        """Return the last lines of its output."""
        return last_lines(self.stderr or self.stdout, 12)


@dataclass(frozen=True, kw_only=True)
class TargetPython:
    """The interpreter of the target."""

    python: str
    run: RunInTarget
    folder: str
    """An empty folder, at the same path in the target: the working directory of every snippet."""
    variables: Mapping[str, str] = field(default_factory=dict)

    def snippet(
        self, code: str, *, limit_s: float = 120.0, arguments: Sequence[str] = ()
    ) -> SnippetOutcome:
        """Run Python code in the target."""
        argv = (self.python, "-I", "-c", _BOOT, self.folder, str(limit_s), code, *arguments)
        started = time.monotonic()
        done = self.run(argv, self.variables)
        return SnippetOutcome(
            returncode=done.returncode,
            stdout=done.stdout,
            stderr=done.stderr,
            timed_out=done.returncode != 0 and _TIMEOUT_MARK in done.stderr,
            duration_s=time.monotonic() - started,
            answer=_answer_in(done.stdout),
        )

    def query(
        self, code: str, *, limit_s: float = 120.0, arguments: Sequence[str] = ()
    ) -> SnippetOutcome:
        """Run code that may call `answer(mapping)` to return a result."""
        define = (
            "def answer(value):\n"
            "    import json, sys\n"
            f"    sys.stdout.write('\\n{_ANSWER_MARK}' + json.dumps(value, default=str) + '\\n')\n"
            "    sys.stdout.flush()\n"
        )
        return self.snippet(define + code, limit_s=limit_s, arguments=arguments)


def last_lines(text: str, count: int) -> str:
    """Return the last lines of a text, without blank ones."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


def _answer_in(text: str) -> dict[str, Any] | None:
    for line in reversed(text.splitlines()):
        if line.startswith(_ANSWER_MARK):
            try:
                value = json.loads(line.removeprefix(_ANSWER_MARK))
            except ValueError:
                return None
            return value if isinstance(value, dict) else None
    return None


@dataclass(frozen=True, kw_only=True)
class EnvironmentFolders:
    """Folders of the interpreter of the target."""

    prefix: str = ""
    """Prefix of the environment, or that of the system if there is none."""
    site: tuple[str, ...] = ()
    """Folders of installed packages."""


@dataclass(frozen=True, kw_only=True)
class ModuleFacts:
    """Facts about an imported module."""

    name: str
    file: str = ""
    version: str = ""
    config: dict[str, str] = field(default_factory=dict)
    loaded: tuple[str, ...] = ()
    """Real paths of the shared libraries in the process."""
    failure: str = ""
    """The last lines of output, if the import failed."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A finished component, the input of the checks."""

    component: Component
    root: str
    run: RunInTarget
    target: TargetPython | None
    """None for a component without an interpreter."""
    environment: EnvironmentFolders
    module: ModuleFacts | None
    """None if the recipe has no module."""
    smoke_limit_s: float
    device_folder: Path = Path("/dev")

    @property
    def editable(self) -> bool:
        """Whether the component is installed in editable mode."""
        recipe = self.component.recipe
        return recipe.builder == "python" and recipe.python.install == "editable"

    def outside(self, path: str) -> Path:
        """Return the path outside of the root folder for a path in the target.

        Folders that a root shares with this machine have the same path in both, and are empty
        below the root folder while nothing is mounted there.
        """
        if self.root:
            below = Path(self.root) / path.lstrip("/")
            if below.exists():
                return below
        return Path(path)


Check = Callable[[Subject], CheckResult]
"""One kind of check. Problems are findings; exceptions are bugs."""


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
        for name, (version, origin) in sorted(
            answer["packages"].items(), key=lambda item: str(item[0]).lower()
        )
    )


def _answer(outcome: SnippetOutcome, target: TargetPython, problem: str) -> dict[str, Any]:
    if outcome.answer is None:
        raise StepFailed(
            f"the interpreter {target.python} {problem}",
            why=outcome.tail() or f"it exited with code {outcome.returncode}",
            hint="recreate the environment: torchyard build ... --force",
        )
    return outcome.answer


_DEVICE_FILES: Final = {
    "cuda": ("nvidiactl", "nvidia[0-9]*", "dxg", "nvhost-gpu"),
    "rocm": ("kfd",),
}
"""Device -> names below /dev; dxg is WSL, nvhost-gpu is Jetson."""


def has_device(device: str, folder: Path) -> bool:
    """Whether the machine has such a device, working or not: a bad driver must fail the test.

    The library of a driver creates device files even if no driver is loaded.
    """
    files = (file for name in _DEVICE_FILES[device] for file in folder.glob(name))
    return any(_has_driver(file) for file in files)


def _has_driver(file: Path) -> bool:
    try:
        os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno not in (errno.ENXIO, errno.ENODEV)
    return True
