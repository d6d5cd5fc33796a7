"""The restore process: a small process that restores all settings if their owner is killed.

Run as ``python -P -m torchyard.machine.quieting.restore_process ROOT FOLDER LOCK_FD``. It runs in
its own session, out of reach of Ctrl-C in the terminal, and waits on a pipe from the owner. A
pipe that closes without a message means that the owner is gone. It holds the owner's lock until
it is done.

Messages from the owner: {"say": "done"}, the owner has restored everything itself; {"say": "hold",
"settings": [...]}, write settings that last as long as a process; {"say": "stay"}, hold them until
SIGTERM and release the lock. It sends "ready" once it is able to restore, answers `hold` with the
results, and sends "staying".

Must need nothing but the standard library and this package, and must be able to restore without
importing anything more: the owner may have been killed because memory is short.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from torchyard.core.records import decode, encode
from torchyard.errors import TorchyardError
from torchyard.machine.knob import Machine
from torchyard.machine.model import Setting
from torchyard.machine.quieting.restoring import restore_journal, write_setting
from torchyard.machine.system.file_tree import FileTree


def main(root: str, folder: str, lock_fd: str) -> int:
    """Wait for the owner's last message, or for its end; then restore if it sent none."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.chdir("/")
    # The OOM killer may end the owner; then only this process can restore.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("-1000", encoding="ascii")
    machine = Machine(files=FileTree(Path(root)))
    _send({"say": "ready"})
    for line in sys.stdin:
        message = json.loads(line)
        if message["say"] == "done":
            return 0
        if message["say"] == "hold":
            _send({"results": _hold(machine, message["settings"])})
        elif message["say"] == "stay":
            os.close(int(lock_fd))
            _send({"say": "staying"})
            signal.sigwait({signal.SIGTERM})
            return 0
    try:
        restored = restore_journal(machine, Path(folder))
    except TorchyardError as error:
        return error.exit_code
    return 0 if restored is None or restored.complete else 5


def _hold(machine: Machine, settings: list[Any]) -> list[Any]:
    requested = [decode(Setting, item, where="hold", strict=False) for item in settings]
    return [encode(write_setting(machine, setting)) for setting in requested]


def _send(message: dict[str, Any]) -> None:
    with suppress(OSError):  # the end of the other pipe shows that the owner is gone
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
