"""One run of a program for a profile: what to run and what to put around it comes from a plan."""

import json
import os
from typing import Any, Dict, List

from torchyard.worker.values.options import options_from
from torchyard.worker.values.program import (
    THREADS,
    Ending,
    Surrounding,
    run_callable,
    run_program,
)


class Watched(Surrounding):
    """The program under the watch."""

    def __init__(self, plan: Dict[str, Any]) -> None:
        from torchyard.worker.values.session import Session

        self.session = Session(options_from(plan["options"]), plan["output"], plan.get("cache"))
        if plan.get("eager"):
            _turn_compiler_off()
            self.session.notes.append(
                "torch.compile was turned off: the eager program was profiled"
            )

    def start(self) -> None:
        """Watch from here on, and have a result on disk from the first moment."""
        self.session.write("running")
        self.session.start()

    def stop(self, ending: Ending) -> None:
        """Write what was found."""
        self.session.exit_code = ending.exit_code
        self.session.stop(ending.state)

    def leave_child(self) -> None:
        """A forked child passes operators on and writes nothing."""
        self.session.leave()

    def step(self) -> None:
        """As the optimiser's hook does for training."""
        self.session.step()

    def note(self, text: str) -> None:
        """For the report."""
        if text != THREADS and text not in self.session.notes:  # the session counts them itself
            self.session.notes.append(text)


def main(plan_path: str, words: List[str]) -> int:
    """Run the program that the plan is about; its exit code."""
    with open(plan_path, encoding="utf-8") as file:
        plan: Dict[str, Any] = json.load(file)
    os.environ.pop("TORCHYARD_VALUES_PLAN", None)
    if "sweep" in plan:
        from torchyard.worker.values.operator_sweep import sweep_plan

        return sweep_plan(plan)
    if "price" in plan:
        from torchyard.worker.values.worth import price_plan

        return price_plan(plan)
    surrounding: Surrounding
    if plan.get("tool") == "torch":
        from torchyard.worker.values.torch_profile import TorchProfiled

        surrounding = TorchProfiled(plan)
        code = run_program(words, surrounding)
        surrounding.leave_process(code)
        return code
    if plan.get("tool") == "range":
        from torchyard.worker.values.tool_range import ToolRange

        surrounding = ToolRange(plan)
    elif plan.get("native"):
        from torchyard.worker.values.native_run import Native

        surrounding = Native(plan)
    else:
        surrounding = Watched(plan)
    if plan.get("workload"):
        from torchyard.worker.values.workload_run import body_of

        return run_callable(body_of(plan, surrounding), surrounding)
    return run_program(words, surrounding)


def _turn_compiler_off() -> None:
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    import torch._dynamo

    torch._dynamo.config.disable = True
