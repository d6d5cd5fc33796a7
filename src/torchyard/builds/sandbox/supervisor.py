"""The processes of a sandbox: a supervisor outside, process 1 inside, and the command.

The outer process stays in the process namespace of the machine, forwards signals and watches the
controller. The inner one is process 1 of the sandbox: it makes the sandbox, answers DNS queries and
reaps. When the outer one is killed, the kernel kills the inner one (PR_SET_PDEATHSIG), and with
process 1 its whole namespace. Where Linux gives no process namespace, the inner one ends its
descendants itself.

`Order` holds the parsed options of `sandbox_program.py`. Standard library only, Python 3.8 or
newer; nothing may be imported after the root has been entered.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from contextlib import suppress

from torchyard.builds.sandbox import namespaces as mounts
from torchyard.builds.sandbox.namespaces import Refused

# ruff: noqa: PTH112, PTH118, PTH123, PTH208
# Not pathlib: importing it takes 10 ms.


TYPE_CHECKING = False  # importing typing takes 7 ms
if TYPE_CHECKING:
    from typing import NoReturn

    from torchyard.builds.sandbox.namespaces import DnsStub


SANDBOX_FAILED = 125
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


class Order:
    """The parsed arguments of sandbox_program.py."""

    def __init__(self, arguments: list[str]) -> None:
        """Parse the arguments; the command follows `--`."""
        self.root = self.folder = self.wanted_file = self.parent = ""
        self.no_network = self.own_processes = self.become = self.folder_must_exist = False
        self.show: list[str] = []
        self.variables: dict[bytes, bytes] = {}
        remaining = list(arguments)
        while remaining and remaining[0] != "--":
            name = remaining.pop(0)
            if name in ("--no-network", "--own-processes", "--become"):
                setattr(self, name[2:].replace("-", "_"), True)
                continue
            if not remaining:
                raise Refused(f"read the arguments: {name} has no value")
            value = remaining.pop(0)
            if name in ("--root", "--wanted-file", "--parent"):
                setattr(self, name[2:].replace("-", "_"), value)
            elif name in ("--folder", "--folder-if-there"):
                self.folder, self.folder_must_exist = value, name == "--folder"
            elif name == "--show":
                self.show.append(value)
            elif name == "--set":
                variable, _, content = os.fsencode(value).partition(b"=")
                self.variables[variable] = content
            else:
                raise Refused(f"read the arguments: unknown option {name}")
        self.command = remaining[1:]

    def environment(self) -> dict[bytes, bytes]:
        """Return the environment of the command."""
        inherited = {**os.environb, **self.variables}
        return mounts.without_proxies(inherited) if self.no_network else inherited


def print_error(text: str) -> None:
    """Print an error message on stderr."""
    os.write(2, b"torchyard sandbox: " + os.fsencode(text) + b"\n")


def become(order: Order) -> NoReturn:
    """Execute the command in this process, which keeps its id, parent and open files."""
    parent, death_signal = os.getppid(), mounts.parent_death_signal()
    environment = order.environment()
    shown = mounts.plan_root(order.show) if order.root else []
    mounts.enter_namespaces(0, as_root=bool(order.root))
    # Linux clears the parent-death signal when a process enters a user namespace.
    if death_signal:
        mounts.die_with_parent(death_signal)
    if os.getppid() != parent:  # the parent died in between
        os._exit(SANDBOX_FAILED)
    if order.root:
        mounts.enter_root(order.root, shown, fresh_proc=False)
    execute(order, environment)


def execute(order: Order, environment: dict[bytes, bytes]) -> NoReturn:
    """Execute the command; if that fails, exit with 126 or 127 like a shell."""
    program, code = order.command[0], _NOT_FOUND
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and inherited through exec
        signal.signal(number, signal.SIG_DFL)
    try:
        if order.folder and (order.folder_must_exist or os.path.isdir(order.folder)):
            os.chdir(order.folder)
        elif order.root:
            os.chdir("/")
    except OSError as error:
        print_error(f"cannot enter the folder {order.folder}: {error.strerror}")
        os._exit(SANDBOX_FAILED)
    folders = [b""]
    if "/" not in program:
        folders = environment.get(b"PATH", os.defpath.encode()).split(b":")
    problem = os.strerror(errno.ENOENT)
    for folder in folders:
        path = os.path.join(folder, os.fsencode(program))
        try:
            os.execve(path, order.command, environment)  # noqa: S606  # no shell
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                problem, code = error.strerror or "", _NOT_EXECUTABLE
    print_error(f"cannot start {program}: {problem}")
    os._exit(code)


_TERMINAL_SIGNALS = (signal.SIGINT, signal.SIGQUIT)
_FORWARDED_SIGNALS = (
    *_TERMINAL_SIGNALS,
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH),
)


class OuterProcess:
    """The supervisor outside the process namespace."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._inherited = _Inherited()
        self._parent_file = _watch_parent(order.parent)

    def run(self) -> int:
        """Return the exit code of the command; if a signal killed it, die of the same signal."""
        order = self._order
        inner = _InnerProcess(order, self._inherited)
        kinds = mounts.PROCESSES if order.own_processes else 0
        kinds |= mounts.NETWORK if order.no_network else 0
        if kinds or order.root or not order.command:  # without a command: a probe
            mounts.enter_namespaces(kinds, as_root=bool(order.root))
        status_read, status_write = os.pipe()
        lifeline, lifeline_write = os.pipe()
        signals = _signal_descriptor(_FORWARDED_SIGNALS)
        pid = os.fork()
        if pid == 0:
            os.close(lifeline_write)
            os.close(status_read)
            inner.run(status_write, lifeline)
        os.close(status_write)
        os.close(lifeline)
        self._inherited.release_files()
        return _exit_like(self._wait(pid, status_read, signals))

    def _wait(self, pid: int, status_read: int, signals: int) -> int:
        """Return the wait status of the command."""
        poll = select.poll()
        for number in (status_read, signals, self._parent_file):
            if number >= 0:
                poll.register(number, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll()}
            if status_read in ready:
                report = os.read(status_read, 16)
                _, inner_status = os.waitpid(pid, 0)  # returns when the whole namespace is gone
                return int(report) if report else inner_status
            if self._parent_file in ready:  # the controller is gone
                os._exit(SANDBOX_FAILED)  # and the kernel kills the inner process
            for number in os.read(signals, 64):
                if self._inherited.is_forwarded(number):
                    os.kill(pid, number)


class _Inherited:
    """Inherited files, signal mask and terminal state, which the command gets unchanged."""

    def __init__(self) -> None:
        descriptors = [int(name) for name in os.listdir("/proc/self/fd")]
        self._files = [number for number in descriptors if number > 2 and _is_open(number)]  # noqa: PLR2004
        self._devnull = 0
        while self._devnull <= 2:  # noqa: PLR2004  # keep our own files off 0-2
            self._devnull = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, the exit code would be lost
        try:
            self.is_foreground = os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            self.is_foreground = False

    def is_forwarded(self, number: int) -> bool:
        """Whether to forward a signal; False if the terminal sends it to the command itself."""
        return not (self.is_foreground and number in _TERMINAL_SIGNALS)

    def release_files(self) -> None:
        """Close inherited files, so that a pipe ends when the command closes it."""
        for number in self._files:
            os.close(number)
        for number in (0, 1, 2):
            os.dup2(self._devnull, number)


def _is_open(number: int) -> bool:
    """Whether a descriptor is open; the one used to list /proc/self/fd no longer is."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _watch_parent(parent: str) -> int:
    """Return a pidfd that becomes readable when the process ends; -1 where pidfds are missing.

    Not PR_SET_PDEATHSIG, which refers to the thread that started this process: the controller
    starts commands from threads that may end before the command.
    """
    pid, _, ticks = parent.partition(":")
    if not pid:
        return -1
    try:
        descriptor = os.pidfd_open(
            int(pid)
        )  # before comparing the start time: process ids are reused
    except ProcessLookupError:
        descriptor = None
    except (AttributeError, OSError):  # Python 3.8, Linux before 5.3
        mounts.die_with_parent(signal.SIGKILL)
        descriptor = -1
    if descriptor is None or _stat(pid)[19:20] != [ticks.encode()]:
        raise Refused(f"continue: the parent process {pid} is gone")
    return descriptor


def _stat(pid: str) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return []
    return text[text.rindex(b")") + 2 :].split()


class _InnerProcess:
    """Process 1 of the sandbox: creates it, starts the command, serves DNS and reaps."""

    def __init__(self, order: Order, inherited: _Inherited) -> None:
        """Open and import everything that is needed after the root has been entered."""
        self._order = order
        self._inherited = inherited
        self._environment = order.environment()
        self._shown = mounts.plan_root(order.show) if order.root else []
        self._wanted_file = -1
        if order.wanted_file:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._wanted_file = os.open(order.wanted_file, flags, 0o666)

    def run(self, status_write: int, lifeline: int) -> NoReturn:
        """Run the command, write its wait status to `status_write`, and exit."""
        wait_status = SANDBOX_FAILED << 8
        try:
            if self._order.own_processes:
                mounts.die_with_parent(signal.SIGKILL)
            else:
                mounts.adopt_orphans()
            if not self._inherited.is_foreground:
                os.setpgid(0, 0)  # else a signal to the group would arrive twice
            wait_status = self._start_and_wait(self._make(), lifeline)
        except Refused as refusal:
            print_error(f"cannot {refusal}")
        except OSError as error:
            print_error(f"{error.strerror}: {error.filename}")
        finally:
            if not self._order.own_processes:
                _end_descendants()
            os.write(status_write, b"%d" % wait_status)
            os._exit(0)

    def _make(self) -> DnsStub | None:
        order = self._order
        if order.root:
            mounts.enter_root(order.root, self._shown, fresh_proc=order.own_processes)
        elif order.own_processes:
            mounts.mount_proc()
        if not order.no_network:
            return None
        mounts.hide_resolvers()
        return mounts.DnsStub(self._wanted_file)

    def _start_and_wait(self, dns_stub: DnsStub | None, lifeline: int) -> int:
        if not self._order.command:
            return 0
        signals = _signal_descriptor((*_FORWARDED_SIGNALS, signal.SIGCHLD))
        own_group = not self._inherited.is_foreground
        command = os.fork()
        if command == 0:
            if own_group:
                os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._inherited.mask)
            execute(self._order, self._environment)
        if own_group:
            with suppress(OSError):
                os.setpgid(command, command)  # parent and child both do it, to avoid a race
        self._inherited.release_files()
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        poll.register(lifeline, select.POLLIN)
        if dns_stub:
            dns_stub.join(poll)
        while True:
            for number, _ in poll.poll():
                if number == lifeline:
                    return signal.SIGKILL
                if number != signals:
                    if dns_stub:
                        dns_stub.serve(number, poll)
                    continue
                for arrived in os.read(signals, 64):
                    if arrived != signal.SIGCHLD and self._inherited.is_forwarded(arrived):
                        with suppress(OSError):
                            os.kill(-command if own_group else command, arrived)
                wait_status = _reap(command)
                if wait_status is not None:
                    return wait_status


def _signal_descriptor(numbers: tuple[int, ...]) -> int:
    """Return a descriptor that receives a byte per signal; ignored signals stay ignored."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return read


def _reap(command: int) -> int | None:
    """Reap all ended processes; return the wait status of the command if it is one of them."""
    wait_status = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == command:
                wait_status = status
    return wait_status


def _end_descendants() -> None:
    """Kill all descendants repeatedly until none is left (without a process namespace)."""
    for _ in range(1000):
        parents = {pid: _stat(pid)[1:2] for pid in os.listdir("/proc") if pid.isdigit()}
        descendants, size = {str(os.getpid())}, 0
        while len(descendants) != size:
            size = len(descendants)
            descendants |= {
                pid
                for pid, parent in parents.items()
                if parent and parent[0].decode() in descendants
            }
        descendants.discard(str(os.getpid()))
        if not descendants:
            return
        for pid in descendants:
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        _reap(0)


def _exit_like(status: int) -> int:
    """Return the exit code of the command; if a signal killed it, die of the same signal."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    mounts.leave_no_core()
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
