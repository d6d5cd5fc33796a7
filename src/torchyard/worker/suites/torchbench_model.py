"""One model of TorchBench, loaded through the project's own interface, and why it could not be.

The interface: a package with a class `Model(test, device, batch_size, extra_args)` whose `get_module()`
gives a module and its inputs. Loading changes much of the process; what is not the model's own is put
back here. Knows nothing of losses and optimisers.
"""

import contextlib
import importlib
import os
import sys
import traceback
from typing import Any, Iterator, Optional, Tuple

import torch

from torchyard.worker.built import CannotBuild
from torchyard.worker.suites.choices import nearest
from torchyard.worker.suites.torchbench_metadata import UnreadableMetadata
from torchyard.worker.suites.torchbench_offline import NetworkWanted, Wanted, no_network
from torchyard.worker.suites.torchbench_tree import PACKAGE, ModelFolder, Tree

TESTS = {"inference": "eval", "training": "train"}


class Asked:
    """Which model, and how it is wanted."""

    def __init__(
        self, tree: Tree, name: str, mode: str, batch_size: Optional[int], device: Any
    ) -> None:
        self.tree = tree
        self.name = name
        self.mode = mode
        self.batch_size = batch_size
        self.device = torch.device(device)
        self.label = "torchbench/" + name
        self.folder = tree.find(name)

    @property
    def test(self) -> str:
        """TorchBench's word for the mode."""
        return TESTS[self.mode]


def load(asked: Asked) -> Tuple[Any, Any, Any]:
    """The instance of the model's class, its module and its inputs; `CannotBuild` says why not."""
    _refuse_what_metadata_refuses(asked)
    with _process_as_before(asked.tree), no_network() as wanted:
        try:
            model_class = _model_class(asked)
            _check_batch_size(asked, model_class)
            if asked.device.type == "cuda" and asked.device.index is not None:
                torch.cuda.set_device(asked.device)  # models compare the name with "cuda"
            instance = model_class(
                test=asked.test,
                device=asked.device.type,
                batch_size=asked.batch_size,
                extra_args=[],
            )
            pair = instance.get_module()
            module, inputs = pair
        except CannotBuild:
            raise
        except (Exception, SystemExit, NetworkWanted) as error:
            if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
                raise
            raise _why(asked, error, wanted) from error
    if asked.mode == "inference" and not _evaluates_without_gradients(instance):
        raise CannotBuild(
            f"{asked.label} needs gradients when it evaluates, which inference has not",
            hint="leave it out, or use the mode training",
        )
    return instance, module, inputs


def _model_class(asked: Asked) -> Any:
    """The class `Model`, by importing its package: `load_model_by_name` hides what is missing.

    Names without a folder are those that the project makes from lists of other packages' models.
    """
    package = importlib.import_module(PACKAGE)
    loaded_from = os.path.dirname(os.path.dirname(os.path.abspath(str(package.__file__))))
    if os.path.realpath(loaded_from) != os.path.realpath(asked.tree.root):
        raise CannotBuild(
            f"{PACKAGE} is already loaded from {loaded_from}, not from {asked.tree.root}",
            hint="give one path for all workloads of a process",
        )
    if asked.folder is None:
        by_name = getattr(package, "load_model_by_name", None)
        found = _by_name(by_name, asked.name) if by_name is not None else None
        if found is None:
            known = [model.name for model in asked.tree.models()]
            raise CannotBuild(
                f"{asked.tree.root} has no model {asked.name!r}{nearest(asked.name, known)}",
                hint="`torchyard workloads --suite torchbench` lists them",
            )
        return found
    code = importlib.import_module(asked.folder.package)
    found = getattr(code, "Model", None)
    if found is None:
        raise CannotBuild(
            f"{asked.folder.path}/__init__.py has no class Model", hint="leave this model out"
        )
    return found


def _by_name(by_name: Any, name: str) -> Any:
    try:
        return by_name(name)
    except Exception as error:
        if type(error).__name__ == "ModelNotFoundError":
            return None
        raise


def _check_batch_size(asked: Asked, model_class: Any) -> None:
    default = getattr(model_class, f"DEFAULT_{asked.test.upper()}_BSIZE", None)
    fixed = not getattr(model_class, "ALLOW_CUSTOMIZE_BSIZE", True)
    if asked.batch_size is not None and fixed and asked.batch_size != default:
        raise CannotBuild(
            f"{asked.label} does not let its batch size be chosen: it is {default}",
            hint="leave out the batch size",
        )


def _refuse_what_metadata_refuses(asked: Asked) -> None:
    """`not_implemented` of metadata.yaml: a rule refuses when all that it says of us is so."""
    if asked.folder is None:
        return
    try:
        rules = asked.folder.metadata().get("not_implemented") or []
    except UnreadableMetadata:
        return  # it only tells earlier what loading tells, too
    here = {"test": asked.test, "device": asked.device.type}
    for rule in rules if isinstance(rules, list) else []:
        if isinstance(rule, dict) and rule and all(here.get(key) == rule[key] for key in rule):
            said = ", ".join(f"{key} {rule[key]}" for key in rule)
            raise CannotBuild(
                f"{asked.label} is not implemented for {said}, says its metadata.yaml",
                hint="use another mode or device",
            )


def _evaluates_without_gradients(instance: Any) -> bool:
    asks = getattr(instance, "eval_in_nograd", None)
    return bool(asks()) if callable(asks) else True


def _why(asked: Asked, error: BaseException, wanted: Wanted) -> CannotBuild:
    """What went wrong, in the order of what a user can mend."""
    install = f"install what it needs: `torchyard build torchbench --set model={asked.name} --base TARGET`"
    if isinstance(error, ModuleNotFoundError):
        return CannotBuild(
            f"{asked.label} needs the package {error.name}, which the target does not have",
            hint=install,
        )
    wanted.note_cause(error)
    if wanted.names:
        return CannotBuild(
            f"{asked.label} wanted the network: {wanted}",
            hint="its files must be here before; an install.py that fetches them runs with "
            f"`torchyard build torchbench --set model={asked.name} --set install-online=true`",
        )
    said = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, NotImplementedError):
        return CannotBuild(
            f"{asked.label} offers no {asked.mode}: {said}", hint="use the other mode"
        )
    if isinstance(error, FileNotFoundError):
        return CannotBuild(f"{asked.label} needs a file: {error}", hint=install)
    return CannotBuild(
        f"{asked.label} could not be loaded: {said}{_place(asked.folder, error)}",
        hint="the log of the run holds what it printed",
    )


def _place(folder: Optional[ModelFolder], error: BaseException) -> str:
    """The last line of the model's own files that the error passed through."""
    if folder is None:
        return ""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(folder.path + os.sep)
    ]
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({os.path.basename(error.filename)} line {error.lineno})"
    if not frames:
        return ""
    return f" ({os.path.relpath(frames[-1].filename, folder.path)} line {frames[-1].lineno})"


@contextlib.contextmanager
def _process_as_before(tree: Tree) -> Iterator[None]:
    """The tree on the path and as the current folder, no arguments; torch's switches put back.

    TorchBench's base class replaces `torch.manual_seed` by one that knows a single seed.
    """
    if tree.root not in sys.path:
        sys.path.insert(0, tree.root)
    seed, folder, arguments = torch.manual_seed, os.getcwd(), sys.argv
    gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    threads = torch.get_num_threads()
    os.chdir(tree.root)
    sys.argv = sys.argv[:1]
    try:
        yield
    finally:
        os.chdir(folder)
        sys.argv = arguments
        torch.manual_seed = seed
        torch.set_grad_enabled(gradients)
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
