"""A checkout of pytorch/benchmark on disk: its models, and what they do not support. Needs no torch and no YAML library."""

import importlib.util
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional

from torchyard.worker.workload import CannotBuild

_KEY = "not_implemented:"
_PAIR = re.compile(r"""\s*(-?)\s*['"]?(\w+)['"]?:\s+['"]?([\w.-]+)['"]?""")
_SWITCH = {"true": True, "false": False}

Rule = Dict[str, Any]
"""What a model does not support, such as `{"device": "cpu", "test": "train"}`; all entries must match."""


class UnreadableMetadata(Exception):
    """The rules of a model are not written as a YAML list of `key: value`."""


def read_rules(path: str) -> List[Rule]:
    """Return `not_implemented` of a metadata.yaml; nothing when the file or the key does not exist."""
    rules: List[Rule] = []
    inside = False
    for number, line in enumerate(_lines_of(path), 1):
        text = re.sub(r"(^|\s)#.*", "", line).rstrip()
        if text.startswith(_KEY):
            inside, text = True, text[len(_KEY) :]
        elif text[:1] not in ("", " ", "-"):  # another key of the file
            inside = False
        if not inside or not text:
            continue
        match = _PAIR.fullmatch(text)
        if match is None or not (match.group(1) or rules):
            raise UnreadableMetadata("%s, line %d: not an item of `key: value`" % (path, number))
        if match.group(1):
            rules.append({})
        value = match.group(3)
        rules[-1][match.group(2)] = _SWITCH.get(value.lower(), value)
    return rules


def _lines_of(path: str) -> List[str]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().splitlines()


TORCHBENCH_VARIABLE = "TORCHYARD_TORCHBENCH"
PACKAGE = "torchbenchmark"
# The folders of models, in search order. Models in `canary_models` are not guaranteed to work.
HOLDERS = ("models", "canary_models", os.path.join("models", "fb"))
HINT = (
    "give a checkout of pytorch/benchmark by the parameter path or the variable "
    + TORCHBENCH_VARIABLE
    + ", or use a target that can import "
    + PACKAGE
)


class ModelFolder(NamedTuple):
    """One model of a checkout."""

    name: str
    holder: str
    """Its parent folder: `models`, or `canary_models`."""
    path: str
    has_install: bool
    """Whether it has an `install.py`: it needs packages or files outside the checkout."""

    @property
    def package(self) -> str:
        """The name of its Python package."""
        return ".".join([PACKAGE, *self.holder.split(os.sep), self.name])

    def not_implemented(self) -> List[Rule]:
        """Return the modes and devices that its `metadata.yaml` excludes."""
        return read_rules(os.path.join(self.path, "metadata.yaml"))


class TorchbenchCheckout:
    """A checkout of pytorch/benchmark, or the folder of the installed package."""

    def __init__(self, root: str) -> None:
        self.root = root

    def models(self) -> List[ModelFolder]:
        """Return every model by folder and name; of equal names the first in search order."""
        models: Dict[str, ModelFolder] = {}
        for holder in HOLDERS:
            folder = os.path.join(self.root, PACKAGE, holder)
            for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
                path = os.path.join(folder, name)
                if name in models or not os.path.isfile(os.path.join(path, "__init__.py")):
                    continue
                has_install = os.path.isfile(os.path.join(path, "install.py"))
                models[name] = ModelFolder(name, holder, path, has_install)
        return list(models.values())

    def find(self, name: str) -> Optional[ModelFolder]:
        """Return the model of that name, or None."""
        for model in self.models():
            if model.name == name:
                return model
        return None


def find_checkout(path: Optional[str] = None) -> TorchbenchCheckout:
    """Return the checkout at that path, else of the environment variable, else the importable one."""
    if path is not None:
        return _tree_at(path, "the parameter path")
    named = os.environ.get(TORCHBENCH_VARIABLE, "")
    if named:
        return _tree_at(named, "the variable " + TORCHBENCH_VARIABLE)
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    if not places:
        raise CannotBuild("no checkout of pytorch/benchmark is given or installed", hint=HINT)
    return TorchbenchCheckout(os.path.dirname(os.path.abspath(places[0])))


def listing(tree: TorchbenchCheckout) -> List[Dict[str, Any]]:
    """Return the properties of each model that are known without loading it, as plain data."""
    models = []
    for model in tree.models():
        metadata_error = ""
        not_implemented: List[Rule] = []
        try:
            not_implemented = model.not_implemented()
        except UnreadableMetadata as error:
            metadata_error = str(error)
        models.append(
            {
                "name": model.name,
                "canary": model.holder == "canary_models",
                "install": model.has_install,
                "not_implemented": not_implemented,
                "metadata_trouble": metadata_error,
            }
        )
    return models


def _tree_at(path: str, where: str) -> TorchbenchCheckout:
    root = os.path.abspath(os.path.expanduser(path))
    if os.path.basename(root) == PACKAGE and not os.path.isdir(os.path.join(root, PACKAGE)):
        root = os.path.dirname(root)
    if not os.path.isfile(os.path.join(root, PACKAGE, "__init__.py")):
        raise CannotBuild(
            f"{where}: {root} is not a checkout of pytorch/benchmark: it has no {PACKAGE}/__init__.py",
            hint=HINT,
        )
    return TorchbenchCheckout(root)
