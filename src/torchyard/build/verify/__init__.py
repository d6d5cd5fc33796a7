"""Checks of what a build made. The family is listed in `perform.CHECKS`."""

from torchyard.build.verify.perform import open_target, perform_verify
from torchyard.build.verify.probe import list_packages
from torchyard.build.verify.project_tests import run_test_file
from torchyard.build.verify.target_python import RunInTarget, TargetPython

__all__ = [
    "RunInTarget",
    "TargetPython",
    "list_packages",
    "open_target",
    "perform_verify",
    "run_test_file",
]
