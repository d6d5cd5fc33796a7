"""Template processes, from which workers are forked instead of being started.

A pool starts one template for each environment and ends all of them. It can serve other controllers:
cells of a sweep are separate processes and share the templates of their driver. They ask over a
socket in a private folder, whose path they get in an environment variable, for the socket of a
template, and then talk to the template itself (`fork_target`).

A template that dies is not replaced: workers are started without it then, and the run has a note.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, Self

from torchyard.core.records import decode, encode
from torchyard.errors import TorchyardError
from torchyard.process.ending import WorkerFailure
from torchyard.process.owner import start_ticks
from torchyard.process.start import LaunchSpec
from torchyard.process.tree import controller_mark
from torchyard.process.worker_process import WorkerProcess
from torchyard.worker.template import FIXED, PER_LAUNCH

POOL_VARIABLE: Final = "TORCHYARD_TEMPLATES"
"""Socket of the pool that a process shares with others."""
CACHE_VARIABLE: Final = "TORCHYARD_CACHE"
"""Folder of compiled artifacts that a process shares with others."""
MOST_TEMPLATES: Final = 12
"""Each one has about 200 MB of memory of its own."""
_ANSWER_LIMIT_S: Final = 1800.0
_START_LIMITS: Final = 3.0
"""Time limit of a template, relative to that of a worker: it also prepares inductor."""
_FOLDER: Final = "torchyard-templates-"
_LONGEST_PARENT: Final = 30
"""The path of a socket has at most 107 bytes."""


class TemplateSource(Protocol):
    """Where a controller gets templates."""

    def sockets(self, specs: Sequence[LaunchSpec], modules: Sequence[str]) -> list[Path | str]:
        """Return the socket of a template for each specification, or why there is none.

        Templates that do not exist are started side by side. Returns when all are ready.
        """


class _Template:
    """One template process, or why there is none."""

    def __init__(
        self, spec: LaunchSpec, modules: Sequence[str], path: Path, entry: Path | None
    ) -> None:
        self._path = path
        self._limit_s = _START_LIMITS * spec.start_limit_s
        self._why_not: str | None = None
        self._worker: WorkerProcess | None = None
        arguments = (f"--import={','.join(modules)}", f"--template={path}")
        spec = replace(
            spec,
            name=f"template of {spec.name}",
            arguments=(*spec.arguments, *arguments),
            stopped_between=False,
            working_folder=str(path.parent),
        )
        try:
            self._worker = WorkerProcess.start(spec, log_path=path.with_suffix(".log"), entry=entry)
        except TorchyardError as error:
            self._why_not = error.what

    def socket(self) -> Path | str:
        """Wait until the template is ready; return its socket, or why it cannot be used."""
        if self._why_not is None and self._worker is not None:
            try:
                self._why_not = self._worker.ask("hello", limit_s=self._limit_s)["why_not"]
            except WorkerFailure as error:
                self._why_not = error.what
            if self._why_not:
                self.kill()
        if not self._why_not and self._worker is not None and not self._worker.is_alive:
            self._why_not = "the template process was killed"
        return self._why_not or self._path

    def kill(self) -> None:
        if self._worker is not None:
            self._worker.kill()


class TemplatePool:
    """The templates that this process owns; a context manager that ends them."""

    def __init__(
        self,
        *,
        entry: Path | None = None,
        cache: Path | None = None,
        modules: Sequence[str] = (),
    ) -> None:
        """`entry` is a script to run instead of `boot.py`.

        `cache` is a folder for the compiled artifacts of all processes that are served; it is removed
        at the end. By default it is in the private folder of the pool. `modules` are those of all
        processes that are expected: each template imports all of them, so that there are fewer.
        """
        self._entry = entry
        self._modules = tuple(modules)
        self._cache = cache
        self._folder: Path | None = None
        self._templates: dict[object, _Template] = {}
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None

    def sockets(self, specs: Sequence[LaunchSpec], modules: Sequence[str]) -> list[Path | str]:
        """Return the socket of a template for each specification, or why there is none."""
        if set(modules) <= set(self._modules):
            modules = self._modules
        with self._lock:
            keys = [(_key(spec), tuple(modules)) for spec in specs]
            for key, spec in zip(keys, specs, strict=True):
                if key not in self._templates and len(self._templates) < MOST_TEMPLATES:
                    path = self._private_folder() / f"{len(self._templates)}.socket"
                    self._templates[key] = _Template(spec, modules, path, self._entry)
            full = f"there are {MOST_TEMPLATES} template processes already"
            return [
                self._templates[key].socket() if key in self._templates else full for key in keys
            ]

    def serve(self) -> dict[str, str]:
        """Serve other processes in a thread; return the variables that tell them."""
        path = self._private_folder() / "pool.socket"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(
            target=self._accept, args=(self._listener,), name="torchyard-templates", daemon=True
        ).start()
        return {POOL_VARIABLE: str(path), CACHE_VARIABLE: str(self.cache)}

    @property
    def cache(self) -> Path:
        """Folder of compiled artifacts."""
        return self._private_folder() / "cache" if self._cache is None else self._cache

    def close(self) -> None:
        """End all templates, and with them the workers forked from them."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for template in self._templates.values():
            template.kill()
        self._templates.clear()
        for folder in (self._cache, self._folder):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _private_folder(self) -> Path:
        if self._folder is None:
            _remove_lost_folders()
            mark = controller_mark().strip().replace(":", "-")
            parent = tempfile.gettempdir()
            if len(parent) > _LONGEST_PARENT:
                parent = "/tmp"  # noqa: S108  # the folder in it is private
            self._folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{mark}-", dir=parent))
        return self._folder

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection = listener.accept()[0]
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError), connection.makefile("rb") as file:
            request = json.loads(file.readline())
            specs = [decode(LaunchSpec, one, where="request") for one in request["specs"]]
            answers = self.sockets(specs, request["modules"])
            reply = [{"socket" if isinstance(one, Path) else "why": str(one)} for one in answers]
            connection.sendall(json.dumps(reply).encode() + b"\n")


def _remove_lost_folders() -> None:
    """Remove the folders of pools whose process was killed."""
    namespace = controller_mark().strip().rpartition(":")[2]
    for folder in Path(tempfile.gettempdir()).glob(_FOLDER + "*"):
        pid, _, rest = folder.name.removeprefix(_FOLDER).partition("-")
        ticks, _, rest = rest.partition("-")
        here = rest.startswith(f"{namespace}-") and pid.isdecimal()
        if here and str(start_ticks(int(pid))) != ticks:
            shutil.rmtree(folder, ignore_errors=True)


def _key(spec: LaunchSpec) -> object:
    """Return what tells templates apart: everything that acts before or while torch is imported."""
    per_launch = PER_LAUNCH - FIXED
    return (
        spec.python,
        tuple(pair for pair in spec.variables if pair[0] not in per_launch),
        spec.preload,
        spec.randomize_addresses,
        spec.arguments,
    )


class RemotePool:
    """The pool of another process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sockets(self, specs: Sequence[LaunchSpec], modules: Sequence[str]) -> list[Path | str]:
        """Return the socket of a template for each specification, or why there is none."""
        request = {"specs": [encode(spec) for spec in specs], "modules": list(modules)}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_ANSWER_LIMIT_S)
                connection.connect(str(self._path))
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as file:
                    answers: list[dict[str, Any]] = json.loads(file.readline())
        except (OSError, ValueError) as error:
            return [f"the pool of template processes did not answer: {error}"] * len(specs)
        return [Path(one["socket"]) if "socket" in one else str(one["why"]) for one in answers]


def pool_of_environment() -> TemplateSource | None:
    """Return the pool that the environment names, if any."""
    path = os.environ.get(POOL_VARIABLE, "")
    return RemotePool(Path(path)) if path else None


def cache_of_environment() -> Path | None:
    """Return the folder of compiled artifacts that the environment names, if any."""
    path = os.environ.get(CACHE_VARIABLE, "")
    return Path(path) if path else None
