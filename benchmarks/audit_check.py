"""Does an audit see a disturber? The same machine quiet and with one planted, in turns.

Each round audits twice: as the machine is, and beside busy processes of a known name. Printed are
the spreads side by side with their ratios, and whether the audit named the disturber. The disturber
is the only thing that differs, so ratios near 1 mean that it did no harm, or that the machine was
busy already (look at the quiet column).

    python benchmarks/audit_check.py [--seconds 60] [--rounds 3] [--spinners 1] [--threads 1]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torchyard.audit.audit_files import changes_between
from torchyard.audit.model import Audit
from torchyard.audit.noise_audit import AuditPlan, AuditRun
from torchyard.audit.report import change_text
from torchyard.core.units import format_percent

NAME = "yarddisturber"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spinners", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    quiet: list[Audit] = []
    disturbed: list[Audit] = []
    for number in range(options.rounds):
        # The order changes from round to round, so that a machine that drifts favours nobody.
        for beside in (False, True) if number % 2 == 0 else (True, False):
            with spinning(options.spinners if beside else 0):
                plan = AuditPlan(seconds=options.seconds, threads=options.threads, seed=number)
                (disturbed if beside else quiet).append(AuditRun(plan).run())
            print(
                f"round {number + 1}, {'disturbed' if beside else 'quiet'}: done", file=sys.stderr
            )
    report(quiet, disturbed)


def report(quiet: list[Audit], disturbed: list[Audit]) -> None:
    title = f"{len(quiet)} audits of each kind, {quiet[0].threads} thread(s)"
    print(change_text(changes_between(quiet, disturbed), title=title, names=("quiet", "disturbed")))
    for word, audits in (("quiet", quiet), ("disturbed", disturbed)):
        dirty = sum(audit.dirty_blocks for audit in audits) / sum(audit.blocks for audit in audits)
        named = [
            disturbance
            for audit in audits
            for disturbance in audit.disturbances
            if disturbance.what == NAME
        ]
        amounts = ", ".join(f"{one.amount:.2f} cores" for one in named) or "nobody"
        resolves = ", ".join(
            format_percent(found.difference)
            for audit in audits
            if (found := audit.in_minutes(5)) is not None and found.difference is not None
        )
        alarms = sum(audit.false_alarm for audit in audits)
        print(f"{word:<10} {dirty:.0%} of blocks dirty, resolves {resolves} in 5 min")
        print(f"{'':<10} planted disturber seen: {amounts}; false alarms: {alarms}")


@contextmanager
def spinning(count: int) -> Iterator[None]:
    """Busy processes that are no children of this one: an audit leaves its own out."""
    with tempfile.TemporaryDirectory(prefix="audit-check-") as name:
        folder = Path(name)
        program = folder / NAME
        program.write_text(
            f"#!{sys.executable}\nimport os\nprint(os.getpid(), flush=True)\nwhile 1: 0\n"
        )
        program.chmod(0o755)
        for number in range(count):
            command = ["sh", "-c", '"$0" >"$1" &', str(program), str(folder / f"pid{number}")]
            subprocess.run(command, check=True)
        pids = [wait_for(folder / f"pid{number}") for number in range(count)]
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def wait_for(path: Path, *, limit_s: float = 30.0) -> int:
    deadline = time.monotonic() + limit_s
    while not path.exists() or not path.read_text().strip():
        if time.monotonic() > deadline:
            raise SystemExit("the disturber did not start")
        time.sleep(0.02)
    return int(path.read_text())


if __name__ == "__main__":
    main()
