"""Entry script in the target: make `torchyard.worker` importable and call its main function.

Run by path as ``python -s -u .../worker/boot.py READ_FD WRITE_FD ARGUMENTS...``; nothing is installed. Only
`torchyard` becomes importable, through a package object: its parent folder may hold the controller's numpy or torch.
Valid in any Python, including 2.7, up to the version check. A process that multiprocessing spawns runs this file
again as ``__mp_main__``: it gets the package and sends nothing.
"""

import sys

if sys.version_info < (3, 8):  # the target's Python, not the controller's
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

# Python puts a script's folder first on the path: there, `main`, `wire` or `devices` would shadow
# modules of the same name that a model uses. (Python 3.11 has -P for this; 3.8 has not.)
if sys.path and sys.path[0] and os.path.realpath(sys.path[0]) == os.path.realpath(_here):
    del sys.path[0]

# A `torchyard` installed in the target may have another version: this one takes precedence.
_spec = ModuleSpec("torchyard", None, is_package=True)
_spec.submodule_search_locations = [_package_folder]
sys.modules["torchyard"] = module_from_spec(_spec)

if __name__ == "__main__":
    import faulthandler
    import signal

    from torchyard.worker.wire import Channel

    _read_fd, _write_fd = int(sys.argv[1]), int(sys.argv[2])
    # Programs that the worker starts (compilers) must not inherit the pipes.
    os.set_inheritable(_read_fd, False)
    os.set_inheritable(_write_fd, False)
    # The controller sends this signal to a hanging worker before it ends it: the stacks are logged.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    _channel = Channel(_read_fd, _write_fd)
    _channel.send({"boot": {"python": "%d.%d.%d" % sys.version_info[:3]}})

    from torchyard.worker.main import main

    sys.exit(main(_channel, sys.argv[3:]))
