"""A template that forks `stub_worker.py`: the real template loop, without torch."""

from __future__ import annotations

import faulthandler
import runpy
import signal
import sys
from pathlib import Path

from torchyard.worker import template
from torchyard.worker.wire import Channel

faulthandler.register(signal.SIGUSR2, all_threads=True)
options = dict(argument.partition("=")[::2] for argument in sys.argv[3:])
modules = [name for name in options["--import"].split(",") if name]
channel = Channel(int(sys.argv[1]), int(sys.argv[2]))
worker = template.serve(channel, options["--template"], modules)
if worker is not None:
    # The stub makes a channel of its own; its descriptors must stay open.
    kept = worker.channel
    runpy.run_path(str(Path(__file__).with_name("stub_worker.py")), run_name="__main__")
