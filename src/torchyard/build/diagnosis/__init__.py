"""Why a build failed, read from its log: known causes with their remedies, or the first real error."""

from __future__ import annotations

from torchyard.build.diagnosis.describe import describe
from torchyard.build.diagnosis.diagnose import diagnose
from torchyard.build.diagnosis.reference import SignatureRow, signature_rows
from torchyard.build.diagnosis.signature import load_signatures
from torchyard.build.diagnosis.verdict import (
    Cause,
    Diagnosis,
    Evidence,
    FailedCommand,
    FirstError,
)

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
