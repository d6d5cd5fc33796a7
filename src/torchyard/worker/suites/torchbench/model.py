"""Load one TorchBench model through the project's own interface, without a network, and say why it cannot be loaded."""

import contextlib
import errno
import importlib
import os
import re
import socket
import subprocess
import sys
import traceback
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from torchyard.worker.suites.choices import nearest
from torchyard.worker.suites.torchbench.checkout import (
    PACKAGE,
    ModelFolder,
    Tree,
    UnreadableMetadata,
)
from torchyard.worker.workload import CannotBuild

# Libraries that know these look into their caches and do not try to connect.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
_FETCHERS = ("wget", "curl", "gdown", "aws", "gsutil", "rsync", "scp", "ssh", "pip", "pip3")
_GIT_FETCHES = ("clone", "fetch", "pull", "submodule", "lfs")
_HERE = ("localhost", "127.0.0.1", "::1", "")
# The first refusals look like a network that is down, so that a library can go on from its cache.
# Whoever still tries after them is waiting in a loop.
_PATIENCE = 5


# Errors by which a library that was told to stay offline says that its cache lacks something.
_NOT_IN_CACHE = {
    "LocalEntryNotFoundError": "huggingface.co",
    "OfflineModeIsEnabled": "huggingface.co",
}


class NetworkWanted(BaseException):
    """Ends a loop of retries; no `except Exception` of a model takes it for its own."""


class Wanted:
    """What was asked of the network."""

    def __init__(self) -> None:
        self.names: List[str] = []

    def refuse(self, name: str) -> None:
        """Note it, and fail as a network that is down does."""
        self.names.append(name)
        if len(self.names) > _PATIENCE:
            raise NetworkWanted(name)
        raise OSError(errno.ENETUNREACH, "the network is off while a model is loaded: " + name)

    def note_cause(self, error: BaseException) -> None:
        """Note the server behind an error of a library that did not even try."""
        link: Optional[BaseException] = error
        while link is not None:
            if type(link).__name__ in _NOT_IN_CACHE:
                self.names.append(_NOT_IN_CACHE[type(link).__name__])
            link = link.__cause__ or link.__context__

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(self.names))


@contextlib.contextmanager
def no_network() -> Iterator[Wanted]:
    """Refuse connections to other machines and programs that fetch; put everything back after it."""
    wanted = Wanted()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment())
        for owner, name, replacement in _replacements(wanted):
            stack.enter_context(_replaced(owner, name, replacement))
        yield wanted


def _replacements(wanted: Wanted) -> List[Tuple[Any, str, Any]]:
    look_up, by_name = socket.getaddrinfo, socket.gethostbyname
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex
    start, system = subprocess.Popen.__init__, os.system

    def refused_look_up(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_here(host):
            wanted.refuse(_text(host))
        return look_up(host, *args, **kwargs)

    def refused_by_name(host: Any) -> Any:
        if not _is_here(host):
            wanted.refuse(_text(host))
        return by_name(host)

    def refused_connect(self: Any, address: Any) -> Any:
        if _goes_out(self, address):
            wanted.refuse(_text(address[0]))
        return connect(self, address)

    def refused_connect_ex(self: Any, address: Any) -> Any:
        if _goes_out(self, address):
            wanted.refuse(_text(address[0]))
        return connect_ex(self, address)

    def refused_start(self: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
        _refuse_fetching(wanted, args)
        return start(self, args, *rest, **kwargs)

    def refused_system(command: Any) -> Any:
        _refuse_fetching(wanted, _text(command))
        return system(command)

    return [
        (socket, "getaddrinfo", refused_look_up),
        (socket, "gethostbyname", refused_by_name),
        (socket.socket, "connect", refused_connect),
        (socket.socket, "connect_ex", refused_connect_ex),
        (subprocess.Popen, "__init__", refused_start),
        (os, "system", refused_system),
    ]


def _refuse_fetching(wanted: Wanted, command: Any) -> None:
    """A text is what a shell reads: several commands, each of which may fetch."""
    if isinstance(command, str):
        lines = [part.split() for part in re.split(r"[;&|\n]+", command)]
    else:
        lines = [_words(command)]
    for words in lines:
        if fetches(words):
            wanted.refuse(" ".join(words)[:200])


def fetches(words: Sequence[str]) -> bool:
    """Whether a command line is one that fetches, as far as its program's name tells."""
    if not words:
        return False
    program = os.path.basename(words[0])
    if program.startswith("python") and list(words[1:3]) == ["-m", "pip"]:
        return True
    if program == "git":
        return any(word in _GIT_FETCHES for word in words[1:4])
    return program in _FETCHERS


def _goes_out(connection: Any, address: Any) -> bool:
    inet = (socket.AF_INET, socket.AF_INET6)
    return connection.family in inet and not _is_here(address[0])


def _is_here(host: Any) -> bool:
    return host is None or _text(host) in _HERE


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _words(args: Any) -> List[str]:
    if isinstance(args, (bytes, os.PathLike)):
        return [_text(os.fspath(args))]
    return [_text(os.fspath(each)) for each in args]


@contextlib.contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """An attribute for a while; one that was inherited is inherited again after it."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Without proxies, so that what is refused is the name of the server and not of the proxy."""
    changed = {name: os.environ.get(name) for name in _OFFLINE}
    for name in list(os.environ):
        if name.lower() in _PROXIES:
            changed[name] = os.environ.pop(name)
    os.environ.update(_OFFLINE)
    try:
        yield
    finally:
        _restore(changed)


def _restore(changed: Dict[str, Any]) -> None:
    for name, value in changed.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


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
