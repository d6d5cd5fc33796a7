"""A command in a process whose other thread consumes SIGCHLD."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def test_a_command_ends_though_another_thread_takes_its_signal() -> None:
    program = textwrap.dedent(
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        from torchyard.machine.quieting.quiet_run import run_command
        print(run_command(["sh", "-c", "sleep 0.3; exit 3"], []).exit_code)
        """
    )
    completed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert completed.stdout.strip() == "3", completed.stderr
