"""Start a worker: prepare its command and environment, then start the process with its pipes.

`prepare` turns a LaunchSpec into a checked command and environment and starts nothing.
`start_target` starts the trampoline, sends it its plan and reads from it whether the execution
succeeded.

Every process is started by one thread that lives as long as the controller: PR_SET_PDEATHSIG is
bound to the thread that forked, so a worker started by a short-lived thread would be ended with it.
This also makes a start atomic, since Ctrl-C reaches only the main thread.

Preloaded libraries given by bare name are searched in the loader's cache, then in the standard
folders. Only libraries of this machine's own architecture are considered: a 32-bit library of the
same name cannot be preloaded.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import queue
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, Self

import torchyard.worker
from torchyard.errors import MissingTool, UsageError
from torchyard.process import trampoline
from torchyard.process.ending import ExitWatch, RelayedExit, WorkerFailure
from torchyard.process.programs import capture
from torchyard.process.tree import CONTROLLER_VARIABLE, LAUNCH_VARIABLE, confined, controller_mark
from torchyard.process.worker_io import OutputLog, RequestPipes

_CACHE_ARCHITECTURES: Final = {"x86_64": "x86-64", "aarch64": "AArch64"}
_FOLDERS: Final = ("/usr/local/lib", "/lib", "/usr/lib", "/lib64", "/usr/lib64")


def find_library(name: str) -> Path | None:
    """Return the path of a library such as `libtcmalloc.so.4`; None when it is not installed."""
    return _in_cache(name) or _in_folders(name)


def _in_cache(name: str) -> Path | None:
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin:/bin:/usr/bin")
    if program is None:
        return None
    try:
        listing = capture([program, "-p"], limit_s=10.0)
    except (OSError, subprocess.SubprocessError):
        return None
    architecture = _CACHE_ARCHITECTURES.get(platform.machine(), "")
    for line in listing.stdout.splitlines():
        library, _, rest = line.strip().partition(" ")
        kind, _, path = rest.partition(" => ")
        if library == name and architecture in kind and path:
            return Path(path)
    return None


def _in_folders(name: str) -> Path | None:
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    for folder in _FOLDERS:
        for path in (Path(folder) / multiarch / name, Path(folder) / name):
            if path.is_file():
                return path
    return None


BOOT_FILE: Final = Path(torchyard.worker.__file__).resolve().parent / "boot.py"

# -s   no packages from the user's home folder: a target is what is installed in it
# -u   unbuffered: what a worker printed before it died is in the log
# boot.py removes the script's folder from the path, because -P needs Python 3.11. Not -E or -I: a
# target may need its own PYTHONPATH (a build that runs from its source tree); it gets the value in
# LaunchSpec.variables, and the controller's value is removed from the environment below.
_FLAGS: Final = ("-s", "-u", "-X", "faulthandler")

_CONTROLLER_PREFIXES: Final = (
    *("PYTHON", "TORCHYARD_", "LD_PRELOAD", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV"),
)
"""Prefixes of variables that describe the controller's interpreter, not the target's."""


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """How one worker is started."""

    name: str
    """For messages."""
    python: str
    """Interpreter of the target: a path, or a name on the PATH that the worker gets."""
    variables: tuple[tuple[str, str], ...]
    """Added to the controller's environment after variables about its own interpreter are removed."""
    preload: tuple[str, ...] = ()
    """Libraries for LD_PRELOAD, before those that `variables` name."""
    randomize_addresses: bool = True
    """False requests the same address layout in each process; a seccomp filter may refuse that."""
    memory_limit_bytes: int | None = None
    start_limit_s: float = 120.0
    arguments: tuple[str, ...] = ()
    """Extra arguments of the worker."""
    working_folder: str | None = None
    stack_bytes: int = 0
    """Shift of the stack of a forked worker; a started one gets it by the size of its environment."""
    stopped_between: bool = False
    """Stop the worker (SIGSTOP) between requests: its spinning idle threads would disturb others."""


@dataclass(frozen=True, kw_only=True)
class PreparedLaunch:
    """A checked launch: everything that execve needs except the pipe descriptors."""

    mark: str
    python: str
    environment: Mapping[str, str]
    preload: tuple[str, ...]
    entry: Path
    arguments: tuple[str, ...]

    def command(self, read_fd: int, write_fd: int) -> list[str]:
        """Return the argument vector of the worker."""
        pipes = (str(read_fd), str(write_fd))
        return [self.python, *_FLAGS, str(self.entry), *pipes, *self.arguments]


def prepare(spec: LaunchSpec, *, launch_mark: str, entry: Path | None = None) -> PreparedLaunch:
    """Check the specification as far as possible before a process exists."""
    preload = tuple(_preload_path(library, spec.name) for library in spec.preload)
    environment = _environment(spec, preload, launch_mark)
    if spec.working_folder is not None and not Path(spec.working_folder).is_dir():
        raise UsageError(
            f"{spec.name}: the working directory {spec.working_folder} does not exist",
            hint="create it, or give another one",
        )
    for text in (*spec.arguments, *(value for _, value in spec.variables)):
        if "\0" in text:
            raise UsageError(f"{spec.name}: {text!r} contains a null byte", hint="remove it")
    return PreparedLaunch(
        mark=launch_mark,
        python=_find_python(spec, environment),
        environment=environment,
        preload=preload,
        entry=entry or BOOT_FILE,
        arguments=spec.arguments,
    )


def _environment(spec: LaunchSpec, preload: tuple[str, ...], mark: str) -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_CONTROLLER_PREFIXES)
    }
    for name, value in spec.variables:
        if not name or "=" in name or "\0" in name:
            raise UsageError(
                f"{spec.name}: {name!r} is not a valid name of an environment variable",
                hint="write variables as NAME = value",
            )
        environment[name] = value
    if preload:
        before = environment.get("LD_PRELOAD")
        environment["LD_PRELOAD"] = ":".join((*preload, *([before] if before else [])))
    environment[LAUNCH_VARIABLE] = mark
    environment[CONTROLLER_VARIABLE] = controller_mark()
    return environment


def _preload_path(library: str, name: str) -> str:
    """Return the library's absolute path. The loader would silently skip a missing library."""
    path = Path(library).absolute() if "/" in library else find_library(library)
    if path is None or not path.is_file():
        raise MissingTool(
            f"{name}: the library to preload was not found: {library}",
            why="the loader would start the worker without it, and the results would be misleading",
            hint="install the package that provides it, or give the full path of the library",
        )
    if any(separator in str(path) for separator in (":", " ", "\0")):
        raise UsageError(
            f"{name}: the path of the library to preload contains a space or a colon: {path}",
            why="LD_PRELOAD is a list separated by spaces and colons",
            hint="create a symbolic link to it with another name",
        )
    return str(path)


def _find_python(spec: LaunchSpec, environment: Mapping[str, str]) -> str:
    python = spec.python
    if "/" in python:
        # Not resolved: the location of the symbolic link identifies the virtual environment.
        path = Path(python).expanduser().absolute()
        problem = "" if os.access(path, os.X_OK) else "it is not executable"
        if path.is_dir() or not path.exists():
            problem = "it is a directory" if path.is_dir() else "it does not exist"
        executable = str(path)
    else:
        which = shutil.which(python, path=environment.get("PATH", os.defpath))
        problem = "" if which else "there is no such program on the PATH"
        executable = which or python
    if problem:
        raise WorkerFailure(
            f"{spec.name}: the interpreter {python!r} cannot be started: {problem}",
            kind="no-python",
            hint="give the path of a Python that has torch, such as .venv/bin/python",
        )
    return executable


Start = Callable[[], "subprocess.Popen[bytes]"]
_StartRequest = tuple[Start, "Future[subprocess.Popen[bytes]]"]


class _StartingThread:
    """The thread that starts all processes; created again in a fork of the controller."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._requests: queue.SimpleQueue[_StartRequest] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="torchyard-starter", daemon=True).start()

    def run(self, start: Start) -> subprocess.Popen[bytes]:
        future: Future[subprocess.Popen[bytes]] = Future()
        self._requests.put((start, future))
        try:
            return future.result()
        except BaseException:
            # Interrupted while waiting: the process would have no owner, so kill it once it exists.
            future.add_done_callback(_abandon)
            raise

    def _serve(self) -> None:
        while True:
            start, future = self._requests.get()
            try:
                future.set_result(start())
            except BaseException as error:  # noqa: BLE001  # re-raised in the waiting thread
                future.set_exception(error)
            del start, future


def _abandon(future: Future[subprocess.Popen[bytes]]) -> None:
    if future.exception() is None:
        process = future.result()
        process.kill()
        process.wait()


_thread: _StartingThread | None = None
_thread_lock = threading.Lock()


def start_in_long_lived_thread(start: Start) -> subprocess.Popen[bytes]:
    """Call `start` in the thread that lives as long as the controller, and return its result.

    The process may use the CPUs of the calling thread.
    """
    global _thread  # noqa: PLW0603  # one per process
    with _thread_lock:
        if _thread is None or _thread.owner != os.getpid():
            _thread = _StartingThread()
        thread = _thread
    if not hasattr(os, "sched_getaffinity"):
        return thread.run(start)
    cpus = os.sched_getaffinity(0)

    def start_there() -> subprocess.Popen[bytes]:
        with confined(cpus):
            return start()

    return thread.run(start_there)


_TRAMPOLINE_FILE: Final = Path(trampoline.__file__).resolve()
_LOG_PIPE_BYTES: Final = 1024 * 1024
_FORK_LIMIT_S: Final = 10.0


class StartRefused(Exception):
    """The trampoline could not execute the target's interpreter."""

    def __init__(self, error_number: int, step: str) -> None:
        super().__init__(f"{step}: {os.strerror(error_number)}")
        self.error_number = error_number
        self.step = step


class ProcessHandle(Protocol):
    """A process that the controller reaps when its whole tree has ended."""

    pid: int

    def wait(self) -> object:
        """Reap the process."""


@dataclass(frozen=True, kw_only=True)
class StartedWorker:
    """A process that is or becomes a worker, and the controller's ends of its pipes."""

    process: ProcessHandle
    exit: ExitWatch
    pipes: RequestPipes
    log: OutputLog
    controller_address: str = ""
    """The address of this node, as the node of the worker reaches it; empty on the same node."""

    def wait_until_executed(self, *, limit_s: float) -> bool:  # noqa: ARG002
        """Return True once the target's interpreter runs, False on timeout."""
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the worker itself."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def end_elsewhere(self) -> None:
        """End the parts of the worker that are not on this node; a no-op without any."""


@dataclass(frozen=True, kw_only=True)
class Trampoline:
    """A trampoline that waits for its plan."""

    process: subprocess.Popen[bytes]
    plan_fd: int
    status_fd: int

    def execute(self, plan: bytes, *, limit_s: float) -> bool:
        """Send the plan; return True once its command runs, False on timeout.

        Raises StartRefused when the working directory or the command is refused by the system.
        """
        deadline = time.monotonic() + limit_s
        with os.fdopen(self.status_fd, "rb", buffering=0) as status:
            # If the trampoline has already ended, the status shows it.
            with suppress(BrokenPipeError), os.fdopen(self.plan_fd, "wb") as file:
                file.write(plan)
            poll = select.poll()
            poll.register(status, select.POLLIN)
            output = b""
            while True:
                if not poll.poll(max(deadline - time.monotonic(), 0.0) * 1000.0):
                    return False
                chunk = status.read(4096)
                if not chunk:
                    break
                output += chunk
        report = output.decode("ascii", errors="replace").splitlines()
        if report == ["ready"]:  # and then the execution closed the pipe
            return True
        error_number, _, step = (report[-1] if report else "0 trampoline").partition(" ")
        raise StartRefused(int(error_number), step)


@dataclass(frozen=True, kw_only=True)
class StartedTarget(StartedWorker):
    """A process that is about to execute the target."""

    trampoline: Trampoline
    plan: bytes

    def wait_until_executed(self, *, limit_s: float) -> bool:
        """Return True once the target's interpreter runs, False on timeout. Raises StartRefused."""
        return self.trampoline.execute(self.plan, limit_s=limit_s)


class _NewPipes:
    """Pipes to a process that is about to be started; a context manager.

    It closes the worker's ends at its end, and on an exception the controller's ends as well.
    """

    def __init__(self, log_path: Path) -> None:
        self._worker_ends, self._on_failure = ExitStack(), ExitStack()
        try:
            request_fd, self.read_fd = self.pipe(to_worker=True)
            answer_fd, self.write_fd = self.pipe(to_worker=False)
            log_fd, self.output_fd = os.pipe()
            self._worker_ends.callback(os.close, self.output_fd)
            with suppress(OSError):  # above the user's limit of pipe memory: slower, still correct
                fcntl.fcntl(self.output_fd, fcntl.F_SETPIPE_SZ, _LOG_PIPE_BYTES)
            self.log = OutputLog(log_fd, log_path)
            self._on_failure.callback(self.log.finish)
            self.requests = RequestPipes(read_fd=answer_fd, write_fd=request_fd)
        except BaseException:
            self._close(failed=True)
            raise

    def pipe(self, *, to_worker: bool) -> tuple[int, int]:
        """Create a pipe; return the controller's end and the worker's end."""
        read_fd, write_fd = os.pipe()
        own_fd, worker_fd = (write_fd, read_fd) if to_worker else (read_fd, write_fd)
        self._on_failure.callback(os.close, own_fd)
        self._worker_ends.callback(os.close, worker_fd)
        return own_fd, worker_fd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(failed=kind is not None)

    def _close(self, *, failed: bool) -> None:
        self._worker_ends.close()
        if failed:
            self._on_failure.close()


def start_target(spec: LaunchSpec, launch: PreparedLaunch, *, log_path: Path) -> StartedTarget:
    """Start the trampoline in its own session; it waits for its plan."""
    with _NewPipes(log_path) as pipes:
        marks = {name: launch.environment[name] for name in (LAUNCH_VARIABLE, CONTROLLER_VARIABLE)}
        trampoline = start_trampoline(
            output_fd=pipes.output_fd, pass_fds=(pipes.read_fd, pipes.write_fd), marks=marks
        )
        return StartedTarget(
            process=trampoline.process,
            exit=ExitWatch(trampoline.process.pid),
            pipes=pipes.requests,
            log=pipes.log,
            trampoline=trampoline,
            plan=plan_of(
                launch.command(pipes.read_fd, pipes.write_fd),
                launch.environment,
                folder=spec.working_folder or "",
                randomize_addresses=spec.randomize_addresses,
            ),
        )


def start_trampoline(
    *, output_fd: int, pass_fds: tuple[int, ...] = (), marks: Mapping[str, str]
) -> Trampoline:
    """Start a trampoline in its own session, whose output goes to a descriptor."""
    with ExitStack() as on_failure, ExitStack() as worker_ends:
        worker_plan_fd, plan_fd = os.pipe()
        status_fd, worker_status_fd = os.pipe()
        for stack, fds in (
            (on_failure, (plan_fd, status_fd)),
            (worker_ends, (worker_plan_fd, worker_status_fd)),
        ):
            for fd in fds:
                stack.callback(os.close, fd)
        command = [
            *(sys.executable, "-I", "-S", str(_TRAMPOLINE_FILE)),
            *(str(number) for number in (os.getpid(), worker_plan_fd, worker_status_fd)),
        ]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output_fd,
                stderr=output_fd,
                pass_fds=(*pass_fds, worker_plan_fd, worker_status_fd),
                start_new_session=True,
                env={**os.environ, **marks},
            )

        process = start_in_long_lived_thread(start)
        on_failure.pop_all()
        return Trampoline(process=process, plan_fd=plan_fd, status_fd=status_fd)


class NoTemplate(Exception):
    """A worker cannot be forked from a template; the message says why."""


class _ForkedProcess:
    """A worker that its template reaps."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._connection = connection

    def wait(self) -> None:
        """Let the template reap the process."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)


def fork_target(
    template: Path, spec: LaunchSpec, launch: PreparedLaunch, *, log_path: Path
) -> StartedWorker:
    """Fork a worker from the template that listens at this socket. Raises NoTemplate."""
    request = {
        "environment": dict(launch.environment),
        "folder": spec.working_folder or "",
        "arguments": launch.arguments,
        "umask": _umask(),
        "stack_bytes": spec.stack_bytes,
    }
    with _NewPipes(log_path) as pipes, ExitStack() as on_failure:
        connection = on_failure.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        try:
            connection.settimeout(_FORK_LIMIT_S)
            connection.connect(str(template))
            data = json.dumps(request).encode() + b"\n"
            fds = [pipes.read_fd, pipes.write_fd, pipes.output_fd]
            sent = socket.send_fds(connection, [data], fds)
            if sent < len(data):
                connection.sendall(data[sent:])
            with connection.makefile("rb", buffering=0) as file:
                line = file.readline()
            answer = json.loads(line)
        except (OSError, ValueError) as error:
            raise NoTemplate(f"the template process did not answer: {error}") from error
        if "pid" not in answer:
            raise NoTemplate(str(answer.get("why", "it refused")))
        on_failure.pop_all()
        return StartedWorker(
            process=_ForkedProcess(connection, answer["pid"]),
            exit=RelayedExit(connection),
            pipes=pipes.requests,
            log=pipes.log,
        )


def _umask() -> int:
    """Return the umask without changing it, which would affect other threads."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask"))


def plan_of(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: str = "",
    randomize_addresses: bool = True,
) -> bytes:
    """Return the plan of a trampoline."""
    return b"\0".join(
        (
            b"1" if randomize_addresses else b"0",
            os.fsencode(folder),
            str(len(command)).encode(),
            *(os.fsencode(argument) for argument in command),
            *(os.fsencode(f"{name}={value}") for name, value in environment.items()),
            b"end",
        )
    )
