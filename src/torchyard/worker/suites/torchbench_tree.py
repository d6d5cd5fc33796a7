"""A checkout of pytorch/benchmark on disk: where it is, and which models are in it.

Standard library only, and nothing of the tree is imported: models are folders, and what is known of
them without loading is in their `metadata.yaml`. Knows nothing of torch or of how a model is loaded.
"""

import importlib.util
import os
from typing import Any, Dict, List, NamedTuple, Optional

from torchyard.worker.built import CannotBuild
from torchyard.worker.suites.torchbench_metadata import UnreadableMetadata, read_metadata

VARIABLE = "TORCHYARD_TORCHBENCH"
PACKAGE = "torchbenchmark"
# The folders that hold models, in the order in which a name is looked for. Models in `canary_models`
# are those that the project does not promise to keep working.
HOLDERS = ("models", "canary_models", os.path.join("models", "fb"))
HINT = (
    "give a checkout of pytorch/benchmark by the parameter path or the variable "
    + VARIABLE
    + ", or use a target that can import "
    + PACKAGE
)


class ModelFolder(NamedTuple):
    """One model of the tree."""

    name: str
    holder: str
    """Folder that holds it: `models`, or `canary_models`."""
    path: str
    has_install: bool
    """It has an `install.py`: packages or files that it needs are not in the tree."""

    @property
    def package(self) -> str:
        """What Python calls it."""
        return ".".join([PACKAGE, *self.holder.split(os.sep), self.name])

    def metadata(self) -> Dict[str, Any]:
        """What its `metadata.yaml` says; nothing when there is none."""
        return read_metadata(os.path.join(self.path, "metadata.yaml"))


class Tree:
    """A checkout, or the folder that an install put the package into."""

    def __init__(self, root: str) -> None:
        self.root = root

    def models(self) -> List[ModelFolder]:
        """Every model, by holder and name; a name that is held twice counts where it is found first."""
        found: Dict[str, ModelFolder] = {}
        for holder in HOLDERS:
            folder = os.path.join(self.root, PACKAGE, holder)
            for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
                path = os.path.join(folder, name)
                if name in found or not os.path.isfile(os.path.join(path, "__init__.py")):
                    continue
                has_install = os.path.isfile(os.path.join(path, "install.py"))
                found[name] = ModelFolder(name, holder, path, has_install)
        return list(found.values())

    def find(self, name: str) -> Optional[ModelFolder]:
        """The model of that name."""
        for model in self.models():
            if model.name == name:
                return model
        return None


def find_tree(path: Optional[str] = None) -> Tree:
    """The tree at that path, else the one that the variable names, else the one Python can import."""
    if path is not None:
        return _tree_at(path, "the parameter path")
    named = os.environ.get(VARIABLE, "")
    if named:
        return _tree_at(named, "the variable " + VARIABLE)
    spec = importlib.util.find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    if not places:
        raise CannotBuild("no checkout of pytorch/benchmark is named or installed", hint=HINT)
    return Tree(os.path.dirname(os.path.abspath(places[0])))


def listing(tree: Tree) -> List[Dict[str, Any]]:
    """What can be said of each model without loading it, as plain data."""
    found = []
    for model in tree.models():
        trouble = ""
        not_implemented: List[Any] = []
        try:
            not_implemented = model.metadata().get("not_implemented") or []
        except UnreadableMetadata as error:
            trouble = str(error)
        found.append(
            {
                "name": model.name,
                "canary": model.holder == "canary_models",
                "install": model.has_install,
                "not_implemented": not_implemented,
                "metadata_trouble": trouble,
            }
        )
    return found


def _tree_at(path: str, where: str) -> Tree:
    root = os.path.abspath(os.path.expanduser(path))
    if os.path.basename(root) == PACKAGE and not os.path.isdir(os.path.join(root, PACKAGE)):
        root = os.path.dirname(root)
    if not os.path.isfile(os.path.join(root, PACKAGE, "__init__.py")):
        raise CannotBuild(
            f"{where}: {root} is no checkout of pytorch/benchmark: it has no {PACKAGE}/__init__.py",
            hint=HINT,
        )
    return Tree(root)
