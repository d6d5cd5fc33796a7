"""Explain a failed build from its log: known causes with suggested fixes, or the first error."""

from __future__ import annotations

from torchyard.builds.diagnosis.diagnose import diagnose
from torchyard.builds.diagnosis.model import (
    Cause,
    Diagnosis,
    Evidence,
    FailedCommand,
    FirstError,
    describe,
)
from torchyard.builds.diagnosis.signature import SignatureRow, load_signatures, signature_rows

__all__ = [
    "Cause",
    "Diagnosis",
    "Evidence",
    "FailedCommand",
    "FirstError",
    "SignatureRow",
    "describe",
    "diagnose",
    "load_signatures",
    "signature_rows",
]
