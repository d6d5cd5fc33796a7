"""Makes and loads the compiled follower of scores (`follow.cpp`), for the torch that is here.

It is compiled once for each torch (10 s on one core of a Neoverse-N1), in a process of its own beside
the program once that has had some steps to follow, and used from the first step on that begins after
it is there. Without a C++ compiler nothing is lost but time: Python follows.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

import torch

_HERE = os.path.dirname(os.path.abspath(__file__))
_SOURCE = os.path.join(_HERE, "follow.cpp")
_SOURCES = (_SOURCE, os.path.join(_HERE, "follow_operator.h"))
_NICE = "10"
"""Less would take minutes beside a program that uses all cores."""
_STANDARDS = ("c++20", "c++17")
"""Headers of a new torch want the first; an old compiler may know only the second."""
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
OUT_OF_TURN = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p)
AFTERWARDS = ctypes.CFUNCTYPE(None)


class FollowLibrary:
    """The library, as soon as it is there."""

    def __init__(self, cache: Optional[str] = None, *, hurry: bool = False) -> None:
        """It is compiled behind the program's own work, unless somebody is in a hurry."""
        self._cache = cache
        self._nice = "0" if hurry else _NICE
        self._path: Optional[str] = None
        self._made: Optional[str] = None
        """The file that is being made; gone when that has ended, well or not."""
        self._loaded: Optional[Any] = None
        self._begun = self._tried = False

    def wait(self, limit_s: float = 120.0) -> bool:
        """Wait until it is compiled; whether it can be used."""
        deadline = time.monotonic() + limit_s
        while self.load(make=True) is None and self._made and time.monotonic() < deadline:
            time.sleep(0.05)
        return self._loaded is not None

    def load(self, *, make: bool = False) -> Optional[Any]:
        """The library; None while there is none, and where none can be made.

        Where it was never compiled, that is begun when it is to be made.
        """
        if self._tried:
            return self._loaded
        try:
            return self._load(make)
        except (OSError, AttributeError, RuntimeError):  # made for other libraries than these
            self._tried = True
            return None

    def _load(self, make: bool) -> Optional[Any]:
        if self._path is None:
            self._path = _path(self._cache)
        if not self._begun and self._path is not None and not os.path.exists(self._path):
            if not make:
                return None
            self._begun = True
            self._made = _start_building(self._path, self._nice)
        if self._made is not None and os.path.exists(self._made):
            return None
        self._made = None
        self._tried = True
        if self._path is not None and os.path.exists(self._path):
            self._loaded = _load(self._path)
        return self._loaded


def _path(cache: Optional[str]) -> Optional[str]:
    text = b""
    for name in _SOURCES:
        with open(name, "rb") as file:
            text += file.read()
    about = "%s %s %s" % (torch.__version__, torch.version.git_version, _command("", "", ""))
    key = hashlib.sha256(text + about.encode()).hexdigest()[:16]
    folder = cache or os.path.join(tempfile.gettempdir(), "torchyard-scan-%d" % os.getuid())
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        return None
    return os.path.join(folder, "follow-%s.so" % key)


def _start_building(path: str, nice: str) -> Optional[str]:
    """The file that is being made, or None.

    In a session of its own, since Ctrl-C is not for it; and not as a child of this process, since a
    program may wait for whatever children it has.
    """
    compilers = _compilers()
    if not compilers:
        return None
    descriptor, made = tempfile.mkstemp(dir=os.path.dirname(path), suffix=".so")
    os.close(descriptor)
    commands = [
        "\n".join(_command(compiler, standard, made))
        for compiler in compilers
        for standard in _STANDARDS
    ]
    environment = {
        name: text for name, text in os.environ.items() if name not in ("LD_PRELOAD", "PYTHONPATH")
    }
    work = ["nice", "-n", nice, sys.executable, "-I", "-c", _BUILD, made, path] + commands
    subprocess.run(
        ["sh", "-c", '"$@" &', "sh"] + work,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
        check=False,
    )
    return made


def _command(compiler: str, standard: str, made: str) -> List[str]:
    place = os.path.dirname(os.path.abspath(torch.__file__))
    libraries = os.path.join(place, "lib")
    own = getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True)
    return [
        compiler,
        "-std=" + standard,
        "-O2",
        "-w",
        "-DNDEBUG",  # as torch itself is compiled: without it, some of its classes have more members
        "-shared",
        "-fPIC",
        "-D_GLIBCXX_USE_CXX11_ABI=%d" % int(own),
        "-I" + os.path.join(place, "include"),
        "-o",
        made,
        _SOURCE,
        "-L" + libraries,
        "-Wl,-rpath," + libraries,
        "-ltorch_cpu",
        "-lc10",
    ]


def _compilers() -> List[str]:
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    found = [shutil.which(name) for name in names if name]
    return list(dict.fromkeys(path for path in found if path))


_in_this_process: Dict[str, Any] = {}
"""By its path; one at most."""


def is_follower(path: str) -> bool:
    """Whether a library that is loaded is this one, which only looks at what operators wrote."""
    return path in _in_this_process


def _load(path: str) -> Any:
    """Once in a process: torch takes the names of its operators from one library only."""
    if not _in_this_process:
        torch.ops.load_library(path)
        _in_this_process[os.path.realpath(path)] = _declared(ctypes.CDLL(path))
    return next(iter(_in_this_process.values()))


def _declared(library: Any) -> Any:
    number, text, numbers = ctypes.c_int64, ctypes.c_char_p, ctypes.c_void_p
    library.follow_set.argtypes = (ctypes.c_void_p, FLUSH, OUT_OF_TURN, AFTERWARDS)
    library.follow_set.restype = None
    library.follow_new_score.argtypes = ()
    library.follow_new_score.restype = number
    library.follow_drop_score.argtypes = (number,)
    library.follow_drop_score.restype = None
    library.follow_add_turn.argtypes = (number, text, text, number, number, numbers, number)
    library.follow_begin.argtypes = (number,)
    library.follow_begin.restype = None
    for name in ("follow_end", "follow_position", "follow_rows"):
        function = getattr(library, name)
        function.argtypes, function.restype = (), number
    library.follow_take_rows.argtypes = (numbers,)
    library.follow_take_rows.restype = None
    return library
