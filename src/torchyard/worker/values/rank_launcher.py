"""Start the ranks of a program: one process each, with the variables of the `env://` rendezvous.

Rank 0 is the main process of the profile; the other ranks write parts. If a rank fails, the others get time to end by
themselves, and are then terminated: a rank that waits for a dead one does not hang.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List

from torchyard.worker.values.child_processes import MAIN, STARTED
from torchyard.worker.values.exchange import write_result

GRACE_S = 10.0
"""Time that the other ranks get after the failure of one, and again after SIGTERM."""
_POLL_S = 0.05
_ENTRY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_program.py")


def launch_ranks(plan: Dict[str, Any], words: List[str]) -> int:
    """Run all ranks to their end; return the exit code of one that a signal killed, of the first that failed, or 0."""
    count = int(plan["ranks"])
    folder, _, name = str(plan["output"]).rpartition(os.sep)
    parts = plan.get("parts") or os.path.join(folder, name + ".ranks")
    os.makedirs(parts, exist_ok=True)
    port = _free_port()
    ranks: List["subprocess.Popen[bytes]"] = []
    signals: List[int] = []

    def terminate(_number: int, _frame: Any) -> None:
        signals.append(_number)
        for process in ranks:
            if process.poll() is None:
                process.terminate()

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, lambda number, _frame: signals.append(number))
    for rank in range(count):
        token = MAIN if rank == 0 else "rank-%d" % rank
        output = plan["output"] if rank == 0 else os.path.join(parts, token + ".json")
        own = {**plan, "ranks": 1, "output": output, "token": token, "kind": "rank"}
        path = os.path.join(parts, token + ".plan.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(own, file)
        variables = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
        }
        process = subprocess.Popen(
            [sys.executable, _ENTRY, path, "--", *words],
            env={**os.environ, **variables},
            stdin=None if rank == 0 else subprocess.DEVNULL,
        )
        ranks.append(process)
        if rank:
            about = {"kind": "rank", "name": "rank %d" % rank, "parent": "", "pid": process.pid}
            write_result(os.path.join(parts, token + STARTED), about)
    return _wait(ranks, signals)


def _wait(ranks: List["subprocess.Popen[bytes]"], asked: List[int]) -> int:
    """Wait for all ranks; end those that outlive a failed one."""
    first = 0
    failed_s = None
    sent = 0
    while None in [
        process.poll() for process in ranks
    ]:  # asks every rank, not only the first that runs
        time.sleep(_POLL_S)
        codes = sorted(process.returncode for process in ranks if process.returncode)
        if codes and not sent and (not first or codes[0] < 0):
            first = codes[0]  # a signal is the cause of what the other ranks raise
        if failed_s is None and (codes or asked):
            failed_s = time.monotonic()
        if failed_s is not None and time.monotonic() - failed_s > GRACE_S * (sent + 1) and sent < 2:
            sent += 1
            for process in ranks:
                if process.poll() is None:
                    (process.terminate if sent == 1 else process.kill)()
    codes = sorted(process.returncode for process in ranks if process.returncode)
    if codes and (not first or (codes[0] < 0 and not sent)):
        first = codes[0]
    return 128 - first if first < 0 else first


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
