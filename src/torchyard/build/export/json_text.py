"""A plan as JSON, for programs. No I/O."""

from __future__ import annotations

import json
from typing import Final

from torchyard.build.export.contract import ExportedFile, ExportFacts
from torchyard.core.build_plan import Plan, fingerprints
from torchyard.core.records import encode

__all__ = ["SCHEMA", "SCHEMA_VERSION", "export_json"]

SCHEMA: Final = "torchyard.build-plan"
SCHEMA_VERSION: Final = 1
"""Raised when a key changes its meaning or goes away; added keys do not raise it."""


def export_json(plan: Plan, facts: ExportFacts) -> tuple[ExportedFile, ...]:
    """The whole plan; each step with its kind of action, its fingerprint and whether it is done."""
    prints = fingerprints(plan)
    document = encode(plan)
    for step, table in zip(plan.steps, document["steps"], strict=True):
        table["fingerprint"] = prints[step.name]
        table["done"] = step.name in facts.done
        # Kinds are told by name: their fields alone do not always tell them apart.
        table["actions"] = [
            {"kind": type(action).__name__, **fields}
            for action, fields in zip(step.actions, table["actions"], strict=True)
        ]
    whole = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "plan": document}
    return (ExportedFile(name="plan.json", text=json.dumps(whole, indent=2) + "\n"),)
