"""What a failed step says to the user: the cause, the remedy, the log, the way back in."""

from __future__ import annotations

import platform
import shlex
from contextlib import suppress

from torchyard.build.diagnosis import diagnose
from torchyard.build.layout import BuildFolder
from torchyard.build.perform import CommandFailed, StepPerformer
from torchyard.build.sandbox import wanted_names
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
    back = ""
    with suppress(TorchyardError):  # a full disk is what the error itself will tell
        replace_file(script, performer.reenter_script())
        script.chmod(0o700)  # addresses of proxies and indexes may hold a password
        back = f"\nthe command again: sh {shlex.quote(str(script))}"
    release = next((part.release for part in plan.components if part.name == step.component), "")
    wanted = wanted_names(str(performer.wanted_file))
    diagnosis = diagnose(
        log,
        exit_code=error.command_exit_code,
        wanted_names=wanted,
        release=release,
        machine=platform.machine(),
    )
    root = diagnosis.root
    if root is not None:
        why = f"{root.title}: {root.cause}"
        hint = "\n".join((*root.remedy, *root.commands)) + back
    else:
        first = diagnosis.first_error
        why = first.text if first is not None else "the log names no error"
        hint = f"everything is kept in {plan.folder}{back}"
    if wanted and (root is None or wanted[0] not in why):
        why += f"\nit asked the network for: {', '.join(wanted[:5])}"
    return StepFailed(
        f"the step {step.name} failed: {error.what}", why=why, hint=hint, log=str(log)
    )
