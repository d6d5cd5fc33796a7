"""The compiled follower of recorded steps (`follow.cpp`): build it, load it, use it.

It is compiled once per torch version, in a separate process, and used from the first step after it is ready. While it
is active, the dispatch mode is not: even an empty mode costs more than the scan (20 us per operator on the host of an
H200). Without a C++ compiler, recorded steps are followed in Python.
"""

import _thread
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from torchyard.worker.values.scanning.cpu_scan import CompiledScanner, library_path
from torchyard.worker.values.surveys.survey import Flush, Recording, Survey

_HERE = os.path.dirname(os.path.abspath(__file__))
_SOURCE = os.path.join(_HERE, "follow.cpp")
_SOURCES = (_SOURCE, os.path.join(_HERE, "follow_operator.h"))
_NICE = "10"
"""With a lower priority, compiling would take minutes beside a program that uses all cores."""
_STANDARDS = ("c++20", "c++17")
"""Headers of new torch versions need the first; old compilers support only the second."""
_BUILD = (
    "import os, subprocess, sys\n"
    "made, path, *commands = sys.argv[1:]\n"
    "for command in commands:\n"
    "    if subprocess.run(command.split('\\n')).returncode == 0:\n"
    "        os.replace(made, path)\n"
    "        break\n"
    "else:\n"
    "    os.unlink(made)\n"
)

FLUSH = ctypes.CFUNCTYPE(None, ctypes.c_int64)
UNEXPECTED = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
AFTERWARDS = ctypes.CFUNCTYPE(None)


class FollowLibrary:
    """The compiled follower, once it is available."""

    def __init__(self, cache: Optional[str] = None, *, high_priority: bool = False) -> None:
        """Create the library; it is compiled at low priority unless `high_priority`."""
        self._cache = cache
        self._nice = "0" if high_priority else _NICE
        self._path: Optional[str] = None
        self._output: Optional[str] = None
        """Temporary output file; removed when compiling has ended, successfully or not."""
        self._loaded: Optional[Any] = None
        self._begun = self._tried = False

    def wait(self, limit_s: float = 120.0) -> bool:
        """Wait until it is compiled; return whether it can be used."""
        deadline = time.monotonic() + limit_s
        while self.load(make=True) is None and self._output and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._loaded is not None

    def load(self, *, make: bool = False) -> Optional[Any]:
        """Return the library; None if it is not ready or cannot be built. With `make`, compiling is started."""
        if self._tried:
            return self._loaded
        try:
            return self._load(make)
        except (OSError, AttributeError, RuntimeError):  # built for other library versions
            self._tried = True
            return None

    def _load(self, make: bool) -> Optional[Any]:
        if self._path is None:
            self._path = _path(self._cache)
        if not self._begun and self._path is not None and not os.path.exists(self._path):
            if not make:
                return None
            self._begun = True
            self._output = _start_building(self._path, self._nice)
        if self._output is not None and os.path.exists(self._output):
            return None
        self._output = None
        self._tried = True
        if self._path is not None and os.path.exists(self._path):
            self._loaded = _load(self._path)
        return self._loaded


def _path(cache: Optional[str]) -> Optional[str]:
    about = "%s %s %s" % (torch.__version__, torch.version.git_version, _command("", "", ""))
    return library_path(cache, "follow", _SOURCES, about)


def _start_building(path: str, nice: str) -> Optional[str]:
    """Start compiling; return the temporary output file, or None without a compiler.

    Runs in a new session, so that Ctrl-C does not stop it, and not as a child of this process, because
    a program may wait for all its children.
    """
    compilers = _compilers()
    if not compilers:
        return None
    descriptor, output = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".so")
    os.close(descriptor)
    commands = [
        "\n".join(_command(compiler, standard, output))
        for compiler in compilers
        for standard in _STANDARDS
    ]
    environment = {
        name: text for name, text in os.environ.items() if name not in ("LD_PRELOAD", "PYTHONPATH")
    }
    work = ["nice", "-n", nice, sys.executable, "-I", "-c", _BUILD, output, path] + commands
    subprocess.run(
        ["sh", "-c", '"$@" &', "sh"] + work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
        check=False,
    )
    return output


def _command(compiler: str, standard: str, output: str) -> List[str]:
    place = os.path.dirname(os.path.abspath(torch.__file__))
    libraries = os.path.join(place, "lib")
    own = getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)
    return [
        compiler,
        "-std=" + standard,
        "-O2",
        "-w",
        "-DNDEBUG",  # as torch is compiled: otherwise some of its classes have more members
        "-shared",
        "-fPIC",
        "-D_GLIBCXX_USE_CXX11_ABI=%d" % int(own),
        "-I" + os.path.join(place, "include"),
        "-o",
        output,
        _SOURCE,
        "-L" + libraries,
        "-Wl,-rpath," + libraries,
        "-ltorch_cpu",
        "-lc10",
    ]


def _compilers() -> List[str]:
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    paths = [shutil.which(name) for name in names if name]
    return list(dict.fromkeys(path for path in paths if path))


_in_this_process: Dict[str, Any] = {}
"""Loaded library by path; at most one."""


def is_follower(path: str) -> bool:
    """Return whether a loaded library is the follower, which only reads memory."""
    return path in _in_this_process


def _load(path: str) -> Any:
    """Load the library once per process: its operators can be registered only once."""
    if not _in_this_process:
        torch.ops.load_library(path)
        _in_this_process[os.path.realpath(path)] = _declared(ctypes.CDLL(path))
    return next(iter(_in_this_process.values()))


def _declared(library: Any) -> Any:
    number, text, numbers = ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p
    library.follow_set.argtypes = (ctypes.c_void_p, FLUSH, UNEXPECTED, AFTERWARDS)
    library.follow_set.restype = None
    library.follow_new_recording.argtypes = ()
    library.follow_new_recording.restype = number
    library.follow_drop_recording.argtypes = (number,)
    library.follow_drop_recording.restype = None
    library.follow_add_call.argtypes = (number, text, text, number, number, numbers, number)
    library.follow_begin.argtypes = (number,)
    library.follow_begin.restype = None
    for name in ("follow_end", "follow_position", "follow_rows"):
        function = getattr(library, name)
        function.argtypes, function.restype = (), number
    library.follow_take_rows.argtypes = (numbers,)
    library.follow_take_rows.restype = None
    return library


_FIELDS = 5
_NONE = -1
_STEPS_BEFORE_BUILD = 16
"""Surveyed steps before compiling starts, so that short programs do not compile it."""


class Follower:
    """Follows recorded steps with the compiled library."""

    def __init__(self, library: FollowLibrary, memory: Any, survey: Survey) -> None:
        self._library = library
        self._memory = memory
        self._survey = survey
        self._native: Optional[Any] = None
        self._scan_address: Optional[int] = None
        self._asked = 0
        self._kept: List[Any] = []
        """References to callbacks that the library may call."""
        self._recording: Optional[Recording] = None
        self._number = _NONE
        self._flushes: List[Flush] = []
        self._on_unexpected: Callable[[Any, List[torch.Tensor]], None] = _do_nothing
        self._on_after: Callable[[List[torch.Tensor], List[torch.Tensor]], None] = _do_nothing
        self.error: Optional[BaseException] = None
        """Exception of a callback, which cannot propagate through C++."""

    def begin(
        self,
        recording: Optional[Recording],
        on_unexpected: Callable[[Any, List[torch.Tensor]], None],
        on_after: Callable[[List[torch.Tensor], List[torch.Tensor]], None],
    ) -> bool:
        """Follow a recording from its start, or all operators; return False if not possible.

        `on_unexpected` is called before an operator that differs from the recording, `on_after` after it, or after a recorded
        operator with different results. From the first such call on, all operators until `end` are unexpected.
        """
        native = self._ready()
        if native is None or (recording is not None and not self._register(native, recording)):
            return False
        self._on_unexpected, self._on_after = on_unexpected, on_after
        if recording is not None:
            self._survey.play(recording)
        native.follow_set(self._scan_address, *self._kept)  # another session may have changed it
        native.follow_begin(_NONE if recording is None else self._number)
        return True

    def position(self) -> int:
        """Return the number of operators that matched the recording."""
        return 0 if self._native is None else int(self._native.follow_position())

    def hand_over(self) -> None:
        """Pass held tensors and scanned rows to the survey."""
        if self._native is not None:
            tensors = torch.ops.torchyard_follow.take_held()
            self._survey.take_over(tensors, self._rows(self._native))

    def end(self) -> None:
        """Stop following. Must not be called inside an operator."""
        if self._native is not None:
            self._native.follow_end()

    def _ready(self) -> Optional[Any]:
        if self._native is None:
            self._asked += 1
            native = self._library.load(make=self._asked >= _STEPS_BEFORE_BUILD)
            if native is None:
                return None
            address = getattr(self._memory, "scan_address", None)
            self._kept = [
                FLUSH(self._guarded(self._flush)),
                UNEXPECTED(self._guarded(self._unexpected)),
                AFTERWARDS(self._guarded(self._after)),
            ]
            self._scan_address = address
            self._native = native
        return self._native

    def _register(self, native: Any, recording: Recording) -> bool:
        """Pass a recording to the library once; return False if it cannot be followed."""
        if recording is self._recording:
            return self._number != _NONE
        if self._number != _NONE:
            native.follow_drop_recording(self._number)
        self._recording, self._number, self._flushes = recording, _NONE, []
        on_cpu = any(output.cpu for call in recording.recorded_calls for output in call.outputs)
        if on_cpu and not isinstance(self._memory, CompiledScanner):
            return False
        number = int(native.follow_new_recording())
        for call in recording.recorded_calls:
            schema = call.func._schema
            fields = [
                number_
                for output in call.outputs
                for number_ in (
                    output.place,
                    output.numel,
                    _kind(output.dtype),
                    int(output.cpu),
                    output.row,
                    output.numel * output.layout.per_number,
                    output.layout.bits,
                )
            ]
            supported = native.follow_add_call(
                number,
                schema.name.encode(),
                schema.overload_name.encode(),
                self._flush_number(call.flush_before),
                self._flush_number(call.flush_after),
                (ctypes.c_int64 * len(fields))(*fields),
                len(call.outputs),
            )
            if not supported:
                native.follow_drop_recording(number)
                return False
        self._number = number
        return True

    def _flush_number(self, flush: Optional[Flush]) -> int:
        if flush is None:
            return _NONE
        self._flushes.append(flush)
        return len(self._flushes) - 1

    def _rows(self, native: Any) -> List[Tuple[int, int, int, int, int]]:
        count = int(native.follow_rows())
        if not count:
            return []
        numbers = (ctypes.c_int64 * (_FIELDS * count))()
        native.follow_take_rows(numbers)
        columns = [numbers[field::_FIELDS] for field in range(_FIELDS)]
        return list(zip(*columns))

    def _guarded(self, work: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback from C++, which must not raise."""

        def guarded(*given: Any) -> None:
            try:
                work(*given)
            except KeyboardInterrupt:
                _thread.interrupt_main()
            except BaseException as error:
                self.error = error

        return guarded

    def _flush(self, number: int) -> None:
        self._survey.take_over(torch.ops.torchyard_follow.take_held(), [])
        self._survey.flush_again(self._flushes[number])

    def _unexpected(self, name: bytes, overload: bytes) -> None:
        written = torch.ops.torchyard_follow.written()
        self._on_unexpected(_overload(name.decode(), overload.decode()), written)

    def _after(self) -> None:
        own = torch.ops.torchyard_follow
        self._on_after(own.written(), own.results())


def _do_nothing(*_: Any) -> None:
    pass


def _overload(name: str, overload: str) -> Any:
    space, _, base = name.partition("::")
    return getattr(getattr(getattr(torch.ops, space), base), overload or "default")


_kinds: Dict[torch.dtype, int] = {}


def _kind(dtype: torch.dtype) -> int:
    kind = _kinds.get(dtype)
    if kind is None:
        one = torch.empty(0, dtype=dtype, device="cpu")
        kind = _kinds[dtype] = int(torch.ops.torchyard_follow.kind(one))
    return kind
