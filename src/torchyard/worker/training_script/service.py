"""Answer the controller's requests from inside a running script.

`serve` runs the script. At the end of a step it sends the answer to the pending request, and waits for the
next one; a request that needs steps returns to the script. When the script ends, it is started again, and
the first steps of the new run are not timed. An error of the script is the answer to the pending request.
"""

import ast
import gc
import os
import random
import shlex
import sys
import traceback
import types
from typing import Any, Dict, List, NamedTuple, NoReturn, Optional, Union

import torch

from torchyard.worker import wire
from torchyard.worker.bench import dynamo_graphs, metrics, timing
from torchyard.worker.bench.accuracy import judge as accuracy
from torchyard.worker.training_script import results
from torchyard.worker.training_script.boundaries import NamedSteps, OptimizerSteps
from torchyard.worker.training_script.modules import AppliedVariant, CalledModules
from torchyard.worker.training_script.tasks import (
    Block,
    Children,
    DataWaits,
    FirstStep,
    Measure,
    OneStep,
    Results,
    Task,
    WarmUp,
)
from torchyard.worker.workload import CannotBuild


class Program(NamedTuple):
    """A script, its arguments and the folder that it runs in."""

    path: str
    arguments: List[str]
    folder: str
    seed: int
    steps: Optional[NamedSteps]

    def run(self) -> None:
        """Run the script to its end; a nonzero exit code is an error."""
        code = self._code()
        main = types.ModuleType("__main__")
        main.__file__ = self.path
        if self.steps is not None:
            vars(main).update(self.steps.names())
        before: Dict[str, Any] = {"main": sys.modules.get("__main__"), "argv": sys.argv}
        sys.modules["__main__"] = main
        sys.argv = [self.path, *self.arguments]
        os.chdir(self.folder)
        self._set_seeds()
        try:
            exec(code, vars(main))  # noqa: S102 - the program that the user wants to measure
        except SystemExit as exited:
            if exited.code not in (None, 0):
                raise RuntimeError("the script exited with code %r" % (exited.code,)) from exited
        finally:
            sys.modules["__main__"] = before["main"]
            sys.argv = before["argv"]
        del main
        gc.collect()  # ends the worker processes of its data loaders

    def _code(self) -> Any:
        folder = os.path.dirname(self.path)
        if sys.path[:1] != [folder]:
            sys.path.insert(0, folder)
        try:
            with open(self.path, "rb") as file:
                tree = ast.parse(file.read(), self.path)
        except (OSError, SyntaxError, ValueError) as error:
            raise CannotBuild(
                "cannot read the script: " + str(error), hint="check that `python FILE` runs it"
            ) from error
        if self.steps is not None and not self.steps.instrument(tree):
            self.steps.watch_import()
        return compile(tree, self.path, "exec", dont_inherit=True)

    def _set_seeds(self) -> None:
        """Set all seeds; a script that sets its own ones overrides them."""
        random.seed(self.seed)
        torch.manual_seed(self.seed)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self.seed % 2**32)


FIRST_TIMED_STEP = 4
"""After a restart; in the first run, warm-up decides."""
LEAST_STEPS = FIRST_TIMED_STEP + 1


def serve(
    channel: wire.Channel,
    workload: Dict[str, Any],
    variants: List[Dict[str, Any]],
    seed: int,
    **_: Any,
) -> NoReturn:
    """Answer this request to build and all further ones; raise the reason when the script cannot go on."""
    if len(variants) != 1:
        raise CannotBuild("a script runs one variant in a process")
    ScriptService(channel, workload, variants[0], seed).run()


class ScriptService:
    """A running script: its steps, the variant, and the task in progress."""

    def __init__(
        self,
        channel: wire.Channel,
        workload: Dict[str, Any],
        variant: Dict[str, Any],
        seed: int,
    ) -> None:
        path, parameters = workload["name"], dict(workload["parameters"])
        self._channel = channel
        self._device = workload["device"]
        self._pid = os.getpid()
        self._variant = AppliedVariant(variant)
        self._optimizers = OptimizerSteps(self._optimizer_stepped)
        self._named: Optional[NamedSteps] = None
        if parameters.get("step"):
            self._named = NamedSteps(str(parameters["step"]), self._stepped)
        self._program = Program(
            path,
            shlex.split(str(parameters.get("arguments", ""))),
            str(parameters.get("folder") or os.path.dirname(path)),
            seed,
            self._named,
        )
        self._called = CalledModules()
        self._children = Children()
        self._waits = DataWaits()
        self._first = FirstStep()
        self._task: Optional[Task] = None
        self._runs = 0
        self._steps = 0
        """Steps of the current run of the script."""
        self._shortest: Optional[int] = None
        """Steps of the shortest complete run."""

    def run(self) -> NoReturn:
        """Run the script again and again."""
        self._optimizers.install(required=self._named is None)
        self._waits.install()
        with self._variant.settings():
            while True:
                self._runs += 1
                self._steps = 0
                self._optimizers.forget()
                self._called.install()
                try:
                    self._program.run()
                except Exception as error:
                    if self._shortest is None:
                        raise
                    raise RuntimeError(
                        "the script ended after %d steps, and failed when it was started again in "
                        "the same process: %s: %s" % (self._shortest, type(error).__name__, error)
                    ) from error
                finally:
                    self._called.take()
                self._check_end()
                if self._task is not None:
                    self._task.interrupt()

    def _check_end(self) -> None:
        """Raise CannotBuild if the script has too few steps."""
        if self._named is not None and not self._steps:
            raise CannotBuild(
                "the script ended without a call of " + self._named.name,
                hint="check the name that is given with --step, and the arguments of the script",
            )
        if not self._steps:
            raise CannotBuild(
                "the script ended without a step of an optimizer",
                hint="name the function of a step with --step, as in --step train_step",
            )
        if self._steps < LEAST_STEPS:
            raise CannotBuild(
                "the script ended after %d steps, and at least %d are needed"
                % (self._steps, LEAST_STEPS),
                hint="let it make more steps: --script-args passes arguments to it",
            )
        self._shortest = min(self._steps, self._shortest or self._steps)

    def _optimizer_stepped(self, _optimizer: Any) -> None:
        if self._named is None:
            self._stepped(None)

    def _stepped(self, returned: Any) -> None:
        """Take the end of a step; called inside the script."""
        if os.getpid() != self._pid:
            return  # a forked child of the script
        self._steps += 1
        if self._steps == 1:
            self._apply_variant()
            return
        if self._steps == 2:
            self._first.end(self._variant.compiles)
        if self._task is None:
            return
        try:
            answer = self._answer_after_step(self._task, returned)
        except Exception as error:
            self._converse(_error(error))
            return
        if answer is not None:
            self._children.stop()
            if isinstance(self._task, Block) and self._task.settle:
                answer["settle_ns"] = timing.wait_until_idle()
            self._converse(wire.answer(answer))

    def _answer_after_step(self, task: Task, returned: Any) -> Optional[Dict[str, Any]]:
        if self._runs > 1 and not isinstance(task, Results):
            if self._steps < FIRST_TIMED_STEP:
                return None
            if self._steps == FIRST_TIMED_STEP:
                task.begin()
                return None
        answer = task.step(returned)
        compiled = dynamo_graphs.compiled_frames() if self._variant.compiles else 1
        if isinstance(task, WarmUp) and answer is not None and not compiled:
            raise CannotBuild(
                self._variant.backend + " compiled nothing: the script does not call the compiled "
                "modules of its first step again",
                hint="compile in the script itself, and compare two scripts with --command",
            )
        return answer

    def _apply_variant(self) -> None:
        """Apply the variant after the first step; in the first run, this answers the request to build."""
        reply = wire.answer(self._built())
        try:
            self._variant.apply(self._called.take())
        except Exception as error:
            reply = _error(error)
        if self._runs == 1 or "error" in reply:
            self._converse(reply)
        elif isinstance(self._task, Results):
            self._task.begin()
        if self._runs == 1:
            self._first.begin()

    def _built(self) -> Dict[str, Any]:
        parameters = self._optimizers.parameters()
        return {
            "parameters": sum(one.numel() for one in parameters),
            "loss": "",
            "batch_size": None,
            "versions": metrics.versions(),
        }

    def _converse(self, reply: Dict[str, Any]) -> None:
        """Send the reply, and answer requests until one of them needs steps."""
        self._children.stop()
        self._task = None
        while True:
            try:
                self._channel.send(reply)
                request = self._channel.receive()
            except wire.ChannelClosed:
                os._exit(0)
            verb = request.pop("ask", "")
            if verb == "quit":
                os._exit(0)
            try:
                task = self._handle(verb, request)
                if isinstance(task, Task):
                    self._task = task
                    break
                reply = wire.answer(task)
            except Exception as error:
                reply = _error(error)
        self._children.resume()
        self._task.begin()

    def _handle(self, verb: str, request: Dict[str, Any]) -> Union[Task, Dict[str, Any]]:
        """Return the task of a request, or its answer."""
        if verb == "reference":
            path = request["path"]
            return Results(self._parameters, lambda record: self._save_reference(record, path))
        if verb == "judge":
            reference = accuracy.load_tensors(request["path"])
            return Results(self._parameters, lambda record: self._judged(record, reference))
        if verb == "warm" and request["seconds"] <= 0:
            return (
                {"first_call_s": self._first.seconds}
                if self._first.seconds
                else OneStep(self._first)
            )
        if verb == "warm":
            return WarmUp(self._first, request["seconds"])
        if verb == "block":
            self._optimizers.settle()
            return self._block(request)
        if verb == "measure":
            return Measure(self._waits, self._first, self._notes)
        if verb == "recheck":
            return {"failure": None, "seconds": 0.0, "notes": self._notes()}
        if verb == "reseat":
            return {"moved_bytes": 0, "held_bytes": 0}
        raise CannotBuild("a script does not support " + wire.phase_of(verb))

    def _block(self, request: Dict[str, Any]) -> Block:
        steps = int(request["inner"]) * int(request["samples"])
        if self._shortest is not None:
            steps = min(steps, self._shortest - FIRST_TIMED_STEP)
        block = Block(
            steps, int(request["prime"]), bool(request.get("probe")), bool(request.get("settle"))
        )
        block.synchronize_each = self._shortest is not None
        return block

    def _parameters(self) -> List[Any]:
        return self._optimizers.parameters()

    def _save_reference(self, record: Dict[str, Any], path: str) -> Dict[str, Any]:
        accuracy.save_reference(record, path)
        return {
            "nondeterminism": None,
            "random": record["random"],
            "varied": "none",
            "compile_s": self._first.seconds or 0.0,
        }

    def _judged(self, record: Dict[str, Any], reference: Dict[str, Any]) -> Dict[str, Any]:
        judged = results.compare(reference, record, self._variant.lower_precision)
        return dict(judged, comparable=False, compile_s=self._first.seconds or 0.0)

    def _notes(self) -> List[str]:
        """Return what a reader must know about the steps."""
        notes = []
        count = len(self._optimizers.optimizers)
        if self._named is not None:
            notes.append("a step is a call of " + self._named.name)
        elif count > 1:
            notes.append(
                "has %d optimizers: a step ends with that which made its first step last; --step "
                "names another function" % count
            )
        if self._device == "cpu" and torch.cuda.is_available() and torch.cuda.is_initialized():
            notes.append("uses CUDA: give --device cuda, so that clocks of the GPU are watched")
        if self._optimizers.late:
            notes.append(
                "has %d optimizers that made their first step after the warm-up"
                % self._optimizers.late
            )
        if self._variant.applied_to:
            notes.append("applies to " + ", ".join(self._variant.applied_to))
        if self._shortest is not None:
            notes.append(
                "ended after %d steps and was started again; the first %d steps of a run are not timed"
                % (self._shortest, FIRST_TIMED_STEP)
            )
        return notes


def _error(error: Exception) -> Dict[str, Any]:
    """Return the answer for an exception of our own code; those of the script end it."""
    if isinstance(error, CannotBuild):
        return wire.error_answer("cannot-build", str(error), hint=error.hint)
    text = type(error).__name__ + ": " + str(error)
    return wire.error_answer("raised", text, traceback.format_exc())
