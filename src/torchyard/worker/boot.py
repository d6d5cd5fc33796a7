"""The first file that runs in a target: makes `torchyard.worker` importable and calls its main.

Run by location as ``python -s -u .../worker/boot.py READ_FD WRITE_FD ARGUMENTS...``; nothing is
installed in the target. It knows the two pipes and nothing of torch or measuring.

Only `torchyard` is made importable, through a package object that is built here. Putting the folder
above it on `sys.path` would offer the target every package that lies beside Torchyard, such as the
yard's own numpy or torch.

Up to the version check everything must be understood by any Python, 2.7 included, so there is no
annotation and no newer syntax in this file at all. A process that multiprocessing spawns runs this
file again as ``__mp_main__``: it gets the package and does not speak.
"""

import sys

if sys.version_info < (3, 8):  # the target's Python, not the yard's
    import os

    os.write(
        int(sys.argv[2]),
        (
            '{"error": {"kind": "no-python", "traceback": "", "message": '
            '"Python %d.%d is too old: a target needs Python 3.8 or newer"}}\n'
            % sys.version_info[:2]
        ).encode("ascii"),
    )
    sys.exit(3)

import os
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

_here = os.path.dirname(os.path.abspath(__file__))
_package_folder = os.path.dirname(_here)

# Python puts a script's folder first on the path: there, `main`, `wire` or `layout` would shadow
# modules of the same name that a model brings along. (Python 3.11 has -P for this; 3.8 has not.)
if sys.path and sys.path[0] and os.path.realpath(sys.path[0]) == os.path.realpath(_here):
    del sys.path[0]

# A `torchyard` that is installed in the target may be of another version: this one wins.
_spec = ModuleSpec("torchyard", None, is_package=True)
_spec.submodule_search_locations = [_package_folder]
sys.modules["torchyard"] = module_from_spec(_spec)

if __name__ == "__main__":
    import faulthandler
    import signal

    from torchyard.worker.wire import Channel

    _read_fd, _write_fd = int(sys.argv[1]), int(sys.argv[2])
    # Programs that the worker starts (compilers) must not hold the pipes open.
    os.set_inheritable(_read_fd, False)
    os.set_inheritable(_write_fd, False)
    # The yard asks a worker that hangs where it is, before it ends it: the stacks go to the log.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    _channel = Channel(_read_fd, _write_fd)
    _channel.send({"boot": {"python": "%d.%d.%d" % sys.version_info[:3]}})

    from torchyard.worker.main import main

    sys.exit(main(_channel, sys.argv[3:]))
