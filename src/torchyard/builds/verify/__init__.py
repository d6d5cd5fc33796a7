"""Check what a build made: files, import, options, linked libraries, smoke tests, test files."""

from torchyard.builds.verify.probe import list_packages
from torchyard.builds.verify.project_tests import run_test_file
from torchyard.builds.verify.target_python import RunInTarget, TargetPython
from torchyard.builds.verify.verification import open_target, perform_verify

__all__ = [
    "RunInTarget",
    "TargetPython",
    "list_packages",
    "open_target",
    "perform_verify",
    "run_test_file",
]
