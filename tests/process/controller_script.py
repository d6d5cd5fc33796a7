"""A controller process for tests that end one with SIGKILL. Prints the mark of the worker.

First argument: what the worker forks ("none", "child", "session"), or "hang" (it no longer reads, and so
cannot see the end of its pipe). Second argument: "stay", "exit" (normal exit), "raise", or "fork" (a fork of
the controller exits normally, and then the worker gets another request). Third argument, optional: "fork" (the
worker is forked from a template of this controller), or the socket of a pool.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.process.stub_launch import STUB, STUB_TEMPLATE, spec_of
from torchyard.process.templates import RemotePool, TemplatePool
from torchyard.process.worker_process import WorkerProcess

forks, ending = sys.argv[1:3]
folder = tempfile.mkdtemp()
way = sys.argv[3] if len(sys.argv) > 3 else "fresh"
template = None
if way != "fresh":
    pool = TemplatePool(entry=STUB_TEMPLATE) if way == "fork" else RemotePool(Path(way))
    (socket,) = pool.sockets([spec_of()], ())
    template = Path(socket)
log_path = Path(folder) / "log"
worker = WorkerProcess.start(spec_of(), log_path=log_path, entry=STUB, template=template)
worker.ask("echo", limit_s=20)
if forks == "hang":
    question = threading.Thread(target=worker.ask, args=("hang",), kwargs={"limit_s": 600})
    question.daemon = True
    question.start()
elif forks != "none":
    worker.ask("fork_sleeper", limit_s=20, new_session=forks == "session")
time.sleep(0.1)
sys.stdout.write(worker.launch_mark + "\n")
sys.stdout.flush()
if ending == "raise":
    raise RuntimeError("an error of the controller")
if ending == "stay":
    time.sleep(600)
if ending == "fork":
    child = os.fork()
    if child == 0:
        sys.exit(0)  # runs what is registered for the exit of the controller
    os.waitpid(child, 0)
    worker.ask("echo", limit_s=20)
    sys.stdout.write("still answers\n")
