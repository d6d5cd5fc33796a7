"""The command `torchyard machine audit`: how noisy the machine is now, and what disturbs it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchyard.cli.build_target import target_of_option
from torchyard.cli.options import FILE, Number, Threads
from torchyard.cli.output import (
    check_writable,
    common_options,
    print_data,
    print_json,
    print_message,
    printable,
    write_file,
)
from torchyard.errors import TorchyardError, Untrustworthy, UsageError

if TYPE_CHECKING:
    from torchyard.audit.model import Audit, AuditChange, EarlierSpread
    from torchyard.audit.noise_audit import AuditPlan


_TEXT_WIDTH = 100
_LAST = "last"

_HELP = """
\b
Examples:
  torchyard machine audit
      one minute: variation, drift, resolvable difference, noise sources
  torchyard machine audit --seconds 300 --html audit.html
      longer and more precise, with charts
  torchyard machine audit --cores 2-7 --threads 6 --against last
      pinned, and compared with the previous audit
  torchyard machine audit --target build:pytorch-2.6.0-trimmed --json

Measure how noisy this machine is: compare a small kernel with itself in fresh processes, and sample
the load of other programs. Audits are saved in the results directory.

Exit code 6: the machine cannot resolve a difference of 10% in 5 minutes, or most blocks were disturbed.
"""


@click.command(help=_HELP)
@click.option(
    "--seconds",
    type=Number(5.0, 1e6),
    default=60.0,
    show_default=True,
    help="Measuring time after the first processes are ready.",
)
@click.option(
    "--target",
    metavar="PYTHON|build:NAME",
    help="Interpreter with torch: a path, a virtual environment or a build.  [default: this one]",
)
@click.option("--threads", type=Threads(), help="Number of torch threads.  [default: one per core]")
@click.option(
    "--cores",
    metavar="LIST|auto",
    help="CPUs to pin to, such as 2-7; auto: one NUMA node without the core of CPU 0.",
)
@click.option(
    "--against",
    metavar="FILE|last",
    help="Compare with an earlier audit, or with the previous one.",
)
@click.option(
    "--keep",
    type=FILE,
    metavar="FILE",
    help="Save the audit here.",
)
@click.option(
    "--html", type=FILE, metavar="FILE", help="Write a self-contained HTML report with charts."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--label", default="", hidden=True, help="A label saved with the audit.")
@click.option("--silent", is_flag=True, hidden=True, help="Print nothing on stdout.")
@common_options
def audit(
    seconds: float,
    target: str | None,
    threads: int | None,
    cores: str | None,
    against: str | None,
    keep: Path | None,
    html: Path | None,
    quiet: bool,
    label: str,
    silent: bool,
    as_json: bool,
) -> int:
    """Audit this machine."""
    from torchyard.audit.audit_files import (
        audits_home,
        changes_between,
        differences,
        new_audit_path,
        read_audit,
        write_audit,
    )
    from torchyard.audit.noise_audit import AuditPlan
    from torchyard.cli.invoke import INTERRUPTED

    earlier_path = None if against is None else _earlier(against)
    earlier = None if earlier_path is None else read_audit(earlier_path)
    for option, path in (("--keep", keep), ("--html", html)):
        if path is not None:
            check_writable(path, option=option)
    plan = AuditPlan(
        target=target_of_option(target),
        seconds=seconds,
        threads=threads,
        cores=_cores(cores),
        label=label,
    )
    measured, interrupted = _measure(plan, quiet=quiet)
    path = keep or new_audit_path(measured, audits_home())
    write_audit(measured, path)
    changes = () if earlier is None else changes_between([earlier], [measured])
    others = () if earlier is None else differences(earlier, measured)
    title = "" if earlier is None else f"Compared with the audit of {earlier.started}"
    if html is not None:
        from torchyard.audit.report_html import audit_page

        page = audit_page(measured, changes=changes, changes_title=title, differences=others)
        write_file(html, page, option="--html")
    spreads = () if silent else _earlier_spreads()
    if as_json and not silent:
        document: dict[str, object] = {
            "audit": measured,
            "complaints": measured.complaints,
            "earlier_comparisons": spreads,
        }
        if earlier is not None:
            against_record = {"changes": changes, "differences": others}
            document["against"] = {"file": str(earlier_path), **against_record}
        print_json({**document, "kept": str(path)})
    elif not silent:
        print_data(printable(_text(measured, spreads, changes, title, others)))
    if not quiet and not silent:
        print_message(f"saved: {path}")
        if html is not None:
            print_message(f"html: {html}")
    if interrupted:
        return INTERRUPTED
    return Untrustworthy.exit_code if measured.complaints else 0


def _text(
    audit: Audit,
    spreads: tuple[EarlierSpread, ...],
    changes: tuple[AuditChange, ...],
    title: str,
    differences: tuple[str, ...],
) -> str:
    from torchyard.audit.report import audit_text, change_text, earlier_text

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _TEXT_WIDTH
    width = max(40, width)
    text = f"{audit_text(audit, width=width)}\n{earlier_text(spreads, width=width)}"
    if changes:
        text += "\n" + change_text(changes, title=title, differences=differences, width=width)
    return text


def _measure(plan: AuditPlan, *, quiet: bool) -> tuple[Audit, bool]:
    """Return the audit, and whether Ctrl-C interrupted it."""
    from torchyard.audit.noise_audit import AuditRun
    from torchyard.cli.progress import ComparisonCollector, show_progress

    with show_progress(ComparisonCollector(), quiet=quiet) as listener:
        run = AuditRun(plan, listener=listener)
        try:
            return run.run(), False
        except KeyboardInterrupt:
            partial = run.audit()
            if partial is None:
                raise
    print_message("interrupted: showing what was measured so far")
    return partial, True


def _earlier_spreads() -> tuple[EarlierSpread, ...]:
    """Return the spread between launches of earlier comparisons; the audit does not depend on it."""
    from torchyard.audit.variation import earlier_spread
    from torchyard.results.commands.options import fresh_store

    try:
        with fresh_store() as store:
            return tuple(map(earlier_spread, store.launch_variances()))
    except TorchyardError as error:
        print_message(f"warning: earlier comparisons are unavailable: {error.what}")
        return ()


def _cores(text: str | None) -> tuple[int, ...]:
    from torchyard.machine.system.cores import choose_cores, parse_cores
    from torchyard.machine.system.file_tree import FileTree

    if text is None:
        return ()
    if text.strip() == "auto":
        return choose_cores(FileTree(), text).cores
    return parse_cores(text)


def _earlier(text: str) -> Path:
    from torchyard.audit.audit_files import audits_home, latest_audit

    if text != _LAST:
        return Path(text)
    latest = latest_audit(audits_home())
    if latest is None:
        raise UsageError(
            "--against last: there is no earlier audit",
            why=f"{audits_home()} contains no audit",
            hint="run the first audit without --against",
        )
    return latest
