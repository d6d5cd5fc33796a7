"""Processes that the profiled program starts: each one profiles itself and writes a part of the result.

Children of multiprocessing (fork, spawn, forkserver), of `os.fork` and of torchrun are profiled; programs started with
`subprocess` are not. The parent writes `TOKEN.started.json` before it starts a child, the child `TOKEN.process.json`
and its result `TOKEN.json`: a child that dies leaves the first one, and is reported. A child that is terminated
writes its result first. Nothing here imports torch: a child that does not use it stays without it.
"""

import atexit
import json
import os
import signal
import sys
import threading
import uuid
from multiprocessing import process as processes
from typing import Any, Callable, Dict, List, Optional, Tuple

from torchyard.worker.values.compiled.after_import import AfterImport
from torchyard.worker.values.exchange import write_result
from torchyard.worker.values.program import (
    TERMINATED,
    Ending,
    ProgramProfiler,
    ending_of,
    profiler_of,
)

LOADER_MODULE = "torch.utils.data"
MAIN = "main"
STARTED, PROCESS = ".started.json", ".process.json"
_MARK = "_torchyard_mark"
_AGAIN_S = 0.02
_TORCHRUN = "torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler"
_ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_program.py")
_ENTER = """
try:
    import runpy, sys
    if "torchyard" not in sys.modules:
        runpy.run_path({entry!r}, run_name="torchyard_entry")
    from torchyard.worker.values.child_processes import enter
    enter({plan!r}, {token!r})
except Exception as error:
    sys.stderr.write("torchyard: this process is not profiled: %s\\n" % error)
"""

Plan = Dict[str, Any]
_PASSED_ON = ("options", "cache", "eager", "native", "wanted", "parts", "kind")


class Mark:
    """Attribute of a process object; unpickling it in a spawned child enables profiling there."""

    def __init__(self, plan: Plan, token: str) -> None:
        self._plan = plan
        self.token = token

    def __reduce__(self) -> Tuple[Any, ...]:
        return exec, (_ENTER.format(entry=_ENTRY, plan=self._plan, token=self.token), {})


class ProcessProfile:
    """The profile of this process, from `begin` to `end`."""

    def __init__(self, children: "ChildProcesses", token: str, kind: str) -> None:
        self._children = children
        self._token = token
        self._kind = kind
        self._pid = os.getpid()
        self._ended = False
        self._rank: Optional[Tuple[int, int]] = None
        self._after_torch: Optional[AfterImport] = None
        self._parent = os.getppid()
        self.profiler: Optional[ProgramProfiler] = None

    @property
    def output(self) -> str:
        """The file of the result."""
        return os.path.join(self._children.parts, self._token + ".json")

    def begin(self) -> None:
        """Write the record of this process, and profile it as soon as torch is imported."""
        self.write_record("running")
        self._handle_termination()
        if "torch" in sys.modules:
            self._start()
        else:
            self._children.install()
            self._after_torch = AfterImport("torch", self._start)
            sys.meta_path.insert(0, self._after_torch)

    def _start(self) -> None:
        if os.getpid() != self._pid or threading.current_thread() is not threading.main_thread():
            return
        try:
            if self._kind == "loader":
                _after_worker_handlers(self._handle_termination)
            profiler = profiler_of({**self._children.plan, "output": self.output})
            profiler.start()
            self.adopt(profiler)
            self._children.install()
        except Exception as error:  # the program must not fail because of the profiler
            sys.stderr.write("torchyard: process %d is not profiled: %s\n" % (self._pid, error))

    def adopt(self, profiler: ProgramProfiler) -> None:
        """Take the running profiler of this process, and note the rank in each process group."""
        self.profiler = profiler
        _after_group_change(self.note_rank)

    def end(self, ending: Ending) -> None:
        """Write the result; a second call does nothing."""
        if self._ended or os.getpid() != self._pid:
            return
        self._ended = True
        if self._after_torch is not None:
            self._after_torch.remove()
        self.note_rank()
        if self.profiler is not None:
            self.profiler.stop(ending)
        self.write_record(ending.state, ending.exit_code)

    def leave(self) -> None:
        """Discard the profile of the parent in a forked child."""
        self._ended = True
        if self._after_torch is not None:
            self._after_torch.remove()
        if self.profiler is not None:
            self.profiler.leave_child()

    def note_rank(self) -> None:
        """Remember the rank, as long as there is a process group."""
        dist = sys.modules.get("torch.distributed")
        if dist is not None and dist.is_available() and dist.is_initialized():
            self._rank = dist.get_rank(), dist.get_world_size()

    def write_record(self, state: str, exit_code: Optional[int] = None) -> None:
        """Write what is known of this process."""
        rank, kind = self._rank, self._kind
        if rank is None:
            rank = _rank_of_environment()
        elif kind in (MAIN, "child"):
            kind = "rank"
        write_result(
            os.path.join(self._children.parts, self._token + PROCESS),
            {
                "kind": kind,
                "pid": self._pid,
                "state": state,
                "exit_code": exit_code,
                "rank": None if rank is None else rank[0],
                "ranks": None if rank is None else rank[1],
                "worker": _worker_number(),
                "torch": "torch" in sys.modules,
            },
        )

    def _handle_termination(self) -> None:
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, None) and not _is_ours():
            return  # the program handles it
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, _number: int, _frame: Any) -> None:
        """Write the result, then end as without a profiler."""
        if os.getpid() == self._pid:
            if self._ended:
                return  # the result is being written: the process ends right after it
            if self.profiler is not None and self.profiler.is_inside_operator():
                threading.Timer(_AGAIN_S, os.kill, (self._pid, signal.SIGTERM)).start()
                return
            try:
                self.end(Ending(TERMINATED, "interrupted"))
            except Exception as error:
                sys.stderr.write("torchyard: the profile was not written: %s\n" % error)
            if self._kind == "loader" and os.getppid() == self._parent:
                _leave(0)  # as torch's own handler does if the parent sends the signal
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


class ChildProcesses:
    """Lets the children of this process profile themselves."""

    def __init__(self, plan: Plan) -> None:
        self.plan = {name: plan[name] for name in _PASSED_ON if name in plan}
        """Without what only the main process does: timing, applying fixes."""
        self.parts: str = plan["parts"]
        self._main: Plan = plan
        self.current: Optional[ProcessProfile] = None
        self._starting: List[str] = []
        self._torchrun: Optional[AfterImport] = None

    def adopt_main(self, profiler: ProgramProfiler) -> ProcessProfile:
        """Return the profile of the main process, or of a rank, whose profiler runs already."""
        current = self.current = ProcessProfile(
            self, self._main.get("token", MAIN), self._main.get("kind", MAIN)
        )
        current.adopt(profiler)
        current.write_record("running")
        return current

    def install(self) -> None:
        """Mark the processes that this one starts; call it again after another wrapper was removed."""
        _children[:] = [self]
        _wrap_start()
        _register()
        if _TORCHRUN in sys.modules:
            _wrap_torchrun()
        elif self._torchrun is None:
            self._torchrun = AfterImport(_TORCHRUN, _wrap_torchrun)
            sys.meta_path.insert(0, self._torchrun)

    def announce(self, token: str, **about: Any) -> None:
        """Write that a child is being started."""
        write_result(os.path.join(self.parts, token + STARTED), about)

    def start(self, process: Any, start: Callable[[Any], None]) -> None:
        """Start a process of multiprocessing with a mark."""
        if hasattr(process, _MARK):  # `start` is wrapped again after another wrapper
            start(process)
            return
        token = uuid.uuid4().hex
        target = str(getattr(getattr(process, "_target", None), "__module__", ""))
        kind = "loader" if target.startswith(LOADER_MODULE) else "child"
        about = {"kind": kind, "name": str(process.name), "parent": self._token}
        self.announce(token, **about)
        setattr(process, _MARK, Mark({**self.plan, "kind": kind}, token))
        self._starting.append(token)
        try:
            start(process)
        except BaseException:
            os.remove(os.path.join(self.parts, token + STARTED))
            raise
        finally:
            self._starting.pop()
            delattr(process, _MARK)
        self.announce(token, pid=process.pid, **about)

    def rank_command(self, command: Tuple[str, ...], rank: str) -> Tuple[str, ...]:
        """Return the command of a rank that torchrun starts, with profiling; unchanged if it is not Python."""
        words = list(command[1:])
        while words[:1] and words[0] in ("-u", "-B", "-s", "-E"):
            del words[0]
        if command[0] != sys.executable or not words or (words[0] != "-m" and words[0][0] == "-"):
            return command
        token = uuid.uuid4().hex
        plan = {
            **self.plan,
            "output": os.path.join(self.parts, token + ".json"),
            "token": token,
            "kind": "rank",
        }
        path = os.path.join(self.parts, token + ".plan.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(plan, file)
        self.announce(token, kind="rank", name="rank " + rank, parent=self._token)
        options = command[1 : len(command) - len(words)]
        return (command[0], *options, _ENTRY, path, "--", *words)

    def forked(self) -> None:
        """Profile a forked child: at once after `os.fork`; multiprocessing calls `run_marked`."""
        if self.current is not None:
            self.current.leave()
            self.current = None
        if self._starting:
            return
        token = uuid.uuid4().hex
        self.announce(token, kind="fork", name="", parent="", pid=os.getpid())
        current = self.current = ProcessProfile(self, token, "fork")
        current.begin()
        _end_at_exit(current)

    def run_marked(self, token: str, kind: str, run: Callable[[], Any]) -> Any:
        """Run a child of multiprocessing with profiling."""
        self._starting = []
        current = self.current = ProcessProfile(self, token, kind)
        current.begin()
        restore = _end_at_exit(current)
        ending = Ending(0, "finished")
        try:
            return run()
        except BaseException as error:
            ending = ending_of(error)
            raise
        finally:
            restore()
            current.end(ending)

    @property
    def _token(self) -> str:
        return "" if self.current is None else self.current._token


_children: List[ChildProcesses] = []
"""That of this process, if it profiles its children."""
_entered: List[str] = []
_registered: List[bool] = []
_leave = os._exit


def enter(plan: Plan, token: str) -> None:
    """Prepare a spawned child, before its process object runs."""
    _children[:] = [ChildProcesses(plan)]
    _entered[:] = [token]
    _register()


def _register() -> None:
    """Wrap the functions of children once in the life of a program, with its forked children."""
    if _registered:
        return
    _registered.append(True)
    os.register_at_fork(after_in_child=_after_fork)
    bootstrap = processes.BaseProcess._bootstrap  # type: ignore[attr-defined]

    def marked(process: Any, *args: Any, **keywords: Any) -> Any:
        mark = getattr(process, _MARK, None)
        tokens = [mark.token] if mark is not None else _entered[:]
        del _entered[:]
        if tokens and _children:
            children, run = _children[0], process.run
            kind = mark._plan["kind"] if mark is not None else children.plan["kind"]
            process.run = lambda: children.run_marked(tokens[0], kind, run)
        return bootstrap(process, *args, **keywords)

    processes.BaseProcess._bootstrap = marked  # type: ignore[attr-defined]


def _after_fork() -> None:
    if _children:
        _children[0].forked()


def _wrap_start() -> None:
    start = processes.BaseProcess.start
    if getattr(start, "marks", False):
        return

    def marking(process: Any) -> None:
        if _children:
            _children[0].start(process, start)
        else:
            start(process)

    marking.marks = True  # type: ignore[attr-defined]
    processes.BaseProcess.start = marking  # type: ignore[method-assign,assignment]


def _wrap_torchrun() -> None:
    handler: Any = sys.modules[_TORCHRUN].SubprocessHandler
    popen = handler._popen
    if getattr(popen, "marks", False):
        return

    def marking(of: Any, args: Tuple[str, ...], env: Dict[str, str]) -> Any:
        if _children:
            args = _children[0].rank_command(tuple(args), env.get("RANK", "?"))
        return popen(of, args, env)

    marking.marks = True  # type: ignore[attr-defined]
    handler._popen = marking


def _end_at_exit(current: ProcessProfile) -> Callable[[], None]:
    """End the profile if the process ends by itself or by `os._exit`; return how to restore `os._exit`."""
    leave = os._exit

    def end_and_leave(code: int) -> None:
        current.end(Ending(code, "finished" if code == 0 else "crashed"))
        leave(code)

    def restore() -> None:
        os._exit = leave

    os._exit = end_and_leave  # type: ignore[assignment]
    atexit.register(current.end, Ending(0, "finished"))
    return restore


def _is_ours() -> bool:
    """Return whether the handler of SIGTERM is that of the profiler, inherited from the parent."""
    handler = signal.getsignal(signal.SIGTERM)
    return getattr(handler, "__module__", "").startswith("torchyard.worker.values.")


def _after_worker_handlers(handle: Callable[[], None]) -> None:
    """Handle SIGTERM after a DataLoader worker has set torch's own handler, which ends without cleanup."""
    from torch.utils.data._utils import signal_handling

    own = signal_handling._set_worker_signal_handlers

    def then_handle(*args: Any) -> None:
        own(*args)
        handle()

    signal_handling._set_worker_signal_handlers = then_handle


def _after_group_change(callback: Callable[[], None]) -> None:
    """Call back when the default process group is created or destroyed, whatever name the program calls."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    update = getattr(module, "_update_default_pg", None)
    if update is None:
        return

    def noted(group: Any) -> None:
        update(group)
        if group is not None:
            callback()

    module._update_default_pg = noted


def _rank_of_environment() -> Optional[Tuple[int, int]]:
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None


def _worker_number() -> Optional[int]:
    """Return the number of this DataLoader worker."""
    data = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()
    return None if worker is None else int(worker.id)
