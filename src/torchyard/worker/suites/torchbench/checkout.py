"""A checkout of pytorch/benchmark on disk: its models and their `metadata.yaml`. Needs no torch and no YAML library."""

import importlib.util
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from torchyard.worker.workload import CannotBuild

_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_UNKNOWN_STARTS = ("[", "{", "&", "*", "|", ">", "!", "%", "@", "`", "? ")

Line = Tuple[int, int, str]
"""Number, indentation, text."""


class UnreadableMetadata(Exception):
    """The file is not in the supported subset of YAML."""


def read_metadata(path: str) -> Dict[str, Any]:
    """Return the file as a mapping; an empty one when it does not exist."""
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8", errors="replace") as file:
        return parse_metadata(file.read(), path)


def parse_metadata(text: str, path: str = "metadata.yaml") -> Dict[str, Any]:
    """Return the text as a mapping."""
    reader = _Reader(text, path)
    metadata = reader.block(0) if reader.lines else {}
    if reader.lines:
        raise reader.error(reader.lines[0], "inconsistent indentation")
    if not isinstance(metadata, dict):
        raise UnreadableMetadata(f"{path}: a list where a mapping is expected")
    return metadata


class _Reader:
    """A recursive-descent parser that consumes lines."""

    def __init__(self, text: str, path: str) -> None:
        self.path = path
        self.lines: List[Line] = []
        for number, raw in enumerate(text.splitlines(), 1):
            stripped = raw.strip()
            if not stripped or stripped.startswith("#") or stripped == "---":
                continue
            if "\t" in raw[: len(raw) - len(raw.lstrip())]:
                raise self.error((number, 0, raw), "tab in indentation")
            self.lines.append((number, len(raw) - len(raw.lstrip()), stripped))

    def error(self, line: Line, what: str) -> UnreadableMetadata:
        return UnreadableMetadata(f"{self.path}, line {line[0]}: {what}")

    def block(self, indent: int) -> Any:
        """Parse a mapping or a list whose lines all have this indentation."""
        if _is_item(self.lines[0][2]):
            return self._items(indent)
        return self._mapping(indent)

    def _mapping(self, indent: int) -> Dict[str, Any]:
        mapping: Dict[str, Any] = {}
        while self.lines and self.lines[0][1] == indent and not _is_item(self.lines[0][2]):
            line = self.lines.pop(0)
            key, colon, rest = line[2].partition(":")
            if not colon or (rest and not rest.startswith(" ")):
                raise self.error(line, "not `key: value`")
            key = _unquoted(key.strip())
            if key in mapping:
                raise self.error(line, f"duplicate key {key!r}")
            mapping[key] = self._value(line, rest, indent)
        return mapping

    def _value(self, line: Line, rest: str, indent: int) -> Any:
        text = _without_comment(rest)
        if text:
            return self._scalar(line, text)
        if not self.lines:
            return None
        deeper, is_item = self.lines[0][1], _is_item(self.lines[0][2])
        # In YAML the list below a key may have the indentation of the key.
        if deeper > indent or (deeper == indent and is_item):
            return self.block(deeper)
        return None

    def _items(self, indent: int) -> List[Any]:
        items: List[Any] = []
        while self.lines and self.lines[0][1] == indent and _is_item(self.lines[0][2]):
            number, _, text = self.lines.pop(0)
            inner = text[1:].lstrip()
            if not _without_comment(" " + inner):
                raise self.error((number, indent, text), "list item without a value")
            inner_indent = indent + len(text) - len(inner)
            if inner[:1] not in "'\"" and _is_pair(inner):
                self.lines.insert(0, (number, inner_indent, inner))
                items.append(self._mapping(inner_indent))
            else:
                items.append(self._scalar((number, indent, text), _without_comment(" " + inner)))
        return items

    def _scalar(self, line: Line, text: str) -> Any:
        if text.startswith(_UNKNOWN_STARTS):
            raise self.error(line, f"unsupported YAML syntax: {text[:20]!r}")
        if text[:1] in "'\"":
            if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1] or "\\" in text:
                raise self.error(line, f"unsupported quoted string: {text[:20]!r}")
            return text[1:-1]
        if _is_pair(text):
            raise self.error(line, "second `key:` on one line")
        lowered = text.lower()
        if lowered in _WORDS:
            return _WORDS[lowered]
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        return text


def _is_pair(text: str) -> bool:
    return ": " in text or text.endswith(":")


def _is_item(text: str) -> bool:
    return text == "-" or text.startswith("- ")


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    return text


def _without_comment(text: str) -> str:
    stripped = text.strip()
    if stripped[:1] in ("'", '"'):
        end = stripped.find(stripped[0], 1) + 1
        after = stripped[end:]
        return stripped[:end] if end and after.startswith(" #") else stripped
    return text.partition(" #")[0].strip()


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

    def metadata(self) -> Dict[str, Any]:
        """Return the content of its `metadata.yaml`; empty when it does not exist."""
        return read_metadata(os.path.join(self.path, "metadata.yaml"))


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
        not_implemented: List[Any] = []
        try:
            not_implemented = model.metadata().get("not_implemented") or []
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
