"""No network while a model is loaded, and the name of what was wanted from it.

A model that downloads would hang on a machine without network, and elsewhere measure what nobody
chose. Connections of this process and programs that fetch are refused for a while; what a library
written in C opens by itself is not seen. Standard library only; knows nothing of models.
"""

import contextlib
import errno
import os
import re
import socket
import subprocess
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

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
