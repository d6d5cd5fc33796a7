"""For all tests: signals as in a terminal.

A shell that starts a job in the background lets it ignore Ctrl-C, `nohup` lets it ignore a lost
terminal, and whatever it starts inherits that. The tests of interrupts must hold there too.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
