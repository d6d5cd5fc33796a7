"""Load one TorchBench model through the project's own interface, without network access."""

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

from torchyard.worker.devices import device_of
from torchyard.worker.suites.choices import nearest
from torchyard.worker.suites.torchbench.checkout import (
    PACKAGE,
    ModelFolder,
    TorchbenchCheckout,
    UnreadableMetadata,
)
from torchyard.worker.workload import CannotBuild

# With these variables, libraries use their caches and do not try to connect.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")
_FETCHERS = ("wget", "curl", "gdown", "aws", "gsutil", "rsync", "scp", "ssh", "pip", "pip3")
_GIT_FETCHES = ("clone", "fetch", "pull", "submodule", "lfs")
_HERE = ("localhost", "127.0.0.1", "::1", "")
# The first refusals look like a network failure, so that a library can fall back to its cache. A
# library that still tries after them retries in a loop.
_MAX_REFUSALS = 5


# Errors of libraries in offline mode when a file is missing in their cache.
_NOT_IN_CACHE = {
    "LocalEntryNotFoundError": "huggingface.co",
    "OfflineModeIsEnabled": "huggingface.co",
}


class NetworkWanted(BaseException):
    """Ends a loop of retries; not caught by an `except Exception` of a model."""


class RefusedRequests:
    """Network requests that were refused."""

    def __init__(self) -> None:
        self.names: List[str] = []

    def refuse(self, name: str) -> None:
        """Record the request, and fail like an unreachable network."""
        self.names.append(name)
        if len(self.names) > _MAX_REFUSALS:
            raise NetworkWanted(name)
        raise OSError(errno.ENETUNREACH, "the network is off while a model is loaded: " + name)

    def note_cause(self, error: BaseException) -> None:
        """Record the server behind an error of a library in offline mode."""
        link: Optional[BaseException] = error
        while link is not None:
            if type(link).__name__ in _NOT_IN_CACHE:
                self.names.append(_NOT_IN_CACHE[type(link).__name__])
            link = link.__cause__ or link.__context__

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys(self.names))


@contextlib.contextmanager
def no_network() -> Iterator[RefusedRequests]:
    """Refuse connections to other machines and download programs, and undo that afterwards."""
    refused = RefusedRequests()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_environment())
        for owner, name, replacement in _replacements(refused):
            stack.enter_context(_replaced(owner, name, replacement))
        yield refused


def _replacements(refused: RefusedRequests) -> List[Tuple[Any, str, Any]]:
    getaddrinfo, gethostbyname = socket.getaddrinfo, socket.gethostbyname
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex
    start, system = subprocess.Popen.__init__, os.system

    def refused_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_here(host):
            refused.refuse(_text(host))
        return getaddrinfo(host, *args, **kwargs)

    def refused_gethostbyname(host: Any) -> Any:
        if not _is_here(host):
            refused.refuse(_text(host))
        return gethostbyname(host)

    def refused_connect(self: Any, address: Any) -> Any:
        if _goes_out(self, address):
            refused.refuse(_text(address[0]))
        return connect(self, address)

    def refused_connect_ex(self: Any, address: Any) -> Any:
        if _goes_out(self, address):
            refused.refuse(_text(address[0]))
        return connect_ex(self, address)

    def refused_start(self: Any, args: Any, *rest: Any, **kwargs: Any) -> Any:
        _refuse_fetching(refused, args)
        return start(self, args, *rest, **kwargs)

    def refused_system(command: Any) -> Any:
        _refuse_fetching(refused, _text(command))
        return system(command)

    return [
        (socket, "getaddrinfo", refused_getaddrinfo),
        (socket, "gethostbyname", refused_gethostbyname),
        (socket.socket, "connect", refused_connect),
        (socket.socket, "connect_ex", refused_connect_ex),
        (subprocess.Popen, "__init__", refused_start),
        (os, "system", refused_system),
    ]


def _refuse_fetching(refused: RefusedRequests, command: Any) -> None:
    """Refuse a download command; a string may hold several shell commands."""
    if isinstance(command, str):
        lines = [part.split() for part in re.split(r"[;&|\n]+", command)]
    else:
        lines = [_words(command)]
    for words in lines:
        if fetches(words):
            refused.refuse(" ".join(words)[:200])


def fetches(words: Sequence[str]) -> bool:
    """Whether a command line downloads, judged by the name of its program."""
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
    """Replace an attribute temporarily; an inherited one is inherited again afterwards."""
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
    """Remove proxies, so that refused requests show the server and not the proxy."""
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


class ModelRequest:
    """A model with mode, batch size and device."""

    def __init__(
        self, tree: TorchbenchCheckout, name: str, mode: str, batch_size: Optional[int], device: Any
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
        """TorchBench's name of the mode."""
        return TESTS[self.mode]


def load(request: ModelRequest) -> Tuple[Any, Any, Any]:
    """Return the instance of the model's class, its module and its inputs; raise CannotBuild."""
    _check_metadata(request)
    with _process_as_before(request.tree), no_network() as refused:
        try:
            model_class = _model_class(request)
            _check_batch_size(request, model_class)
            device_of(str(request.device)).select()  # models compare the name with "cuda"
            instance = model_class(
                test=request.test,
                device=request.device.type,
                batch_size=request.batch_size,
                extra_args=[],
            )
            pair = instance.get_module()
            module, inputs = pair
        except CannotBuild:
            raise
        except (Exception, SystemExit, NetworkWanted) as error:
            if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
                raise
            raise _why(request, error, refused) from error
    if request.mode == "inference" and not _evaluates_without_gradients(instance):
        raise CannotBuild(
            f"{request.label} needs gradients for evaluation, which inference mode does not have",
            hint="use mode training, or remove this model from the selection",
        )
    return instance, module, inputs


def _model_class(request: ModelRequest) -> Any:
    """Import the package of the model and return its class `Model`.

    `load_model_by_name` hides missing packages, and is used only for names without a folder, which the
    project generates from lists of models of other packages.
    """
    package = importlib.import_module(PACKAGE)
    loaded_from = os.path.dirname(os.path.dirname(os.path.abspath(str(package.__file__))))
    if os.path.realpath(loaded_from) != os.path.realpath(request.tree.root):
        raise CannotBuild(
            f"{PACKAGE} is already loaded from {loaded_from}, not from {request.tree.root}",
            hint="use the same path for all workloads of a process",
        )
    if request.folder is None:
        load_by_name = getattr(package, "load_model_by_name", None)
        model_class = _by_name(load_by_name, request.name) if load_by_name is not None else None
        if model_class is None:
            available = [model.name for model in request.tree.models()]
            raise CannotBuild(
                f"{request.tree.root} has no model {request.name!r}{nearest(request.name, available)}",
                hint="`torchyard workloads --suite torchbench` lists them",
            )
        return model_class
    code = importlib.import_module(request.folder.package)
    model_class = getattr(code, "Model", None)
    if model_class is None:
        raise CannotBuild(
            f"{request.folder.path}/__init__.py has no class Model",
            hint="remove this model from the selection",
        )
    return model_class


def _by_name(load_by_name: Any, name: str) -> Any:
    try:
        return load_by_name(name)
    except Exception as error:
        if type(error).__name__ == "ModelNotFoundError":
            return None
        raise


def _check_batch_size(request: ModelRequest, model_class: Any) -> None:
    default = getattr(model_class, f"DEFAULT_{request.test.upper()}_BSIZE", None)
    fixed = not getattr(model_class, "ALLOW_CUSTOMIZE_BSIZE", True)
    if request.batch_size is not None and fixed and request.batch_size != default:
        raise CannotBuild(
            f"the batch size of {request.label} is fixed: {default}",
            hint="remove the batch size",
        )


def _check_metadata(request: ModelRequest) -> None:
    """Raise CannotBuild when a `not_implemented` rule of metadata.yaml matches mode and device."""
    if request.folder is None:
        return
    try:
        rules = request.folder.not_implemented()
    except UnreadableMetadata:
        return  # loading reports the same, only later
    here = {"test": request.test, "device": request.device.type}
    for rule in rules:
        if all(here.get(key) == value for key, value in rule.items()):
            excluded = ", ".join(f"{key} {rule[key]}" for key in rule)
            raise CannotBuild(
                f"{request.label} is not implemented for {excluded}, according to its metadata.yaml",
                hint="use another mode or device",
            )


def _evaluates_without_gradients(instance: Any) -> bool:
    asks = getattr(instance, "eval_in_nograd", None)
    return bool(asks()) if callable(asks) else True


def _why(request: ModelRequest, error: BaseException, refused: RefusedRequests) -> CannotBuild:
    """Return the error for a model that cannot be loaded, with a suggested fix."""
    install = f"install its requirements: `torchyard build torchbench --set model={request.name} --base TARGET`"
    if isinstance(error, ModuleNotFoundError):
        return CannotBuild(
            f"{request.label} requires the package {error.name}, which is missing in the target",
            hint=install,
        )
    refused.note_cause(error)
    if refused.names:
        return CannotBuild(
            f"{request.label} needs network access: {refused}",
            hint="its files must be downloaded before; to run its install.py with network access, use "
            f"`torchyard build torchbench --set model={request.name} --set install-online=true`",
        )
    message = traceback.format_exception_only(type(error), error)[-1].strip()
    if isinstance(error, NotImplementedError):
        return CannotBuild(
            f"{request.label} does not support {request.mode}: {message}", hint="use the other mode"
        )
    if isinstance(error, FileNotFoundError):
        return CannotBuild(f"{request.label} needs a missing file: {error}", hint=install)
    return CannotBuild(
        f"{request.label} could not be loaded: {message}{_location(request.folder, error)}",
        hint="its output is in the log of the run",
    )


def _location(folder: Optional[ModelFolder], error: BaseException) -> str:
    """Return the innermost line of the error in the model's own files."""
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
def _process_as_before(tree: TorchbenchCheckout) -> Iterator[None]:
    """Use the checkout as import path and working directory; restore torch's settings (TorchBench replaces some)."""
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
