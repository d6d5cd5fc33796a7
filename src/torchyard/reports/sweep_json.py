"""A sweep as one JSON document for other programs. Says what was found, not how it looks."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from torchyard.core.records import encode
from torchyard.core.sweep_summary import SweepGroup, SweepSummary

__all__ = ["SCHEMA", "SCHEMA_VERSION", "sweep_json"]

SCHEMA: Final = "torchyard.sweep-summary"
SCHEMA_VERSION: Final = 1
"""Raised when a key changes its meaning or goes away; added keys do not raise it."""


def sweep_json(summary: SweepSummary) -> str:
    """Valid JSON: numbers that are none become null."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        **encode(summary),
        "groups": [_group(group) for group in summary.groups],
        "totals": [_group(group) for group in summary.totals],
    }
    for record, row in zip(document["rows"], summary.rows, strict=True):
        record.update(state=row.verdict.value, trusted=row.trusted)
    for name in ("best", "worst"):
        rows = getattr(summary, name)
        document[name] = [summary.rows.index(row) for row in rows]
    alarms = summary.false_alarms
    if alarms is not None:
        document["false_alarms"]["within"] = alarms.within
    return json.dumps(_finite(document), indent=2, allow_nan=False) + "\n"


def _group(group: SweepGroup) -> dict[str, Any]:
    return {
        **encode(group.key),
        **{name: value for name, value in encode(group).items() if name != "key"},
        "passed": group.passed,
        "pass_rate": group.pass_rate,
        "ends": dict(group.ends),
        "verdicts": {verdict.value: count for verdict, count in group.verdicts},
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
