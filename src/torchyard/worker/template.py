"""A template: a process that has imported torch and forks a worker on request. Runs inside the target.

A template never uses CUDA and forks only while it has a single thread: a fork leaves the locks of others taken.
`serve` returns in forked workers only. A controller sends one JSON line with three descriptors (both pipes, the
output) over the socket and gets ``{"pid": N}`` or ``{"why": TEXT}``, and at the end ``{"exit": CODE}`` or
``{"signal": NUMBER}``. The worker is reaped once the controller closes the connection, so that its PID stays valid.
"""

import array
import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from torchyard.worker import wire

PER_LAUNCH = frozenset(
    {
        *("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHYARD_LAUNCH", "TORCHYARD_YARD"),
        *("TORCHYARD_PAD", "PYTHONHASHSEED"),
        *("COLUMNS", "LINES", "PWD", "OLDPWD", "SHLVL", "_"),  # set by shells and by readline
    }
)
"""Variables in which a forked worker may differ from its template."""
FIXED = frozenset({"TORCHYARD_PAD", "PYTHONHASHSEED"})
"""Of these, the ones that act when an interpreter starts: a worker keeps those of its template."""
_MARKS = ("TORCHYARD_LAUNCH", "TORCHYARD_YARD")
_PR_SET_PDEATHSIG = 1
_REQUEST_LIMIT_S = 5.0
_DESCRIPTORS = 3


class ForkedWorker(NamedTuple):
    """What `serve` returns in a forked worker."""

    channel: wire.Channel
    arguments: List[str]
    stack_bytes: int
    """By how much its stack is to be shifted."""


class _Child:
    """A forked worker, as its template sees it."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self.connection = connection
        self.pid = pid
        self.ended = False
        self.released = False


def serve(channel: wire.Channel, path: str, modules: List[str]) -> Optional[ForkedWorker]:
    """Import the modules and fork workers until the owner is gone; return in a forked worker."""
    environment = dict(os.environ)
    why_not = import_modules(modules) or why_not_fork()
    template = _Template(channel, path, environment)
    try:
        request = channel.receive()
        channel.send(wire.answer({"why_not": why_not}))
        return None if why_not or request.get("ask") == "quit" else template.run()
    finally:
        template.close()


def import_modules(modules: List[str]) -> str:
    """Import the modules; return why torch, the first one, could not be imported.

    Other modules may be missing: a worker that needs them reports it. Modules that ask for GPUs while they
    are imported get the answer of a forked process, because CUDA and NVML start threads when asked.
    """
    before = os.environ.get("TORCH_WARM_POOL")
    os.environ["TORCH_WARM_POOL"] = "0"  # inductor's pool of compile processes has a thread
    try:
        if modules[:1] == ["torch"]:
            importlib.import_module("torch")
            _import_with_torch(modules[1:])
        else:
            _import_all(modules)
    except Exception as error:
        return "%s: %s" % (type(error).__name__, error)
    finally:
        del os.environ["TORCH_WARM_POOL"]
        if before is not None:
            os.environ["TORCH_WARM_POOL"] = before
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page of these objects
    return ""


def _import_with_torch(modules: List[str]) -> None:
    cuda: Any = sys.modules["torch"].cuda
    own = cuda.is_available, cuda.device_count
    gpus = _forked(cuda.device_count)
    cuda.is_available, cuda.device_count = lambda: gpus > 0, lambda: gpus
    try:
        _import_all(modules)
        if "torch._inductor.compile_fx" in sys.modules:
            _prepare_inductor(compile_something=gpus == 0)
    finally:
        cuda.is_available, cuda.device_count = own


def _import_all(modules: List[str]) -> None:
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:
            sys.stderr.write("%s cannot be imported: %s\n" % (name, error))


def _prepare_inductor(*, compile_something: bool) -> None:
    """Make inductor find out what it keeps for the life of a process, by compiling a trivial function.

    That saves seconds of CPU time in each worker. On a machine with GPUs nothing is compiled: it would initialise CUDA.
    """
    import torch
    from torch._inductor import codecache, config

    try:
        tqdm: Any = importlib.import_module("tqdm").tqdm
    except ImportError:
        tqdm = None
    interval = getattr(tqdm, "monitor_interval", None)
    try:
        codecache.torch_key()
        if compile_something:
            if tqdm is not None:
                tqdm.monitor_interval = 0  # no thread
            with config.patch(compile_threads=1):  # no thread either
                torch.compile(lambda x: x * 0.8147 + 0.1357)(torch.ones(4))
    except Exception as error:  # such as a target without a compiler, or another torch
        sys.stderr.write("inductor was not prepared: %s\n" % error)
    finally:
        if tqdm is not None:
            tqdm.monitor_interval = interval
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()


def _forked(function: Callable[[], int]) -> int:
    """Return the result of a function, from 0 to 255, that is called in a forked process."""
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            code = int(function())
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0


def why_not_fork() -> str:
    """Return why this process must not fork workers; empty if it may.

    A first fork is tried, because libraries such as OpenBLAS end their idle threads before a fork.
    """
    torch = sys.modules.get("torch")
    if _forked(lambda: 0 if torch is None else torch.cuda._is_in_bad_fork()):
        return "CUDA is initialised"
    return _too_many_threads()


def _too_many_threads() -> str:
    threads = len(os.listdir("/proc/self/task"))
    return "" if threads == 1 else "it has %d threads" % threads


class _Template:
    def __init__(self, channel: wire.Channel, path: str, environment: Dict[str, str]) -> None:
        self._channel = channel
        self._environment = environment
        self._children: List[_Child] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        # A signal handler alone would leave a gap between the check and the wait.
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._channel.close()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        for child in self._children:
            child.connection.close()

    def run(self) -> Optional[ForkedWorker]:
        """Serve requests; return None when the owner is gone."""
        while True:
            poll = select.poll()
            for fd in (self._channel.fileno(), self._listener.fileno(), self._wake_read):
                poll.register(fd, select.POLLIN)
            for child in self._children:
                if not child.released:
                    poll.register(child.connection, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if self._channel.fileno() in ready:  # the owner has nothing to say but the end
                return None
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            for child in self._children:
                if not child.released and child.connection.fileno() in ready:
                    self._release(child)
            self._reap()
            if self._listener.fileno() in ready:
                worker = self._answer(self._listener.accept()[0])
                if worker is not None:
                    return worker

    def _release(self, child: _Child) -> None:
        """Kill the worker of a closed connection, unless it has ended."""
        child.released = True
        if not child.ended:
            for kill in (os.killpg, os.kill):
                try:
                    kill(child.pid, signal.SIGKILL)
                except OSError:
                    continue

    def _reap(self) -> None:
        for child in list(self._children):
            if not child.ended:
                status = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if status is None:
                    continue
                child.ended = True
                key = "exit" if status.si_code == os.CLD_EXITED else "signal"
                _send(child.connection, {key: status.si_status})
            if child.released:
                os.waitpid(child.pid, 0)
                child.connection.close()
                self._children.remove(child)

    def _answer(self, connection: socket.socket) -> Optional[ForkedWorker]:
        connection.settimeout(_REQUEST_LIMIT_S)
        fds: List[int] = []
        try:
            request, fds = _receive(connection)
            why_not = self._why_not(request) or _too_many_threads()
            if why_not:
                _send(connection, {"why": why_not})
                connection.close()
                return None
            template_pid = os.getpid()
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                connection.close()
                return _become_worker(request, fds, template_pid)
        except (OSError, ValueError, KeyError) as error:
            _send(connection, {"why": "%s: %s" % (type(error).__name__, error)})
            connection.close()
            return None
        finally:
            if os.getpid() == self._channel.owner:
                for fd in fds:
                    os.close(fd)
        self._children.append(_Child(connection, pid))
        _send(connection, {"pid": pid})
        return None

    def _why_not(self, request: Dict[str, Any]) -> str:
        variables = request["environment"]
        names = sorted(
            name
            for name in set(variables) | set(self._environment)
            if name not in PER_LAUNCH and variables.get(name) != self._environment.get(name)
        )
        return "it has another value of %s" % ", ".join(names[:3]) if names else ""


def _receive(connection: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Return the request and its descriptors; `socket.recv_fds` needs Python 3.9."""
    fds = array.array("i")
    data = b""
    while not data.endswith(b"\n"):
        chunk, ancillary, _, _ = connection.recvmsg(
            65536, socket.CMSG_LEN(_DESCRIPTORS * fds.itemsize)
        )
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        if not chunk:
            raise ValueError("the request is incomplete")
        data += chunk
    for fd in fds:
        os.set_inheritable(fd, False)
    if len(fds) != _DESCRIPTORS:
        raise ValueError("%d descriptors instead of %d" % (len(fds), _DESCRIPTORS))
    return json.loads(data.decode("utf-8")), list(fds)


def _send(connection: socket.socket, message: Dict[str, Any]) -> None:
    try:
        connection.sendall(json.dumps(message).encode("utf-8") + b"\n")
    except OSError:  # the controller is gone
        return


def _become_worker(request: Dict[str, Any], fds: List[int], template_pid: int) -> ForkedWorker:
    """Give a forked process what a started one has of its own."""
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != template_pid:  # it died before prctl: no signal will come
            os._exit(1)
        read_fd, write_fd, output_fd = fds
        for stream in (1, 2):
            os.dup2(output_fd, stream)
        os.close(output_fd)
        os.umask(request["umask"])
        if request["folder"]:
            os.chdir(request["folder"])
        _take_environment(request["environment"])
        sys.argv[1:] = [str(read_fd), str(write_fd), *request["arguments"]]
        # What the template's modules registered belongs to the template, such as shared folders.
        atexit._clear()
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed()  # `random` and `tempfile` do this themselves
        channel = wire.Channel(read_fd, write_fd)
        channel.send({"boot": {"python": "%d.%d.%d" % sys.version_info[:3]}})
        return ForkedWorker(channel, list(request["arguments"]), int(request["stack_bytes"]))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _take_environment(variables: Dict[str, str]) -> None:
    """Set the variables of this launch; its marks also where /proc/PID/environ shows them."""
    for name in PER_LAUNCH - FIXED:
        if name in variables:
            os.environ[name] = variables[name]
        else:
            os.environ.pop(name, None)
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    block = b"\0" + ctypes.string_at(start, end - start)
    for name in _MARKS:  # of one length in all processes
        head = b"\0" + name.encode("ascii") + b"="
        place, value = block.index(head) + len(head), variables[name].encode("ascii")
        if block[place + len(value)] != 0:
            raise ValueError("the mark %s has another length" % name)
        ctypes.memmove(start + place - 1, value, len(value))
