"""For all tests: signals as in a terminal.

A shell that starts a job in the background lets it ignore Ctrl-C, and whatever it starts inherits
that. The tests of interrupts must hold there too.
"""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
