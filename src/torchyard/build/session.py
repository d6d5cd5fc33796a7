"""One `torchyard build`: lock the folder, choose jobs and cache, run the plan, keep the record.

Joins the parts of this room; prints nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from torchyard.build.compile_watch import CompileWatch
from torchyard.build.environments import passed_through
from torchyard.build.failure import explain_failure
from torchyard.build.folder_lock import only_run
from torchyard.build.layout import BuildFolder, YardHome
from torchyard.build.perform import StepPerformer
from torchyard.build.runner import Runner, RunResult
from torchyard.build.selection import Selection
from torchyard.core.build_events import BuildListener, ignore_build_events
from torchyard.core.build_plan import Command, Plan, Step, Verify
from torchyard.core.records import encode
from torchyard.process.markers import sweep_orphans
from torchyard.results.durable import replace_file, to_json_text

__all__ = ["BuildSession"]


@dataclass(kw_only=True)
class BuildSession:
    """Runs one plan."""

    plan: Plan
    home: YardHome
    listener: BuildListener = ignore_build_events
    selection: Selection = field(default_factory=Selection)
    keep_going: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    @property
    def folder(self) -> BuildFolder:
        """The build's folder."""
        return BuildFolder(folder=Path(self.plan.folder))

    def run(self) -> RunResult:
        """Run what is not done; raises what ends the run."""
        with only_run(self.folder.lock_file):
            sweep_orphans()
            replace_file(self.folder.plan_file, to_json_text(encode(self.plan), indent=1) + "\n")
            watch = CompileWatch(
                plan=self.plan,
                folder=self.folder,
                jobs=self.plan.jobs,
                memory_mib=20000,
                cache=None,
                passed=passed_through(self.environ),
            )
            runner = Runner(
                plan=self.plan,
                folder=self.folder,
                performer=self._performer,
                explain=lambda step, performer, error: explain_failure(
                    self.plan, self.folder, step, performer, error
                ),
                watch=watch,
                listener=self.listener,
                selection=self.selection,
                keep_going=self.keep_going,
            )
            return runner.run()

    def _performer(
        self, step: Step, variables: Mapping[str, str], heard: Callable[[bytes], None]
    ) -> StepPerformer:
        return StepPerformer(
            step=step, folder=self.folder, variables=variables, verify=self._verify, heard=heard
        )

    def _verify(
        self, action: Verify, step: Step, run: Callable[[Command, BinaryIO], int]
    ) -> None:
        raise NotImplementedError
