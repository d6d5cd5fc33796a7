"""Write and read audits as JSON files in the results directory, and compare two of them.

Compared are the spreads between processes and between pairs; the time of the kernel itself is
shown, but a faster kernel is not a quieter machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from torchyard.audit.model import Audit, AuditChange, effects_of, log_levels_of, spreads_of
from torchyard.audit.variation import change_between, change_within
from torchyard.core.records import decode, encode
from torchyard.errors import ResultsDamaged, TorchyardError, UsageError
from torchyard.files.safe_writing import replace_json
from torchyard.results.directory import home_folder, read_stored

FORMAT: Final = 1
"""Increased when an older Torchyard would misread a file."""
_AGAIN: Final = "measure again, or use another file"


def audits_home() -> Path:
    """Return the folder of saved audits."""
    return home_folder() / "audits"


def new_audit_path(audit: Audit, home: Path) -> Path:
    """Return a path that sorts by time: `20250102T030405Z.json`, with a number if it exists."""
    digits = "".join(letter for letter in audit.started[:19] if letter.isalnum())
    path, number = home / f"{digits}Z.json", 1
    while os.path.lexists(path):
        number += 1
        path = home / f"{digits}Z-{number}.json"
    return path


def write_audit(audit: Audit, path: Path) -> None:
    """Write the audit atomically."""
    replace_json(path, {"format": FORMAT, "audit": encode(audit)})


def read_audit(path: Path) -> Audit:
    """Read an audit from a file."""
    absent = UsageError(f"no audit at {path}", hint="create one with `torchyard machine audit`")
    document = read_stored(path, what="an audit", newest=FORMAT, hint=_AGAIN, absent=absent)
    try:
        # Keys that a newer version added are ignored.
        return decode(Audit, document.get("audit"), where="audit", strict=False)
    except TorchyardError as error:
        raise ResultsDamaged(f"{path} is not an audit", why=error.what, hint=_AGAIN) from error


def latest_audit(home: Path) -> Path | None:
    """Return the newest audit by name, or None."""
    try:
        paths = [path for path in home.iterdir() if path.suffix == ".json" and path.is_file()]
    except OSError:
        return None
    return max(paths, default=None, key=_age)


def _age(path: Path) -> tuple[str, int]:
    time, _, number = path.stem.partition("-")
    return time, int(number) if number.isdecimal() else 1


WITHIN: Final = "within launches"
BETWEEN: Final = "between launches"
UNPAIRED: Final = "without pairing"


def changes_between(before: Sequence[Audit], after: Sequence[Audit]) -> tuple[AuditChange, ...]:
    """Compare each kind of spread, later over earlier. Audits of one state are pooled.

    A level that moved between two audits of one state is noise of that state, so levels are not
    centred for each audit.
    """
    one, other = (
        [launch for audit in audits for launch in audit.launches] for audits in (before, after)
    )
    return (
        change_within(WITHIN, spreads_of(one), spreads_of(other)),
        change_between(BETWEEN, effects_of(one), effects_of(other)),
        change_between(UNPAIRED, log_levels_of(one), log_levels_of(other)),
    )


def differences(before: Audit, after: Audit) -> tuple[str, ...]:
    """Return what else differs, so that the change may have another cause."""
    pairs = zip(_conditions(before), _conditions(after), strict=True)
    return tuple(
        f"{name}: {then[name]} before, {now[name]} after"
        for then, now in pairs
        for name in then
        if name in now and name != "load" and then[name] != now[name]
    )


def _conditions(audit: Audit) -> tuple[dict[str, str], ...]:
    cores = ",".join(map(str, audit.cores)) or "not pinned"
    own = {"kernel": audit.kernel, "threads": str(audit.threads), "cores": cores}
    return own, dict(audit.target), dict(audit.machine)
