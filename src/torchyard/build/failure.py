"""What a failed step says to the user: the cause, the remedy, the log, the way back in."""

from __future__ import annotations

import shlex
from contextlib import suppress

from torchyard.build.layout import BuildFolder
from torchyard.build.perform import CommandFailed, StepPerformer
from torchyard.core.build_plan import Plan, Step
from torchyard.errors import StepFailed, TorchyardError
from torchyard.results.durable import replace_file

__all__ = ["explain_failure"]


def explain_failure(
    plan: Plan, folder: BuildFolder, step: Step, performer: StepPerformer, error: CommandFailed
) -> StepFailed:
    """The error of a step whose command failed; everything it built stays where it is."""
    log = folder.log(step.name)
    script = log.with_suffix(".reenter.sh")
    with suppress(TorchyardError):  # a full disk is what the error itself will tell
        replace_file(script, performer.reenter_script())
        script.chmod(0o755)
    return StepFailed(
        f"the step {step.name} failed: {error.what}",
        hint=f"everything is kept in {plan.folder}; the command again: sh {shlex.quote(str(script))}",
        log=str(log),
    )
