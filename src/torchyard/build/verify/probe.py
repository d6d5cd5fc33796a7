"""Asking the target about itself: its folders, a module, its packages.

One process for each question, so that a module that crashes on import costs only its own answer.
"""

from __future__ import annotations

from typing import Any, Final

from torchyard.build.verify.check import EnvironmentFolders, ModuleFacts
from torchyard.build.verify.target_python import SnippetOutcome, TargetPython
from torchyard.build.verify.torch_config import parse_parallel_info, parse_show
from torchyard.core.build_record import PackageRecord
from torchyard.errors import StepFailed

__all__ = ["list_packages", "probe_environment", "probe_module"]

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
