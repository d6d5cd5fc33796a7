from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchyard.audit.audit_files import (
    FORMAT,
    audits_home,
    latest_audit,
    new_audit_path,
    read_audit,
    write_audit,
)
from torchyard.audit.model import Audit, Spread
from torchyard.errors import NotAllowed, ResultsDamaged, StepFailed, UsageError

AUDIT = Audit(
    started="2025-01-02T03:04:05+00:00",
    asked_s=60.0,
    measured_s=58.5,
    kernel="kernels/layered-mlp inference",
    threads=2,
    cores=(2, 3),
    time_ns=1.2e6,
    launches=(),
    pairs=0,
    blocks=0,
    dirty_blocks=0,
    within=Spread(),
    between=Spread(sd=0.01),
    unpaired=Spread(),
    notes=("a\x1b[31m note",),
)


def test_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "audit.json"
    write_audit(AUDIT, path)
    assert read_audit(path) == AUDIT
    assert list(path.parent.iterdir()) == [path]


def test_names_sort_by_time_and_never_overwrite(tmp_path: Path) -> None:
    first = new_audit_path(AUDIT, tmp_path)
    assert first.name == "20250102T030405Z.json"
    for _ in range(11):
        write_audit(AUDIT, new_audit_path(AUDIT, tmp_path))
    assert len(list(tmp_path.iterdir())) == 11
    assert (latest_audit(tmp_path) or Path()).name == "20250102T030405Z-11.json"
    later = replace(AUDIT, started="2025-01-02T03:04:06+00:00")
    write_audit(later, new_audit_path(later, tmp_path))
    assert (latest_audit(tmp_path) or Path()).name == "20250102T030406Z.json"


def test_the_results_directory_follows_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHYARD_HOME", str(tmp_path))
    assert audits_home() == tmp_path / "audits"
    assert latest_audit(audits_home()) is None


def test_no_kept_audit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no audit at") as caught:
        read_audit(tmp_path / "none.json")
    assert "torchyard machine audit" in caught.value.hint
    with pytest.raises(UsageError, match="no audit at"):
        read_audit(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1, "audit": {"started": 3}}', "\x00\xff", "[" * 9999]
)
def test_damaged_files_are_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "audit.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ResultsDamaged) as caught:
        read_audit(path)
    assert str(path) in caught.value.what
    assert caught.value.why


def test_keys_of_a_newer_minor_version_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    write_audit(AUDIT, path)
    document = json.loads(path.read_text())
    document["audit"]["mood"] = "calm"
    path.write_text(json.dumps(document))
    assert read_audit(path) == AUDIT


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    path.write_text(json.dumps({"format": FORMAT + 1, "audit": {}}))
    with pytest.raises(ResultsDamaged, match="newer Torchyard"):
        read_audit(path)


def test_a_location_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((NotAllowed, StepFailed)):
        write_audit(AUDIT, tmp_path / "file" / "audits" / "audit.json")
