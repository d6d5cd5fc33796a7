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

# ruff: noqa: PTH112, PTH118
# Importing pathlib takes 10 ms, longer than all that is done with paths here.


TYPE_CHECKING = False  # importing typing takes 7 ms
if TYPE_CHECKING:
    from typing import NoReturn


COULD_NOT_MAKE = 125
_NOT_EXECUTABLE = 126
_NOT_FOUND = 127


class Order:
    """What the arguments ask for."""

    def __init__(self, arguments: list[str]) -> None:
        """Read the arguments up to `--`; what follows is the command."""
        self.root = self.folder = self.wanted_file = self.parent = ""
        self.no_network = self.own_processes = self.become = self.folder_must_exist = False
        self.show: list[str] = []
        self.variables: dict[bytes, bytes] = {}
        left = list(arguments)
        while left and left[0] != "--":
            name = left.pop(0)
            if name in ("--no-network", "--own-processes", "--become"):
                setattr(self, name[2:].replace("-", "_"), True)
                continue
            if not left:
                raise Refused(f"read the arguments: {name} has no value")
            value = left.pop(0)
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
                raise Refused(f"read the arguments: {name} is not known")
        self.command = left[1:]

    def environment(self) -> dict[bytes, bytes]:
        """Of the command."""
        given = {**os.environb, **self.variables}
        if not self.no_network:
            return given
        from torchyard.builds.sandbox.namespaces import without_proxies

        return without_proxies(given)


def complain(text: str) -> None:
    """Say on stderr why there is no sandbox, or no command."""
    os.write(2, b"torchyard sandbox: " + os.fsencode(text) + b"\n")


def become(order: Order) -> NoReturn:
    """Keep the process: its number, parent, open files and who may signal it stay the same."""
    parent, death_signal = os.getppid(), mounts.parent_death_signal()
    environment = order.environment()
    shown = mounts.plan_root(order.show) if order.root else []
    mounts.enter_namespaces(0, as_root=bool(order.root))
    # Linux forgets the request when the process gets the rights of a user namespace.
    if death_signal:
        mounts.die_with_parent(death_signal)
    if os.getppid() != parent:  # gone in between
        os._exit(COULD_NOT_MAKE)
    if order.root:
        mounts.enter_root(order.root, shown, fresh_proc=False)
    execute(order, environment)


def execute(order: Order, environment: dict[bytes, bytes]) -> NoReturn:
    """Become the command, or end as a shell does that cannot start it."""
    program, code = order.command[0], _NOT_FOUND
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these two, and exec keeps that
        signal.signal(number, signal.SIG_DFL)
    try:
        if order.folder and (order.folder_must_exist or os.path.isdir(order.folder)):
            os.chdir(order.folder)
        elif order.root:
            os.chdir("/")
    except OSError as error:
        complain(f"cannot enter the folder {order.folder}: {error.strerror}")
        os._exit(COULD_NOT_MAKE)
    folders = [b""]
    if "/" not in program:
        folders = environment.get(b"PATH", os.defpath.encode()).split(b":")
    problem = os.strerror(errno.ENOENT)
    for folder in folders:
        path = os.path.join(folder, os.fsencode(program))
        try:
            os.execve(path, order.command, environment)  # noqa: S606  # no shell wanted
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                problem, code = error.strerror or "", _NOT_EXECUTABLE
    complain(f"cannot start {program}: {problem}")
    os._exit(code)


# ruff: noqa: PTH123, PTH208
# Importing pathlib takes 10 ms, longer than all that is done with paths here.


# importing typing takes 7 ms
if TYPE_CHECKING:
    from typing import NoReturn

    from torchyard.builds.sandbox.namespaces import NameDesk


_FROM_TERMINAL = (signal.SIGINT, signal.SIGQUIT)
_PASSED_ON = (
    *_FROM_TERMINAL,
    *(signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH),
)


class OuterProcess:
    """The process that was started: waits outside of the process namespace."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._inherited = _Inherited()
        self._parent_file = _watch_parent(order.parent)

    def run(self) -> int:
        """The exit code, unless the command died of a signal: then this process does, too."""
        order = self._order
        inner = _InnerProcess(order, self._inherited)
        kinds = mounts.PROCESSES if order.own_processes else 0
        kinds |= mounts.NETWORK if order.no_network else 0
        mounts.enter_namespaces(kinds, as_root=bool(order.root))
        said, say = os.pipe()
        lifeline, life = os.pipe()
        signals = _catch(_PASSED_ON)
        pid = os.fork()
        if pid == 0:
            os.close(life)
            os.close(said)
            inner.run(say, lifeline)
        os.close(say)
        os.close(lifeline)
        self._inherited.let_go()
        return _end_as(self._wait(pid, said, signals))

    def _wait(self, pid: int, said: int, signals: int) -> int:
        """The wait status of the command."""
        poll = select.poll()
        for number in (said, signals, self._parent_file):
            if number >= 0:
                poll.register(number, select.POLLIN)
        while True:
            ready = {number for number, _ in poll.poll()}
            if said in ready:
                report = os.read(said, 16)
                _, own = os.waitpid(pid, 0)  # returns when all of the namespace is gone
                return int(report) if report else own
            if self._parent_file in ready:  # whoever wanted the result is gone
                os._exit(COULD_NOT_MAKE)  # and the inner process dies of that
            for number in os.read(signals, 64):
                if self._inherited.is_to_pass_on(number):
                    os.kill(pid, number)


class _Inherited:
    """What the starter gave this process and the command is to have unchanged."""

    def __init__(self) -> None:
        seen = [int(name) for name in os.listdir("/proc/self/fd")]
        self._files = [number for number in seen if number > 2 and _is_open(number)]  # noqa: PLR2004
        self._nothing = 0
        while self._nothing <= 2:  # noqa: PLR2004  # none of our own files may take the place of stdin
            self._nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would lose us the exit code
        try:
            self.is_foreground = os.tcgetpgrp(0) == os.getpgrp()
        except OSError:
            self.is_foreground = False

    def is_to_pass_on(self, number: int) -> bool:
        """False for what a terminal has sent to the command, too."""
        return not (self.is_foreground and number in _FROM_TERMINAL)

    def let_go(self) -> None:
        """Close the starter's files: a pipe ends when the command closes it, not when we do."""
        for number in self._files:
            os.close(number)
        for number in (0, 1, 2):
            os.dup2(self._nothing, number)


def _is_open(number: int) -> bool:
    """False for the file through which the list of files was read."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _watch_parent(parent: str) -> int:
    """A file that becomes readable when the process is gone; -1 where Linux has no such file.

    A file and not PR_SET_PDEATHSIG, which speaks of the thread that started us: a yard starts
    commands from threads that end before the command does.
    """
    pid, _, ticks = parent.partition(":")
    if not pid:
        return -1
    try:
        watched = os.pidfd_open(int(pid))  # before its age is asked: a number can be used again
    except ProcessLookupError:
        watched = None
    except (AttributeError, OSError):  # Python 3.8, Linux before 5.3
        mounts.die_with_parent(signal.SIGKILL)
        watched = -1
    if watched is None or _stat(pid)[19:20] != [ticks.encode()]:
        raise Refused(f"go on: process {pid}, which wanted the result, is gone")
    return watched


def _stat(pid: str) -> list[bytes]:
    """The fields of /proc/PID/stat from the state on; empty when the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            text = stat.read()
    except OSError:
        return []
    return text[text.rindex(b")") + 2 :].split()


class _InnerProcess:
    """Process 1 of the sandbox: makes it, starts the command, answers and reaps."""

    def __init__(self, order: Order, inherited: _Inherited) -> None:
        """Everything that must be asked, opened or imported before the root is entered."""
        self._order = order
        self._inherited = inherited
        self._environment = order.environment()
        self._shown = mounts.plan_root(order.show) if order.root else []
        self._wanted_file = -1
        if order.wanted_file:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._wanted_file = os.open(order.wanted_file, flags, 0o666)

    def run(self, say: int, lifeline: int) -> NoReturn:
        """Ends the process, with the wait status of the command written to `say`."""
        ending = COULD_NOT_MAKE << 8
        try:
            if self._order.own_processes:
                mounts.die_with_parent(signal.SIGKILL)
            else:
                mounts.adopt_orphans()
            if not self._inherited.is_foreground:
                os.setpgid(0, 0)  # a signal to the group would arrive twice: directly and passed on
            ending = self._start_and_wait(self._make(), lifeline)
        except Refused as refusal:
            complain(f"cannot {refusal}")
        except OSError as error:
            complain(f"{error.strerror}: {error.filename}")
        finally:
            if not self._order.own_processes:
                _end_descendants()
            os.write(say, b"%d" % ending)
            os._exit(0)

    def _make(self) -> NameDesk | None:
        order = self._order
        if order.root:
            mounts.enter_root(order.root, self._shown, fresh_proc=order.own_processes)
        elif order.own_processes:
            mounts.mount_proc()
        if not order.no_network:
            return None
        from torchyard.builds.sandbox.namespaces import (  # known since before
            NameDesk,
            hide_resolvers,
        )

        hide_resolvers()
        return NameDesk(self._wanted_file)

    def _start_and_wait(self, desk: NameDesk | None, lifeline: int) -> int:
        if not self._order.command:
            return 0
        signals = _catch((*_PASSED_ON, signal.SIGCHLD))
        own_group = not self._inherited.is_foreground
        command = os.fork()
        if command == 0:
            if own_group:
                os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, self._inherited.mask)
            execute(self._order, self._environment)
        if own_group:
            with suppress(OSError):
                os.setpgid(command, command)  # both do it, because either may come first
        self._inherited.let_go()
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        poll.register(lifeline, select.POLLIN)
        if desk:
            desk.join(poll)
        while True:
            for number, _ in poll.poll():
                if number == lifeline:
                    return signal.SIGKILL
                if number != signals:
                    if desk:
                        desk.serve(number, poll)
                    continue
                for arrived in os.read(signals, 64):
                    if arrived != signal.SIGCHLD and self._inherited.is_to_pass_on(arrived):
                        with suppress(OSError):
                            os.kill(-command if own_group else command, arrived)
                ending = _reap(command)
                if ending is not None:
                    return ending


def _catch(numbers: tuple[int, ...]) -> int:
    """A file that gets one byte for each signal that arrives; ignored signals stay ignored."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    return read


def _reap(command: int) -> int | None:
    """Collect whatever has ended; the wait status of the command once it has."""
    ending = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == command:
                ending = status
    return ending


def _end_descendants() -> None:
    """Without a process namespace: kill all that descends from here, until nothing does."""
    for _ in range(1000):
        parents = {pid: _stat(pid)[1:2] for pid in os.listdir("/proc") if pid.isdigit()}
        family, size = {str(os.getpid())}, 0
        while len(family) != size:
            size = len(family)
            family |= {pid for pid, up in parents.items() if up and up[0].decode() in family}
        family.discard(str(os.getpid()))
        if not family:
            return
        for pid in family:
            with suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        _reap(0)


def _end_as(status: int) -> int:
    """The exit code of the command; a signal that ended it ends this process as well."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    mounts.leave_no_core()
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
