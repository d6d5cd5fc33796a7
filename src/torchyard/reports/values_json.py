"""A profile of values as one JSON document for other programs. Says what was found, not how it looks.

The flow graph has a document of its own (`flow_dot.py`): it is many times as large as the findings.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from torchyard.core.records import encode
from torchyard.core.values import Certainty, ValueFinding, ValueProfile
from torchyard.reports.values_wording import bytes_per_step, ordered, suggestion_text
from torchyard.values.prices import steps_looked_at

__all__ = ["SCHEMA", "SCHEMA_VERSION", "finite", "values_json"]

SCHEMA: Final = "torchyard.value-profile"
SCHEMA_VERSION: Final = 1
"""Raised when a key changes its meaning or goes away; added keys do not raise it."""


def values_json(profile: ValueProfile) -> str:
    """Valid JSON: numbers that are none become null."""
    sure = Counter(found.proof.certainty for found in profile.findings)
    saving = profile.saving
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "program": list(profile.program),
        "state": profile.state,
        "exit_code": profile.exit_code,
        "torch": profile.torch,
        "device": profile.device,
        "threads": profile.threads,
        "summary": {
            "findings": len(profile.findings),
            "findings_left_out": profile.findings_left_out,
            "certainty": {word.value: sure[word] for word in Certainty},
            "bytes_wasted_per_step": sum(
                bytes_per_step(found, profile) for found in profile.findings
            ),
            "saving": None if saving is None else encode(saving),
            "upper_bound_share": None if saving is None else saving.bound_share,
            "upper_bound_ns": None if saving is None else saving.bound_ns,
        },
        "looked_at": {
            "steps": steps_looked_at(profile),
            "step_ns": profile.step_ns,
            "seconds": profile.seconds,
            "counts": profile.counts,
            "options": profile.options,
            "flow_nodes": len(profile.flow.nodes),
            "flow_edges": len(profile.flow.edges),
            "notes": list(profile.notes),
        },
        "findings": [_finding(found, profile) for found in ordered(profile)],
    }
    return json.dumps(finite(document), indent=2, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _finding(finding: ValueFinding, profile: ValueProfile) -> dict[str, Any]:
    """All but how to make the operator again, which only a target can use."""
    data: dict[str, Any] = encode(finding)
    del data["recipe"]
    data["bytes_wasted_per_step"] = bytes_per_step(finding, profile)
    data["suggestion"] = suggestion_text(finding)
    return data
